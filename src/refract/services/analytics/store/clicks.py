"""Clicks, totals and milestones: rows that the reader of clicks writes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.dimensions import DIMENSIONS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_KNOWN = ("occurred_at", "latitude", "longitude", "bot", "event_id", "short_code", "visitor")
_TEXTS = ("ip_anonymized", "user_agent", *DIMENSIONS)
CLICK_COLUMNS = ("clicked_at", *_KNOWN[1:], *_TEXTS)

_known_of = attrgetter(*_KNOWN)
_texts_of = attrgetter(*_TEXTS)


async def add_clicks(tx: Transaction, clicks: Iterable[Click]) -> None:
    """Keep clicks as they came."""
    rows = [(*_known_of(click), *[text or None for text in _texts_of(click)]) for click in clicks]
    await tx.insert_many("clicks", CLICK_COLUMNS, rows)


# Moments as microseconds since 1970, which JSON can carry; in two steps, because the product of a year far ahead would
# not be exact.
_MOMENT = "timestamptz 'epoch' + {0} / 1000000 * interval '1 second' + {0} % 1000000 * interval '1 microsecond'".format

ADD_TOTALS = Statement(
    "add_totals",
    "Adds clicks to the totals of links, in the order of the document; returns how many each has now.",
    f"""
    INSERT INTO totals (short_code, clicks, bot_clicks, first_clicked_at, last_clicked_at)
    SELECT short_code, clicks, bot_clicks, {_MOMENT("first")}, {_MOMENT("last")}
    FROM json_to_recordset(:totals) AS document
        (short_code text, clicks bigint, bot_clicks bigint, first bigint, last bigint)
    ON CONFLICT (short_code) DO UPDATE SET
        clicks = totals.clicks + excluded.clicks, bot_clicks = totals.bot_clicks + excluded.bot_clicks,
        first_clicked_at = least(totals.first_clicked_at, excluded.first_clicked_at),
        last_clicked_at = greatest(totals.last_clicked_at, excluded.last_clicked_at)
    RETURNING short_code, clicks
    """,  # noqa: S608  # names, not values
    sqlite="""
    INSERT INTO totals (short_code, clicks, bot_clicks, first_clicked_at, last_clicked_at)
    SELECT value ->> 'short_code', value ->> 'clicks', value ->> 'bot_clicks', value ->> 'first', value ->> 'last'
    FROM json_each(:totals) WHERE true
    ON CONFLICT (short_code) DO UPDATE SET
        clicks = totals.clicks + excluded.clicks, bot_clicks = totals.bot_clicks + excluded.bot_clicks,
        first_clicked_at = min(totals.first_clicked_at, excluded.first_clicked_at),
        last_clicked_at = max(totals.last_clicked_at, excluded.last_clicked_at)
    RETURNING short_code, clicks
    """,
)


async def add_totals(tx: Transaction, by_code: Mapping[str, Sequence[Click]]) -> dict[str, int]:
    """Add clicks to the totals of their links, and lock these until the end; returns the new total of each."""
    document = []
    for short_code in sorted(by_code):  # so that two who count the same links wait for each other in one order
        clicks = by_code[short_code]
        moments = [click.occurred_at for click in clicks]
        document.append(
            {
                "short_code": short_code,
                "clicks": len(clicks),
                "bot_clicks": sum([click.bot for click in clicks]),
                "first": (min(moments) - _EPOCH) // _MICROSECOND,
                "last": (max(moments) - _EPOCH) // _MICROSECOND,
            }
        )
    return {row["short_code"]: row["clicks"] for row in await tx.fetch(ADD_TOTALS, totals=document)}


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose link it is; nobody's, where the account is gone."""

    user_id: str
    user_email: str


_FORGOTTEN = "EXISTS (SELECT 1 FROM forgotten_users WHERE forgotten_users.user_id = {0})".format

# The look at the forgotten users is a part of the statement that writes, as in commands/following.py.
ADD_LINKS = Statement(
    "add_links",
    "Keeps the owners of links of which only clicks are known so far.",
    f"""
    INSERT INTO links (short_code, user_id, user_email)
    SELECT short_code,
        CASE WHEN {_FORGOTTEN("document.user_id")} THEN '' ELSE user_id END,
        CASE WHEN {_FORGOTTEN("document.user_id")} THEN '' ELSE user_email END
    FROM json_to_recordset(:links) AS document (short_code text, user_id text, user_email text)
    ON CONFLICT (short_code) DO NOTHING
    """,  # noqa: S608  # names, not values
    sqlite=f"""
    INSERT INTO links (short_code, user_id, user_email)
    SELECT value ->> 'short_code',
        CASE WHEN {_FORGOTTEN("value ->> 'user_id'")} THEN '' ELSE value ->> 'user_id' END,
        CASE WHEN {_FORGOTTEN("value ->> 'user_id'")} THEN '' ELSE value ->> 'user_email' END
    FROM json_each(:links) WHERE true
    ON CONFLICT (short_code) DO NOTHING
    """,  # noqa: S608
)

FIND_OWNERS = Statement(
    "find_owners",
    "Reads whose links these are.",
    "SELECT short_code, user_id, user_email FROM links WHERE short_code = ANY(:short_codes)",
    sqlite="""
    SELECT short_code, user_id, user_email FROM links
    WHERE short_code IN (SELECT value FROM json_each(:short_codes))
    """,
)


async def add_links(tx: Transaction, owners: Mapping[str, Owner]) -> None:
    """Keep the owners of links that are not known yet."""
    if owners:
        links: list[dict[str, Any]] = [
            {"short_code": code, "user_id": owners[code].user_id, "user_email": owners[code].user_email}
            for code in sorted(owners)
        ]
        await tx.execute(ADD_LINKS, links=links)


async def find_owners(tx: Transaction, short_codes: Iterable[str]) -> dict[str, Owner]:
    """Whose links these are, as far as it is known."""
    rows = await tx.fetch(FIND_OWNERS, short_codes=sorted(short_codes))
    return {row["short_code"]: Owner(row["user_id"], row["user_email"]) for row in rows}


ADD_MILESTONES = Statement(
    "add_milestones",
    "Records that links reached milestones; returns those that were not recorded.",
    """
    INSERT INTO milestones (short_code, milestone, triggered_at) SELECT short_code, milestone, :now
    FROM json_to_recordset(:milestones) AS document (short_code text, milestone bigint)
    ON CONFLICT (short_code, milestone) DO NOTHING RETURNING short_code, milestone
    """,
    sqlite="""
    INSERT INTO milestones (short_code, milestone, triggered_at)
    SELECT value ->> 'short_code', value ->> 'milestone', :now FROM json_each(:milestones) WHERE true
    ON CONFLICT (short_code, milestone) DO NOTHING RETURNING short_code, milestone
    """,
)


async def add_milestones(tx: Transaction, milestones: Iterable[tuple[str, int]], now: datetime) -> set[tuple[str, int]]:
    """Record milestones of links; returns those that were not recorded before."""
    document = [{"short_code": code, "milestone": milestone} for code, milestone in sorted(milestones)]
    rows = await tx.fetch(ADD_MILESTONES, milestones=document, now=now)
    return {(row["short_code"], row["milestone"]) for row in rows}
