"""What it costs to enrich a click whose words were seen before, and one whose words are all new."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.timing import microseconds
from benchmarks.workshop import Workshop
from refract.kernel.clock import SystemClock
from refract.kernel.events import EventDecoder, encode_batch
from refract.runtime.metrics import Metrics
from refract.services.analytics.adapters.agents import Agents
from refract.services.analytics.adapters.enriching import Enricher
from refract.services.analytics.adapters.geography import Geography
from refract.services.links.api import UrlClicked
from tests.support.maps import BERLIN, write_map

CLICKS, BATCH = 20_000, 500
NETWORKS, AGENTS, REFERERS = 2_000, 200, 100
TARGET_MICROSECONDS = 3.0
HOT, COLD, CITIES = "all words seen before", "all words new", "all words new, with a database of cities"

_DECODER = EventDecoder(UrlClicked)
_BROWSER = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{} Safari/537.36"


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    rounds = workshop.options.rounds
    print(f"enriching: {CLICKS:,} clicks in batches of {BATCH}, {rounds} rounds; processor time")
    seen: dict[str, list[float]] = {}
    with _cities() as cities:
        for _ in range(rounds):
            seen.setdefault("reading the lists", []).append(microseconds(lambda _: Agents(), [None]))
            for name, path in ((COLD, None), (CITIES, cities), (HOT, None)):
                seen.setdefault(name, []).append(_enrich(path, is_new=name is not HOT))
    figures = {name: Rounds.of(values) for name, values in seen.items()}
    print(table(("", "µs each"), [(name, figure.shown()) for name, figure in figures.items()]))
    met = figures[HOT].median < TARGET_MICROSECONDS
    print(verdict(f"{HOT}: under {TARGET_MICROSECONDS:g} µs a click", met=met))
    print(json_line("enriching", {"us": {name: figure.as_json() for name, figure in figures.items()}}))


def _enrich(cities: Path | None, *, is_new: bool) -> float:
    """Microseconds a click, whose words were never said before, or all."""
    enricher = Enricher(Geography(cities, SystemClock()), Metrics())
    first, *batches = _batches(is_new=is_new)
    enricher.enrich(first, datetime.now(UTC))
    if not is_new:
        for batch in batches:
            enricher.enrich(batch, datetime.now(UTC))
    return microseconds(lambda batch: enricher.enrich(batch, datetime.now(UTC)), batches) / BATCH


def _batches(*, is_new: bool) -> list[list[UrlClicked]]:
    """As the reader gets them: decoded from the wire, so that no two texts are the same object."""
    batches = []
    for begin in range(0, CLICKS + BATCH, BATCH):
        body = encode_batch(_click(number, is_new=is_new) for number in range(begin, begin + BATCH))
        batches.append(
            [event for event in _DECODER.decode(UrlClicked.routing_key(), body) if isinstance(event, UrlClicked)]
        )
    return batches


def _click(number: int, *, is_new: bool) -> UrlClicked:
    agent, page, network = (number if is_new else number % size for size in (AGENTS, REFERERS, NETWORKS))
    return UrlClicked(
        short_code=f"code{number % 50:03}",
        user_id="0190f5a0-0000-7000-8000-000000000001",
        user_email="somebody@example.com",
        ip_hash=f"{number:064x}",
        user_agent=_BROWSER.format(f"{100 + agent % 30}.0.{agent}.0"),
        ip_anonymized=f"{1 + network % 200}.{network // 200 % 250}.{network // 50_000}.0",
        referer=f"https://news.example/{page}",
        query=f"utm_source=letter&utm_campaign={page}" if number % 4 == 0 else "",
        accept_language="de-CH,de;q=0.9,en;q=0.8",
        occurred_at=datetime.now(UTC),
        event_id=f"0190f5a0-0000-7000-8000-{number:012}",
        correlation_id=f"0190f5a0-0000-7000-9000-{number:012}",
    )


@contextmanager
def _cities() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="refract-bench-") as folder:
        yield write_map(Path(folder) / "cities.mmdb", {f"{octet}.0.0.0/9": BERLIN for octet in range(1, 201)})
