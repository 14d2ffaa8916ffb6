"""ACCEPTANCE 32 in full: by the time a failed login takes, nobody can tell whether there is such an account."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.migrations import migrate
from refract.runtime.tokens import TokenSigner
from refract.services.identity.adapters import hashing
from refract.services.identity.adapters.hashing import COST
from refract.services.identity.domain.accounts import User
from refract.services.identity.store import Users
from tests.support.buses import EmbeddedBuses
from tests.support.clocks import ManualClock
from tests.support.databases import open_database
from tests.support.identity import SECRET, CountingHasher, IdentityWorld

pytestmark = pytest.mark.full

ROUNDS = 60
KINDS = ("known", "unknown", "suspended", "without a password")


@pytest.fixture
async def identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[IdentityWorld]:
    """Identity with bcrypt as it is in use, but for the priority of its threads: a low one waits for everybody else."""
    monkeypatch.setattr(hashing, "_step_back", lambda *_: None)
    clock = ManualClock()
    location = tmp_path / "identity.db"
    await migrate("identity", location)
    async with AsyncExitStack() as stack:
        database = await open_database(location)
        stack.push_async_callback(database.close)
        buses = EmbeddedBuses(tmp_path)
        stack.push_async_callback(buses.close)
        hasher = CountingHasher(COST)
        stack.callback(hasher.close)
        world = IdentityWorld(
            database, clock, EmbeddedRateLimiter(clock), hasher, TokenSigner(SECRET, clock), buses, stack
        )
        await world.serve()
        yield world


async def add_users(identity: IdentityWorld) -> None:
    """Users of each kind, one for each round: ten failures would close an account. One hash does for all."""
    hashed = await identity.hasher.hash("the password of everybody")
    async with identity.database.transaction() as tx:
        for number in range(ROUNDS):
            user = User.local(address("known", number), hashed, identity.clock.now())
            await Users().add(tx, user)
            suspended = User.local(address("suspended", number), hashed, identity.clock.now())
            await Users().add(tx, replace(suspended, status="suspended"))
            without = User.local(address("without a password", number), "", identity.clock.now())
            await Users().add(tx, replace(without, password_hash=None))


def address(kind: str, number: int) -> str:
    """Of the same length whatever the kind: only what is behind it may differ."""
    return f"{kind.replace(' ', '-'):x<20}{number:04}@example.com"


@pytest.mark.timeout(600)
async def test_the_medians_of_failed_logins_are_within_two_milliseconds(identity: IdentityWorld) -> None:
    await add_users(identity)
    identity.hasher.calls.clear()
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    worked: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS):
        # In turn, and each time another one first: whatever else the machine does falls on all alike.
        for kind in KINDS[number % 4 :] + KINDS[: number % 4]:
            begun, before = time.perf_counter(), time.process_time()
            answer = await identity.login(
                address(kind, number), "not the password", f"X-Forwarded-For: 203.0.{number}.1"
            )
            taken[kind].append(time.perf_counter() - begun)
            worked[kind].append(time.process_time() - before)
            assert (answer.status, answer.json) == (401, {"error": "invalid credentials"})
    assert len(identity.hasher.calls) == len(KINDS) * ROUNDS, "one bcrypt each"
    by_the_clock = spread({kind: median(times) for kind, times in taken.items()})
    of_work = spread({kind: median(times) for kind, times in worked.items()})
    print(
        f"the medians of the kinds differ by {by_the_clock:.2f} ms, those of the processor's time by {of_work:.2f} ms"
    )
    # On a machine that does other things at once, only the work can be compared.
    assert min(by_the_clock, of_work) < 2


def spread(seconds: dict[str, float]) -> float:
    """How far the kinds are apart, in milliseconds."""
    return (max(seconds.values()) - min(seconds.values())) * 1_000
