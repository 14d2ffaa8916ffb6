"""How long a question to the limiter in Redis takes."""

import asyncio
import secrets
import time

import uvloop

from benchmarks.figures import Rounds, json_line, percentile, table, verdict
from benchmarks.workshop import Workshop
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.runtime.distributed.redis_connection import RedisConnection
from refract.runtime.windows import Policy
from tests.support.servers import Redis

POLICY = Policy("bench", 20, 60.0)
PEOPLE = 100
HITS = 3_000
AT_ONCE = (1, 32)
TARGET_MILLISECONDS = 3.0


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    rounds = workshop.options.rounds
    print(
        f"limiter: {HITS:,} hits by {PEOPLE} addresses, {POLICY.limit} a minute for each, {rounds} rounds; "
        "Redis on the core of the load"
    )
    seen = uvloop.run(_ask(workshop.servers[Redis.variable], rounds))
    rows, figures = [], {}
    for at_once, latencies in seen.items():
        p50 = Rounds.of(percentile(each, 0.5) for each in latencies)
        p99 = Rounds.of(percentile(each, 0.99) for each in latencies)
        rows.append((f"{at_once} at a time", f"{p50.median:.2f}", p99.shown(), f"{max(map(max, latencies)):.1f}"))
        figures[at_once] = {"p50_ms": p50.as_json(), "p99_ms": p99.as_json()}
    print(table(("", "p50 ms", "p99 ms", "max ms"), rows))
    for at_once in AT_ONCE:
        met = figures[at_once]["p99_ms"]["median"] < TARGET_MILLISECONDS
        print(verdict(f"p99 of a round trip under {TARGET_MILLISECONDS:g} ms, {at_once} at a time", met=met))
    print(json_line("limiter", {"at_once": figures}))


async def _ask(address: str, rounds: int) -> dict[int, list[list[float]]]:
    redis = RedisConnection(address)
    await redis.start()
    limiter = DistributedRateLimiter(redis)
    seen: dict[int, list[list[float]]] = {at_once: [] for at_once in AT_ONCE}
    try:
        await limiter.ping()
        await _hit(limiter, 1)
        for _ in range(rounds):
            for at_once, latencies in seen.items():
                latencies.append(await _hit(limiter, at_once))
    finally:
        await redis.close()
    return seen


async def _hit(limiter: DistributedRateLimiter, at_once: int) -> list[float]:
    """Milliseconds of each hit. The people are others every time: two thirds of the hits are admitted."""
    people = [secrets.token_hex(16) for _ in range(PEOPLE)]
    numbers = iter(range(HITS))
    latencies: list[float] = []

    async def visit() -> None:
        for number in numbers:
            begun = time.perf_counter()
            await limiter.hit(people[number % PEOPLE], POLICY)
            latencies.append(1000 * (time.perf_counter() - begun))

    await asyncio.gather(*(visit() for _ in range(at_once)))
    return latencies
