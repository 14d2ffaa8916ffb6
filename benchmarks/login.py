"""How long a sign-in takes beside one bcrypt, and who suffers while many sign in at once."""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt

from benchmarks.accounts import PASSWORD, add_to_postgresql, add_to_sqlite, new_accounts
from benchmarks.asking import call
from benchmarks.doors import identity, signed
from benchmarks.figures import Rounds, json_line, percentile, table, verdict
from benchmarks.instances import embedded
from benchmarks.steady_load import steadily
from benchmarks.workshop import DISTRIBUTED, EMBEDDED, MODES, Workshop
from benchmarks.wrk import write_requests
from refract.services.identity.domain.accounts import User

PARALLEL = 2
LOGINS_A_ROUND = 20
BCRYPTS_A_ROUND = 3
MANY = 50
PROBES_A_SECOND = 100
PROBE_CONNECTIONS = 4
PROBED_SHARE = 0.7
"""Of the time that so many sign-ins should take: the probes have to end before them."""
PATIENCE = 120.0
OK = 200
APART = 0.01
"""Seconds between two of the many, so that it can be said whose turn it is; each takes some thirty times as long."""
PLACES = 5
"""So far from its turn may a sign-in end: the threads are not equally fast."""
TARGET_FACTOR, TARGET_MILLISECONDS = 1.5, 50.0
PROBED = {"/health": {EMBEDDED: "/health", DISTRIBUTED: "/health"}, "/me": {EMBEDDED: "/api/me", DISTRIBUTED: "/me"}}
LOGIN = {EMBEDDED: "/api/auth/login", DISTRIBUTED: "/login"}


