"""The statements of the list: one for each combination of filters and order, so that each keeps to its index."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from refract.runtime.statements import Statement
from refract.services.links.domain.link import Status
from refract.services.links.queries.paging import PageRequest, Sort
from refract.services.links.store import TAGS_OF, TAGS_OF_SQLITE

LONGEST_PAGE = 2.0
"""Seconds; a page of the owner of 100,000 links takes a tenth of that (ADR 0051 has the figures)."""

TRIGRAM = 3
MANY = 2_000
"""So many links SQLite looks through in a few milliseconds; so many matches are likely to be met soon on a walk."""

MANY_TAGGED = 10_000
"""So many links of a tag PostgreSQL looks at in some 20 ms, wherever they lie."""

_COLUMNS = ", ".join(
    f"links.{name}"
    for name in (
        "id",
        "workspace_id",
        "short_code",
        "original_url",
        "title",
        "notes",
        "status",
        "redirect_status",
        "stats_public",
        "created_at",
        "updated_at",
        "expires_at",
        "total_clicks",
        "last_clicked_at",
    )
)

FIND_VIEW = Statement(
    "find_view",
    "Reads one link by its code.",
    f"SELECT {_COLUMNS}, {TAGS_OF} FROM links WHERE short_code = :short_code",  # noqa: S608  # names, not values
    sqlite=f"SELECT {_COLUMNS}, {TAGS_OF_SQLITE} FROM links WHERE short_code = :short_code",  # noqa: S608
)

# The very expression of the index links_search.
_SEARCHED = "lower(links.short_code || chr(10) || links.original_url || chr(10) || links.title)"
_SEARCHED_SQLITE = "lower(links.short_code || char(10) || links.original_url || char(10) || links.title)"

# Letters of which trigrams and patterns take the same for the same: of Latin, Cyrillic, Japanese and Chinese.
_PLAIN = re.compile("[ -~À-ÿ\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff]+")
# What patterns have to be told for it, beside the large and the small letter.
_KIN = {"k": "[k\N{KELVIN SIGN}]", "s": "[s\N{LATIN SMALL LETTER LONG S}]", "å": "[åÅ\N{ANGSTROM SIGN}]"}
_WILD = frozenset("*?[")
LONGEST_PLAIN = 64
"""Letters of a pattern, all of which SQLite may compare at every place: 2,048 take seconds for 2,000 links."""
_LARGE = {"ß": "\N{LATIN CAPITAL LETTER SHARP S}"}  # of which str.upper() makes two letters
# The same as LIKE, which would tempt the planner to read the whole index of trigrams.
_LOOKED_AT = f"strpos({_SEARCHED}, lower(:text)) > 0"

_HAS_TAG = "link_tags.workspace_id = :workspace_id AND link_tags.tag = :tag"
_TAGGED = f" JOIN link_tags ON link_tags.link_id = links.id AND {_HAS_TAG}"

_STATUS = {
    # By what counts: a link whose time is over is expired, whether or not the sweep has marked it.
    Status.ACTIVE: "links.status = 'active' AND (links.expires_at IS NULL OR links.expires_at > :now)",
    Status.EXPIRED: "(links.status = 'expired' OR (links.status = 'active' AND links.expires_at <= :now))",
    Status.DISABLED: "links.status = 'disabled'",
    Status.DELETED: "links.status = 'deleted'",
}

TextFilter = Literal["none", "short", "plain", "long"]

# The letters of a workspace's mark are one trigram, which is one more beside those of the text: what all of them have
# in common is looked for at once, and the links of others are leapt over. No text is as long as the distance. Who has
# no mark has no links, and looks for what is nowhere.
FOUND = (
    """links_search MATCH coalesce((SELECT 'NEAR("' || mark || '" ' || :phrase || ', 1000000)' """
    """FROM searched_workspaces WHERE workspace_id = :workspace_id), '""')"""
)
_LINKS = f"SELECT 1 FROM links WHERE workspace_id = :workspace_id LIMIT {MANY}"  # noqa: S608  # ours, not values
_MATCHES = f"SELECT 1 FROM links_search WHERE {FOUND} LIMIT {MANY}"  # noqa: S608
_TAGGED_LINKS = f"SELECT link_id FROM link_tags WHERE {_HAS_TAG}"  # noqa: S608
_FEW_TAGGED = f"(SELECT count(*) FROM ({_TAGGED_LINKS} LIMIT {MANY_TAGGED}) AS tagged) < {MANY_TAGGED}"  # noqa: S608
_IS_TAGGED = f"(SELECT true FROM link_tags WHERE {_HAS_TAG} AND link_tags.link_id = links.id)"  # noqa: S608
_FEW_LINKS = f"(SELECT count(*) FROM ({_LINKS})) < {MANY}"  # noqa: S608
_MANY_MATCHES = f"(SELECT count(*) FROM ({_MATCHES})) = {MANY}"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a request changes the text of its statement."""

    sort: Sort
    text: TextFilter
    tagged: bool
    status: Status | None

    @classmethod
    def of(cls, request: PageRequest) -> "Shape":
        """The shape of a request. Fewer letters than a trigram has are in no index of trigrams.

        A plain text is one that SQLite finds without its trigrams too, and the same links by both.
        """
        text: TextFilter = "none"
        if len(request.text) >= TRIGRAM:
            text = "plain" if len(request.text) <= LONGEST_PLAIN and _PLAIN.fullmatch(request.text) else "long"
        elif request.text:
            text = "short"
        return cls(request.sort, text, bool(request.tag), request.status)


