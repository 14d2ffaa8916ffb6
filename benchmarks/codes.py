"""How many short codes a second one core makes."""

import time

from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.workshop import Workshop
from refract.kernel.ids import Snowflakes
from refract.services.links.domain.codes import CodeSource, code_source
from refract.services.links.settings import Strategy

CODES = 100_000
TARGET = 100_000
STRATEGIES: tuple[Strategy, ...] = ("random", "snowflake")


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    rounds = workshop.options.rounds
    print(f"codes: {CODES:,} codes with their ids, {rounds} rounds")
    sources = {strategy: code_source(strategy) for strategy in STRATEGIES}
    seen: dict[Strategy, list[float]] = {strategy: [] for strategy in sources}
    for _ in range(rounds):
        for strategy, source in sources.items():
            seen[strategy].append(_make(source))
    rates = {strategy: Rounds.of(values) for strategy, values in seen.items()}
    print(table(("", "codes a second"), [(strategy, rate.shown(",.0f")) for strategy, rate in rates.items()]))
    met = all(rate.median >= TARGET for rate in rates.values())
    print(verdict(f"at least {TARGET:,} a second", met=met))
    print(json_line("codes", {"codes_a_second": {strategy: rate.as_json() for strategy, rate in rates.items()}}))


def _make(source: CodeSource) -> float:
    ids = Snowflakes(0)
    begun = time.perf_counter()
    made = {source(ids.next()) for _ in range(CODES)}
    seconds = time.perf_counter() - begun
    # Of 100,000 random codes two are the same about once in 700 runs.
    if len(made) < CODES - 2:
        raise RuntimeError(f"only {len(made):,} of {CODES:,} codes are different")
    return CODES / seconds
