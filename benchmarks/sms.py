"""How many messages a second the SMS gateway takes, counted first and behind the lock, and how many it refuses."""

import asyncio
import http.client
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.services import new_database, service
from benchmarks.workshop import Ready, Workshop
from benchmarks.wrk import Reached, ensure_wrk, send, write_requests

CONNECTIONS = 32
THOUSAND = 1_000
OUT_OF_REACH = 2**31 - 1
TEXT = "Your code is 123456. It is good for ten minutes."
P99_MILLISECONDS = 50.0


@dataclass(frozen=True)
class Load:
    """What is sent, and what it should reach."""

    name: str
    users: range
    target: int
    aim: int
    fast_path: bool = True
    limit: int = OUT_OF_REACH
    refused: bool = False


LOADS = (
    Load("redis", range(THOUSAND), 1_500, 4_000),
    Load("refused", range(THOUSAND, 2 * THOUSAND), 4_000, 8_000, limit=1, refused=True),
    Load("row lock", range(THOUSAND), 500, 1_500, fast_path=False),
    Load("row lock, one user", range(THOUSAND, THOUSAND + 1), 100, 100, fast_path=False),
)


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    ensure_wrk()
    options = workshop.options
    print(
        f"sms: one process, PostgreSQL, Redis and Kafka on the same two cores, {CONNECTIONS} connections, "
        f"{options.rounds} rounds of {options.seconds} s; {workshop.storage}"
    )
    reached: dict[Load, list[Reached]] = {load: [] for load in LOADS}
    for fast_path in (True, False):
        loads = [load for load in LOADS if load.fast_path is fast_path]
        with new_database(workshop.servers, "sms") as dsn:
            files = {load: _prepared(workshop.folder, dsn, load) for load in loads}
            environment = {
                "KAFKA_BOOTSTRAP": workshop.kafka,
                "SMS_FAST_PATH": str(fast_path).lower(),
            }
            with service(workshop, workshop.servers, "sms", dsn, environment) as ready:
                for load in loads:
                    _warm_up(ready, load)
                for _ in range(options.rounds):
                    for load, file in files.items():
                        reached[load].append(
                            send(ready, file, connections=CONNECTIONS, seconds=options.seconds, refused=load.refused)
                        )
    _show(reached)


def _prepared(folder: Path, dsn: str, load: Load) -> Path:
    """The users of a load, and a request for each."""
    asyncio.run(_seed(dsn, load.users, load.limit))
    return write_requests(folder / f"sms-{secrets.token_hex(4)}", [_request(user) for user in load.users])


async def _seed(dsn: str, users: Sequence[int], limit: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "INSERT INTO rate_limits (user_id, rate_limit, time_window, last_refresh_time)"
            " SELECT unnest($1::bigint[]), $2, 600, clock_timestamp()",
            list(users),
            limit,
        )
    finally:
        await connection.close()


def _request(user: int) -> bytes:
    body = json.dumps({"userId": user, "message": TEXT}).encode()
    head = (
        f"POST /api/send HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return f"{head}\r\n\r\n".encode() + body


def _warm_up(ready: Ready, load: Load) -> None:
    """Fill the copies, use up what is to be refused, and see that the answers are what they should be."""
    connection = http.client.HTTPConnection("127.0.0.1", ready.port, timeout=30)
    for _ in range(3):
        for user in load.users:
            connection.request("POST", "/api/send", json.dumps({"userId": user, "message": TEXT}))
            answer = connection.getresponse()
            text = answer.read()
    connection.close()
    expected = 429 if load.refused else 200
    if answer.status != expected:
        raise RuntimeError(f"{load.name}: {answer.status} in place of {expected}: {text!r}")


def _show(reached: dict[Load, list[Reached]]) -> None:
    rates = {load: Rounds.of(one.rate for one in each) for load, each in reached.items()}
    tails = {load: Rounds.of(one.p99 for one in each) for load, each in reached.items()}
    costs = {load: Rounds.of(one.cpu for one in each) for load, each in reached.items()}
    rows = [(load.name, rates[load].shown(",.0f"), tails[load].shown(), costs[load].shown(",.0f")) for load in reached]
    print(table(("", "a second", "p99 ms", "CPU µs each"), rows))
    for load in reached:
        print(verdict(f"{load.name}: at least {load.target:,} a second", met=rates[load].median >= load.target))
        print(verdict(f"{load.name}: aim of {load.aim:,} a second", met=rates[load].median >= load.aim))
    first = LOADS[0]
    print(verdict(f"{first.name}: p99 under {P99_MILLISECONDS:g} ms", met=tails[first].median < P99_MILLISECONDS))
    figures: dict[str, Any] = {
        load.name: {"rps": rates[load].as_json(), "p99_ms": tails[load].as_json(), "cpu_us": costs[load].as_json()}
        for load in reached
    }
    print(json_line("sms", figures))