@cache  # there are not more than eighty shapes
def page_statement(shape: Shape) -> Statement:
    """The statement of a shape. It takes all parameters of `page_parameters`, whichever of them it names."""
    return Statement(
        "page_of_links",
        "Reads a page of a workspace's links.",
        _postgresql(shape),
        sqlite=_sqlite(shape),
        varied=shape.text != "none" or shape.status is not None or (shape.tagged and shape.sort is Sort.CLICKS),
        longest=LONGEST_PAGE,
    )


def page_parameters(request: PageRequest) -> dict[str, str | int]:
    """The parameters of a page but for the workspace and the time; one link more than asked tells whether it ends."""
    quoted = request.text.replace('"', '""')
    return {
        "before": request.cursor.link_id,
        "clicks": request.cursor.clicks,
        "limit": request.limit + 1,
        "tag": request.tag,
        "text": request.text,
        "pattern": f"%{_escaped(request.text)}%",
        "phrase": f'"{quoted}"',
        "spellings": _spellings(request.text),
    }


def _postgresql(shape: Shape) -> str:
    by_trigrams = shape.text in ("plain", "long")
    searched = [] if shape.text == "none" else [f"{_SEARCHED} LIKE lower(:pattern)" if by_trigrams else _LOOKED_AT]
    if shape.sort is Sort.CLICKS:
        if shape.tagged:
            return _tagged_by_clicks(shape, searched)
        return _page(shape, "links", "links.id", searched, TAGS_OF)
    if shape.tagged and by_trigrams:
        return _tagged_by_creation(shape, searched)
    walks = shape.tagged or shape.status is not Status.EXPIRED  # which are marked or not, in two indexes
    return _walk(shape, searched) if walks and not by_trigrams else _weighed(shape, searched)


def _sqlite(shape: Shape) -> str:
    if shape.text == "plain":
        return _either(shape, _walked(shape), _found(shape))
    return _found(shape) if shape.text == "long" else _walked(shape)


