"""Clicks that never happened: the same in every run of a day, with visitors who come back, pages and campaigns."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.dimensions import DIMENSIONS
from refract.services.analytics.store.clicks import CLICK_COLUMNS

HOTTEST = 0.08
"""The share of all clicks that one link has: 800,000 of ten million."""

SEED = 7
VISITORS, PAGES, CITIES, CAMPAIGNS = 400_000, 3_000, 1_500, 60
_SITES = 300
_HOURS = 24
_MICROSECONDS = 1_000_000

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

_OWN = ("clicked_at", "event_id", "short_code")
_OF_PAGE = ("referer", "referrer")
_OF_CAMPAIGN = tuple(name for name in DIMENSIONS if name.startswith("utm_"))
_OF_VISITOR = tuple(name for name in CLICK_COLUMNS if name not in {*_OWN, *_OF_PAGE, *_OF_CAMPAIGN})
LINE_COLUMNS = (*_OWN, *_OF_PAGE, *_OF_CAMPAIGN, *_OF_VISITOR)
"""The columns of a line, in its order: those that clicks share stand together, and are written down once."""


class Hour(NamedTuple):
    """The clicks of an hour in the order of time: by link, and as the lines that PostgreSQL reads."""

    start: datetime
    by_code: dict[str, list[Click]]
    lines: list[str]


class _Page(NamedTuple):
    referer: str
    referrer: str
    text: str

    @classmethod
    def make(cls, number: int) -> "_Page":
        """The page with this number; the first one is none at all."""
        site = f"site{number % _SITES}.example"
        values = (f"https://{site}/articles/{number}", site) if number else ("", "")
        return cls(*values, _text(values))


class _Campaign(NamedTuple):
    source: str
    medium: str
    name: str
    text: str

    @classmethod
    def make(cls, number: int) -> "_Campaign":
        """One click of four comes from a campaign."""
        values = ("letter", "mail", f"week-{number}") if number < CAMPAIGNS else ("", "", "")
        return cls(*values, _text((*values, "", "")))


class _Visitor(NamedTuple):
    """Somebody, or something, with a browser and a place."""

    visitor: bytes
    ip_anonymized: str
    user_agent: str
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
    text: str = ""

    @classmethod
    def make(cls, chance: random.Random, number: int) -> "_Visitor":
        """The visitor with this number."""
        place = int(CITIES * chance.random() ** 2)
        bot = chance.random() < 0.08
        made = cls(
            visitor=chance.randbytes(32),
            ip_anonymized=f"{1 + number % 220}.{number // 220 % 250}.{number % 7}.0",
            user_agent=_AGENT.format(100 + number % 42),
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
        return made._replace(text=_text([getattr(made, name) for name in _OF_VISITOR]))


@dataclass(frozen=True)
class Plan:
    """What is made: so many clicks of these links on these days, as far as their hours are over now."""

    codes: Sequence[str]
    """The first one is the hottest."""
    clicks: int
    days: Sequence[datetime]
    now: datetime
    visitors: int = VISITORS


class Maker:
    """Makes the clicks of a day, hour by hour."""

    def __init__(self, plan: Plan) -> None:
        chance = random.Random(SEED)
        self._plan = plan
        self._weights = list(accumulate(_weights(len(plan.codes))))
        self._visitors = [_Visitor.make(chance, number) for number in range(plan.visitors)]
        self._pages = [_Page.make(number) for number in range(PAGES + 1)]
        self._campaigns = [_Campaign.make(number) for number in range(4 * CAMPAIGNS)]

    def day(self, day: datetime) -> Iterator[Hour]:
        """The hours of a day that are over."""
        chance = random.Random(f"{SEED} {day:%Y%m%d}")
        shares = [1 + 0.8 * math.sin((hour - 8) / _HOURS * 2 * math.pi) for hour in range(_HOURS)]
        daily = self._plan.clicks / len(self._plan.days)
        for number, share in enumerate(shares):
            start = day + timedelta(hours=number)
            if start + timedelta(hours=1) > self._plan.now:
                return
            yield self._hour(chance, start, round(daily * share / sum(shares)))

    def _hour(self, chance: random.Random, start: datetime, count: int) -> Hour:
        hour = Hour(start, {}, [])
        draw, by_code, lines = chance.random, hour.by_code, hour.lines
        begun = f"{start:%Y-%m-%d %H}"
        moments = sorted([int(3600 * _MICROSECONDS * draw()) for _ in range(count)])
        codes = chance.choices(self._plan.codes, cum_weights=self._weights, k=count)
        for code, moment in zip(codes, moments, strict=True):
            visitor = self._visitors[int(len(self._visitors) * draw() ** 2)]
            page = self._pages[int((PAGES + 1) * draw() ** 2)]
            campaign = self._campaigns[int(4 * CAMPAIGNS * draw())]
            event_id = _event_id(chance)
            by_code.setdefault(code, []).append(_click(event_id, code, start, moment, visitor, page, campaign))
            seconds, microseconds = divmod(moment, _MICROSECONDS)
            lines.append(
                f"{begun}:{seconds // 60:02}:{seconds % 60:02}.{microseconds:06}+00\t{event_id}\t{code}\t"
                f"{page.text}\t{campaign.text}\t{visitor.text}\n"
            )
        return hour


def _click(
    event_id: str, code: str, start: datetime, moment: int, visitor: _Visitor, page: _Page, campaign: _Campaign
) -> Click:
    return Click(
        event_id=event_id,
        short_code=code,
        user_id="",
        user_email="",
        occurred_at=start + timedelta(microseconds=moment),
        visitor=visitor.visitor,
        ip_anonymized=visitor.ip_anonymized,
        user_agent=visitor.user_agent,
        referer=page.referer,
        referrer=page.referrer,
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
        utm_source=campaign.source,
        utm_medium=campaign.medium,
        utm_campaign=campaign.name,
    )


def _event_id(chance: random.Random) -> str:
    """As long as a real one."""
    digits = f"{chance.getrandbits(128):032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _weights(count: int) -> list[float]:
    """One link has its share, and the rest is as unequal as links are."""
    tail = [1 / (place + 10) ** 0.8 for place in range(count - 1)]
    return [HOTTEST / (1 - HOTTEST) * sum(tail), *tail]


def _text(values: Sequence[object]) -> str:
    """Columns of a line as COPY reads them; none of ours has a character that it takes for another."""
    return "\t".join(_column(value) for value in values)


def _column(value: object) -> str:
    match value:
        case "":
            return r"\N"
        case bytes():
            return rf"\\x{value.hex()}"
        case bool():
            return "t" if value else "f"
        case _:
            return str(value)
