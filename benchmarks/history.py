"""Months of clicks in a database of analytics: clicks and hours as ingest writes them, folded by the product itself."""

import asyncio
import math
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

import asyncpg
import uvloop

from benchmarks.links import EMAIL, OWNER, seed_links
from benchmarks.services import execute
from refract.kernel.clock import SystemClock
from refract.runtime.distributed.database import PostgresDatabase
from refract.services.analytics.commands.expiring import Expiry
from refract.services.analytics.commands.folding import Folding
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.periods import DAY, HOUR, MONTH, start_of
from refract.services.analytics.domain.rollups import COLUMNS, row_with
from refract.services.analytics.settings import AnalyticsSettings
from refract.services.analytics.store.clicks import CLICK_COLUMNS
from refract.services.analytics.store.expiry import make_partition

LINKS = 5_000
DAYS = 60
HOTTEST = 0.08
"""The share of all clicks that one link has: 800,000 of ten million."""

SEED = 7
VISITORS, PAGES, CITIES, CAMPAIGNS = 400_000, 3_000, 1_500, 60
WORKERS = 2
PART = 20_000
"""Rows that are copied at a time."""

_ROLLUP_COLUMNS = ("short_code", "span", "starts_at", *COLUMNS)
_COUNTRIES = ("US", "DE", "GB", "FR", "BR", "IN", "JP", "CA", "PL", "NL", "ES", "IT", "SE", "CH", "AT", "AU")
_BROWSERS = (
    "Chrome 141",
    "Chrome 140",
    "Safari 18",
    "Firefox 143",
    "Edge 141",
    "Chrome Mobile 141",
    "Mobile Safari 18",
)
_SYSTEMS = ("Windows 10", "Mac OS X 10", "iOS 18", "Android 15", "Linux")
_LANGUAGES = ("en", "de", "fr", "pt", "ja", "pl", "nl", "es")
_AGENT = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.0.0 Safari/537.36"
)


@dataclass(frozen=True)
class History:
    """What was made, and how long each part of it took."""

    codes: Sequence[str]
    clicks: int
    hottest: int
    seconds: dict[str, float]
    bytes_raw: int
    bytes_rolled_up: int
    rows: dict[str, int]


def make_history(dsn: str, clicks: int) -> History:
    """Fill a database that has its tables."""
    codes = [link.short_code for link in seed_links(LINKS)]
    seconds = {}
    begun = time.monotonic()
    asyncio.run(_make_partitions(dsn))
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(WORKERS) as pool:
        pool.starmap(_write_days, [(dsn, codes, clicks, number) for number in range(WORKERS)])
    asyncio.run(_sum_up(dsn))
    seconds["written"] = time.monotonic() - begun
    seconds |= uvloop.run(_keep_house(dsn))
    return asyncio.run(_described(dsn, codes, seconds))


def days() -> list[datetime]:
    """The days that have clicks, the last one being today as far as it has gone."""
    today = start_of(datetime.now(UTC), DAY)
    return [today - timedelta(days=back) for back in reversed(range(DAYS))]