def _walked(shape: Shape) -> str:
    """Down an index of the workspace, looking at each link."""
    # Its lower() knows the letters of ASCII alone; of the others the pattern names small and large ones.
    searched = [] if shape.text == "none" else [f"{_SEARCHED_SQLITE} GLOB :spellings"]
    key = "link_tags.link_id" if shape.tagged else "links.id"
    return _page(shape, "links" + (_TAGGED if shape.tagged else ""), key, searched, TAGS_OF_SQLITE)


def _found(shape: Shape) -> str:
    """The matches of the workspace by their trigrams."""
    # CROSS is SQLite's word for "in this order": the matches are walked, and not the workspace.
    source = "links_search CROSS JOIN links ON links.id = links_search.rowid" + (_TAGGED if shape.tagged else "")
    return _page(shape, source, "links_search.rowid", [FOUND], TAGS_OF_SQLITE)


def _either(shape: Shape, walked: str, found: str) -> str:
    """The shorter road of two, of which the other is asked for nothing.

    The trigrams leap over what lies between two links of the workspace, which costs more than to look at a few links.
    And they come in one order only: for another one, or to drop some of them, all matches have to be seen.
    """
    by_creation, walks = shape.sort is Sort.CREATED, _FEW_LINKS
    # Of other states there may be none on a walk by clicks; of what is expired by now there is no index.
    dense = shape.status in (None, Status.ACTIVE) or (by_creation and shape.status is not Status.EXPIRED)
    if dense and not (by_creation and shape.status is None and not shape.tagged):
        walks = f"CASE WHEN {_FEW_LINKS} THEN 1 ELSE {_MANY_MATCHES} END"
    order = "id DESC" if by_creation else "total_clicks DESC, id DESC"
    return (
        f"WITH road AS MATERIALIZED (SELECT {walks} AS walks) "  # noqa: S608  # ours, not values
        f"SELECT * FROM ({walked} * (SELECT walks FROM road)) UNION ALL "
        f"SELECT * FROM ({found} * (SELECT NOT walks FROM road)) ORDER BY {order}"
    )


def _page(shape: Shape, source: str, key: str, searched: list[str], tags: str) -> str:
    """One page by its keys; `key` is the id of the link in the table whose index gives the order."""
    conditions = ["links.workspace_id = :workspace_id", *searched, *_status(shape)]
    if shape.sort is Sort.CREATED:
        conditions.append(f"{key} < :before")
        order = f"{key} DESC"
    else:
        conditions.append("(links.total_clicks, links.id) < (:clicks, :before)")
        order = "links.total_clicks DESC, links.id DESC"
    return _select(tags, source, conditions, order)


def _walk(shape: Shape, searched: list[str]) -> str:
    """The same for PostgreSQL by creation, told as a walk down one index from where the last page ended.

    Told as an equality and an order by id, the planner is free to go down the primary key and pass over everybody
    else's links, of which there may be millions since the owner made the last one.
    """
    places = {"links.workspace_id": ":workspace_id"}
    source, key = "links", "links.id"
    if shape.tagged:
        places = {"link_tags.workspace_id": ":workspace_id", "link_tags.tag": ":tag"}
        source, key = "links JOIN link_tags ON link_tags.link_id = links.id", "link_tags.link_id"
    elif shape.status is not None:
        places["links.status"] = f"'{shape.status.value}'"
    columns, values = ", ".join(places), ", ".join(places.values())
    conditions = [f"({columns}, {key}) < ({values}, :before)", f"({columns}) >= ({values})", *searched, *_status(shape)]
    return _select(TAGS_OF, source, conditions, ", ".join(f"{column} DESC" for column in (*places, key)))


def _weighed(shape: Shape, searched: list[str]) -> str:
    """The same where a walk has to be weighed against another index, such as that of trigrams.

    For that the planner needs to know how many links the workspace has, which it does not of the borders of a walk. Of
    a list of one workspace it does, and unlike an equality that does not tell it that the order is one by id alone.
    """
    places = ["links.workspace_id = ANY (ARRAY[:workspace_id])", "links.id < :before"]
    return _select(TAGS_OF, "links", [*places, *searched, *_status(shape)], "links.workspace_id DESC, links.id DESC")


