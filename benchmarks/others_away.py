"""Whether a redirect takes as long while analytics, notifications and the broker are all away (ACCEPTANCE 25)."""

import asyncio
from contextlib import ExitStack

from benchmarks.asking import redirects
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.instances import wait_until_quiet
from benchmarks.links import seed_links, seed_postgresql, shuffled
from benchmarks.services import new_database, service
from benchmarks.steady_load import steadily
from benchmarks.storage import Storage
from benchmarks.workshop import Workshop
from benchmarks.wrk import write_requests
from tests.support.servers import PostgreSQL, RabbitMQ
from tests.support.servers.selection import SERVERS, started

LINKS = 5_000
RATE = 1_000
CONNECTIONS = 64
SECONDS = 5
MOST_TIMES = 1.1
READERS = ("analytics", "notifications")


def measure(workshop: Workshop) -> None:
    """Print the figures of both states, in turns."""
    rounds = workshop.options.rounds
    print(
        f"others-away: redirects of links at {RATE:,} a second over {CONNECTIONS} connections, with analytics, "
        f"notifications and RabbitMQ, and without; {rounds} rounds of {SECONDS} s each"
    )
    links = seed_links(LINKS)
    requests = write_requests(workshop.folder / "others-away", redirects(shuffled(links)))
    seen: dict[str, list[dict[str, float]]] = {"all there": [], "all away": []}
    with ExitStack() as stack:
        running = stack.enter_context(started(SERVERS))
        servers = {server.variable: server.address for server in running}
        print(f"  {Storage.of(servers[PostgreSQL.variable])}")
        [broker] = [server for server in running if isinstance(server, RabbitMQ)]
        databases = {name: stack.enter_context(new_database(servers, name)) for name in ("links", *READERS)}
        asyncio.run(seed_postgresql(databases["links"], links))
        ready = stack.enter_context(service(workshop, servers, "links", databases["links"]))

        def play(state: str) -> None:
            seen[state].append(steadily(ready.port, RATE, requests, connections=CONNECTIONS, seconds=SECONDS))

        play("all there")  # for the links to be in memory
        seen["all there"].clear()
        for _ in range(rounds):
            with ExitStack() as present:
                readers = [present.enter_context(service(workshop, servers, name, databases[name])) for name in READERS]
                wait_until_quiet([ready.pid, *(reader.pid for reader in readers)])
                play("all there")
            broker.stop()
            wait_until_quiet([ready.pid])
            play("all away")
            broker.start()
    _show(seen)


def _show(seen: dict[str, list[dict[str, float]]]) -> None:
    parts = ("p50", "p99", "max")
    rows = [
        (state, *(Rounds.of(each[part] for each in turn).shown() for part in parts)) for state, turn in seen.items()
    ]
    print(table(("", *(f"{part} ms" for part in parts)), rows))
    there, away = seen.values()
    times = Rounds.of(late["p99"] / early["p99"] for early, late in zip(there, away, strict=True))
    print(f"  p99 without them is {times.shown()} times that with them; every request was answered")
    print(verdict(f"at most {MOST_TIMES:g} times p99 while they are away", met=times.median <= MOST_TIMES))
    p99 = {state: Rounds.of(each["p99"] for each in turn).as_json() for state, turn in seen.items()}
    print(json_line("others-away", {"times": times.as_json(), "p99_ms": p99}))