async def _make_partitions(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for day in days():
            end = day + timedelta(days=1)
            for statement in make_partition(f"clicks_{day:%Y%m%d}", day.isoformat(), end.isoformat()):
                await connection.execute(statement.sql)
    finally:
        await connection.close()


def _write_days(dsn: str, codes: Sequence[str], clicks: int, number: int) -> None:
    """Every second day, or third, by the number of the worker."""
    uvloop.run(_write(dsn, _Maker(codes, clicks), days()[number::WORKERS]))


async def _write(dsn: str, maker: "_Maker", some_days: Sequence[datetime]) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SET synchronous_commit = off")
        for day in some_days:
            raw: list[tuple[object, ...]] = []
            hours: list[tuple[object, ...]] = []
            for groups in maker.day(day):
                for code, group in groups.items():
                    row = row_with(group, HOUR, None, whole=True)
                    hours.append((code, HOUR, start_of(group[0].occurred_at, HOUR), *(row[name] for name in COLUMNS)))
                    raw.extend(map(_raw_row, group))
                await _copy(connection, "clicks", CLICK_COLUMNS, raw, at_least=PART)
                await _copy(connection, "rollups", _ROLLUP_COLUMNS, hours, at_least=PART)
            await _copy(connection, "clicks", CLICK_COLUMNS, raw)
            await _copy(connection, "rollups", _ROLLUP_COLUMNS, hours)
    finally:
        await connection.close()


async def _copy(
    connection: "asyncpg.Connection[asyncpg.Record]",
    table: str,
    columns: Sequence[str],
    rows: list[tuple[object, ...]],
    *,
    at_least: int = 1,
) -> None:
    if len(rows) >= at_least:
        await connection.copy_records_to_table(table, columns=columns, records=rows)
        rows.clear()


_NAMES = ("occurred_at", *CLICK_COLUMNS[1:])


def _raw_row(click: Click) -> tuple[object, ...]:
    return tuple([None if (value := getattr(click, name)) == "" else value for name in _NAMES])


class _Maker:
    """Makes the clicks of a day, hour by hour, the same in every run of the same day."""

    def __init__(self, codes: Sequence[str], clicks: int) -> None:
        chance = random.Random(SEED)
        self._codes = codes
        self._weights = list(accumulate(_weights(len(codes))))
        self._daily = clicks / DAYS
        self._visitors = [_Visitor.make(chance, number) for number in range(VISITORS)]
        self._pages = ["", *(f"https://site{number % 300}.example/articles/{number}" for number in range(PAGES))]

    def day(self, day: datetime) -> Iterator[dict[str, list[Click]]]:
        """By hour, and in it by link."""
        chance = random.Random(f"{SEED} {day:%Y%m%d}")
        now = datetime.now(UTC)
        shares = [1 + 0.8 * math.sin((hour - 8) / 24 * 2 * math.pi) for hour in range(24)]
        for hour, share in enumerate(shares):
            begin = day + timedelta(hours=hour)
            if begin + timedelta(hours=1) > now:
                return
            count = round(self._daily * share / sum(shares))
            drawn = Counter(chance.choices(self._codes, cum_weights=self._weights, k=count))
            yield {
                code: [
                    self._click(chance, code, begin, f"{hour:02}-{place}-{code}-{day:%y%m%d}")
                    for place in range(clicks)
                ]
                for code, clicks in drawn.items()
            }

    def _click(self, chance: random.Random, code: str, hour: datetime, number: str) -> Click:
        visitor = self._visitors[int(VISITORS * chance.random() ** 2)]
        page = int((PAGES + 1) * chance.random() ** 2)
        campaign = int(4 * CAMPAIGNS * chance.random())
        has_campaign = campaign < CAMPAIGNS
        return Click(
            event_id=number,
            short_code=code,
            user_id="",
            user_email="",
            occurred_at=hour + timedelta(microseconds=int(3_600_000_000 * chance.random())),
            visitor=visitor.hash,
            ip_anonymized=visitor.address,
            user_agent=visitor.agent,
            referer=self._pages[page],
            referrer=f"site{(page - 1) % 300}.example" if page else "",
            country=visitor.country,
            region=visitor.region,
            city=visitor.city,
            latitude=visitor.latitude,
            longitude=visitor.longitude,
            browser=visitor.browser,
            os=visitor.os,
            device=visitor.device,
            bot=visitor.bot,
            language=visitor.language,
            utm_source="letter" if has_campaign else "",
            utm_medium="mail" if has_campaign else "",
            utm_campaign=f"week-{campaign}" if has_campaign else "",
        )


class _Visitor(NamedTuple):
    """Somebody, or something, with a browser and a place."""

    hash: bytes
    address: str
    agent: str
    country: str
    region: str
    city: str
    latitude: float
    longitude: float
    browser: str
    os: str
    device: str
    bot: bool
    language: str

    @classmethod
    def make(cls, chance: random.Random, number: int) -> "_Visitor":
        """The visitor with this number."""
        place = int(CITIES * chance.random() ** 2)
        bot = chance.random() < 0.08
        return cls(
            hash=random.Random(number).randbytes(32),
            address=f"{1 + number % 220}.{number // 220 % 250}.{number % 7}.0",
            agent=_AGENT.format(100 + number % 42),
            country=_COUNTRIES[place % len(_COUNTRIES)],
            region=f"Region {place % 200}",
            city=f"City {place}",
            latitude=place / 20,
            longitude=place / 10,
            browser=_BROWSERS[number % len(_BROWSERS)],
            os=_SYSTEMS[number % len(_SYSTEMS)],
            device="bot" if bot else ("desktop", "mobile", "tablet")[number % 3],
            bot=bot,
            language=_LANGUAGES[number % len(_LANGUAGES)],
        )


def _weights(count: int) -> list[float]:
    """One link has its share, and the rest is as unequal as links are."""
    tail = [1 / (place + 10) ** 0.8 for place in range(count - 1)]
    return [HOTTEST / (1 - HOTTEST) * sum(tail), *tail]


async def _sum_up(dsn: str) -> None:
    connection = await asyncpg.connect(dsn, command_timeout=900)
    try:
        await connection.execute(
            """
            INSERT INTO totals (short_code, clicks, bot_clicks, first_clicked_at, last_clicked_at)
            SELECT short_code, count(*), count(*) FILTER (WHERE bot), min(clicked_at), max(clicked_at)
            FROM clicks GROUP BY short_code
            """
        )
        await connection.execute(
            "INSERT INTO links (short_code, user_id, user_email) SELECT short_code, $1, $2 FROM totals", OWNER, EMAIL
        )
        await connection.execute("ANALYZE")
    finally:
        await connection.close()


async def _keep_house(dsn: str) -> dict[str, float]:
    """What the product does by itself, once a minute."""
    settings, clock = AnalyticsSettings(), SystemClock()
    database = await PostgresDatabase.open(dsn, service="bench")
    try:
        begun = time.monotonic()
        await Folding(database, clock, clicks_kept=settings.clicks_kept).fold()
        folded = time.monotonic()
        kept = {HOUR: settings.hours_kept, DAY: settings.days_kept, MONTH: settings.months_kept}
        await Expiry(database, clock, kept).expire()
        return {"folded": folded - begun, "expired": time.monotonic() - folded}
    finally:
        await database.close()


async def _described(dsn: str, codes: Sequence[str], seconds: dict[str, float]) -> History:
    await execute(dsn, "VACUUM (FULL, ANALYZE) rollups")
    await execute(dsn, "VACUUM ANALYZE")
    connection = await asyncpg.connect(dsn, command_timeout=300)
    try:
        clicks = await connection.fetchval("SELECT sum(clicks)::bigint FROM totals")
        hottest = await connection.fetchval("SELECT max(clicks) FROM totals")
        raw = await connection.fetchval(
            "SELECT sum(pg_total_relation_size(inhrelid))::bigint FROM pg_inherits WHERE inhparent = 'clicks'::regclass"
        )
        rolled_up = await connection.fetchval("SELECT pg_total_relation_size('rollups')")
        spans = await connection.fetch("SELECT span::text, count(*) AS rows FROM rollups GROUP BY span ORDER BY span")
    finally:
        await connection.close()
    return History(codes, clicks, hottest, seconds, raw, rolled_up, {row["span"]: row["rows"] for row in spans})