def _tagged_by_creation(shape: Shape, searched: list[str]) -> str:
    """Links with a tag and a text: down the tag, looking at each, and on by the index of the text where that is far.

    The newest ones fill a page at once if the text is common among them. If not, or if it is rare, the rest of the tag
    may be most of the workspace, and is asked the other way round.

    Not told as a join, here and by clicks. Of a workspace that has come since the tables were analysed the planner
    believes that it has one link and one tag, so that it does not matter how they are joined, and then reads all of one
    for each of the other.
    """
    newest = f"{_TAGGED_LINKS} AND link_tags.link_id < :before ORDER BY link_tags.link_id DESC"
    source = f"({newest} LIMIT {MANY_TAGGED}) AS newest JOIN links ON links.id = newest.link_id"
    walked = _select(TAGS_OF, source, [_LOOKED_AT, *_status(shape)], "newest.link_id DESC")
    is_short, beyond = "(SELECT count(*) FROM walked) < :limit", f"({newest} OFFSET {MANY_TAGGED - 1} LIMIT 1)"
    rest = _weighed(shape, [is_short, f"links.id < {beyond}", _IS_TAGGED, *searched])
    return (
        f"WITH walked AS MATERIALIZED ({walked}) "  # noqa: S608  # ours, not values
        f"SELECT * FROM walked UNION ALL SELECT * FROM ({rest}) AS rest ORDER BY id DESC LIMIT :limit"
    )


def _tagged_by_clicks(shape: Shape, searched: list[str]) -> str:
    """Links with a tag in an order that its index does not have: collected and put in order, where they are few; else
    looked for as without a tag, and each asked whether it has it."""
    asked = _page(shape, "links", "links.id", ["(SELECT NOT few FROM road)", _IS_TAGGED, *searched], TAGS_OF)
    # No word of the workspace, and no LIKE: there is no other index to be tempted by.
    few = ["(SELECT few FROM road)", f"links.id = ANY (ARRAY({_TAGGED_LINKS}))", *_status(shape)]
    few += ["(links.total_clicks, links.id) < (:clicks, :before)", *([_LOOKED_AT] if searched else [])]
    order = "total_clicks DESC, id DESC"
    collected = _select(TAGS_OF, "links", few, order)
    return (
        f"WITH road AS MATERIALIZED (SELECT {_FEW_TAGGED} AS few) "  # noqa: S608  # ours, not values
        f"SELECT * FROM ({asked}) AS asked UNION ALL SELECT * FROM ({collected}) AS collected ORDER BY {order}"
    )


def _status(shape: Shape) -> list[str]:
    return [] if shape.status is None else [_STATUS[shape.status]]


def _select(tags: str, source: str, conditions: list[str], order: str) -> str:
    where = " AND ".join(conditions)
    return f"SELECT {_COLUMNS}, {tags} FROM {source} WHERE {where} ORDER BY {order} LIMIT :limit"  # noqa: S608


def _escaped(text: str) -> str:
    """A text for LIKE that stands for itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _spellings(text: str) -> str:
    """A text for GLOB, anywhere; of one that is plain it finds the same as the trigrams."""
    if len(text) < TRIGRAM:
        return f"*{''.join(map(_spelled, text))}*"
    return f"*{''.join(_KIN.get(letter.lower()) or _spelled(letter) for letter in text)}*"


def _spelled(letter: str) -> str:
    """A letter for GLOB: one of ASCII as lower() leaves it, of any other a choice of its spellings."""
    if letter.isascii():
        return f"[{letter}]" if letter in _WILD else letter.lower()
    small = letter.lower()
    found = {letter, small, small.upper(), small.title(), _LARGE.get(small, small)}
    return f"[{''.join(sorted(one for one in found if one.lower() == small and len(one) == 1))}]"