@dataclass(frozen=True)
class Place:
    """Where users sign in."""

    mode: str
    port: int
    token: str = field(repr=False)
    users: Sequence[User] = field(repr=False)

    def request(self, number: int) -> bytes:
        """A sign-in of one of the users, each from an address of their own."""
        user = self.users[number % len(self.users)]
        body = json.dumps({"email": user.email, "password": PASSWORD}).encode()
        head = (
            f"POST {LOGIN[self.mode]} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"X-Forwarded-For: 192.0.2.{number % 250}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass
class Seen:
    """What one mode showed; seconds."""

    bcrypts: list[float] = field(default_factory=list)
    logins: list[float] = field(default_factory=list)
    many: list[float] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    """The statuses of those, of the many, that were not let in."""
    out_of_turn: int = 0
    probes: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def one(self) -> float:
        """One bcrypt, with nothing else to do."""
        return Rounds.of(self.bcrypts).median

    @property
    def factor(self) -> float:
        """How much longer a sign-in takes than that, at its p99."""
        return percentile(self.logins, 0.99) / self.one

    def row(self) -> tuple[str, ...]:
        """What happened when many came at once."""
        probes = (f"{probe['p99']:.1f} (sender late by {probe['late_p99']:.1f})" for probe in self.probes.values())
        return f"{max(self.many):.1f}", str(len(self.refused)), str(self.out_of_turn), *probes


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    rounds = workshop.options.rounds
    print(
        f"login: {rounds} rounds of {LOGINS_A_ROUND} sign-ins, {PARALLEL} at a time, on {os.cpu_count()} cores; then "
        f"{MANY} at once, with /health and /me asked {PROBES_A_SECOND} times a second meanwhile"
    )
    users = new_accounts(MANY)
    seen = {}
    for mode in MODES:
        with _place(workshop, mode, users) as place:
            seen[mode] = asyncio.run(_sign_in(workshop, place, rounds))
    rows = [
        (
            mode,
            f"{1000 * each.one:.0f}",
            f"{1000 * percentile(each.logins, 0.5):.0f}",
            f"{1000 * percentile(each.logins, 0.99):.0f}",
            f"{each.factor:.2f}",
        )
        for mode, each in seen.items()
    ]
    print(table(("", "one bcrypt ms", f"p50 ms, {PARALLEL} at a time", "p99 ms", "p99 to one bcrypt"), rows))
    header = ("the last after s", "refused", "out of turn by", *(f"p99 ms {path}" for path in PROBED))
    print(table((f"{MANY} at once", *header), [(mode, *each.row()) for mode, each in seen.items()]))
    print(json_line("login", {mode: _judge(mode, each) for mode, each in seen.items()}))


def _judge(mode: str, seen: Seen) -> dict[str, Any]:
    met = seen.factor < TARGET_FACTOR
    print(verdict(f"{mode}: p99 under {TARGET_FACTOR:g} of one bcrypt, {PARALLEL} at a time", met=met))
    print(verdict(f"{mode}: none of {MANY} at once refused", met=not seen.refused))
    print(verdict(f"{mode}: they are served in turn, within {PLACES} places", met=seen.out_of_turn <= PLACES))
    for path, probe in seen.probes.items():
        met = probe["p99"] < TARGET_MILLISECONDS
        print(verdict(f"{mode}: {path} p99 under {TARGET_MILLISECONDS:g} ms meanwhile", met=met))
    return {
        "bcrypt_ms": round(1000 * seen.one, 1),
        "p99_ms": round(1000 * percentile(seen.logins, 0.99), 1),
        "factor": round(seen.factor, 3),
        "many_last_s": round(max(seen.many), 2),
        "many_refused": seen.refused,
        "out_of_turn": seen.out_of_turn,
        "meanwhile_p99_ms": {path: round(probe["p99"], 2) for path, probe in seen.probes.items()},
    }


@contextmanager
def _place(workshop: Workshop, mode: str, users: Sequence[User]) -> Iterator[Place]:
    """An instance on all cores: hashing is meant to use them."""
    secret = secrets.token_urlsafe(48)
    if mode == EMBEDDED:
        data = workshop.folder / f"login-{secrets.token_hex(4)}"
        with embedded(data, {"JWT_SECRET": secret, "TRUSTED_PROXIES": "127.0.0.1"}) as instance:
            add_to_sqlite(data / "identity.sqlite3", users)
            yield Place(mode, instance.port, signed(secret), users)
        return
    with identity(workshop, secret, core=None) as service:
        asyncio.run(add_to_postgresql(service.database, users))
        yield Place(mode, service.port, signed(secret), users)


async def _sign_in(workshop: Workshop, place: Place, rounds: int) -> Seen:
    seen = Seen()
    await _login(place, 0)
    for _ in range(rounds):
        seen.bcrypts += [_bcrypt(place.users[0]) for _ in range(BCRYPTS_A_ROUND)]
        seen.logins += await _a_few_at_a_time(place)
    files = {
        path: write_requests(workshop.folder / f"probe{len(path)}", [call("GET", paths[place.mode], place.token)])
        for path, paths in PROBED.items()
    }
    await _all_at_once(place, seen, files)
    return seen


async def _a_few_at_a_time(place: Place) -> list[float]:
    numbers = iter(range(LOGINS_A_ROUND))
    taken: list[float] = []

    async def visit() -> None:
        for number in numbers:
            status, seconds = await _login(place, number)
            if status != OK:
                raise RuntimeError(f"a sign-in was answered {status}")
            taken.append(seconds)

    await asyncio.gather(*(visit() for _ in range(PARALLEL)))
    return taken


async def _all_at_once(place: Place, seen: Seen, files: dict[str, Path]) -> None:
    """Many sign-ins, and the probes for as long as most of them take."""
    seconds = PROBED_SHARE * MANY * seen.one / (os.cpu_count() or 1)
    ended: list[int] = []

    async def visit(number: int) -> None:
        await asyncio.sleep(APART * number)
        status, taken = await _login(place, number)
        ended.append(number)
        seen.many.append(taken)
        if status != OK:
            seen.refused.append(status)

    with ThreadPoolExecutor(len(files)) as threads:
        logins = [asyncio.ensure_future(visit(number)) for number in range(MANY)]
        await asyncio.sleep(APART * MANY)
        loop = asyncio.get_running_loop()
        probes = [loop.run_in_executor(threads, _probe, place.port, file, seconds) for file in files.values()]
        seen.probes = dict(zip(files, await asyncio.gather(*probes), strict=True))
        if len(ended) == MANY:
            print(f"  {place.mode}: the sign-ins ended before the probes, whose figures are better than they should be")
        await asyncio.gather(*logins)
    seen.out_of_turn = max(abs(turn - number) for turn, number in enumerate(ended))


def _probe(port: int, requests: Path, seconds: float) -> dict[str, float]:
    return steadily(port, PROBES_A_SECOND, requests, connections=PROBE_CONNECTIONS, seconds=seconds)


def _bcrypt(user: User) -> float:
    begun = time.perf_counter()
    if not bcrypt.checkpw(PASSWORD.encode(), (user.password_hash or "").encode()):
        raise RuntimeError("the password is wrong")
    return time.perf_counter() - begun


async def _login(place: Place, number: int) -> tuple[int, float]:
    """The status, and seconds from the request to the end of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    try:
        begun = time.perf_counter()
        writer.write(place.request(number))
        async with asyncio.timeout(PATIENCE):
            answer = await reader.readuntil(b"}")
        return int(answer.split(maxsplit=2)[1]), time.perf_counter() - begun
    finally:
        writer.close()
