"""The statements of the list: one for each combination of filters and order, so that each keeps to its index."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from refract.runtime.statements import Statement
from refract.services.links.domain.link import Status
from refract.services.links.queries.paging import PageRequest, Sort
from refract.services.links.store import TAGS_OF, TAGS_OF_SQLITE

TRIGRAM = 3

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

_WILD = frozenset("*?[")
_LARGE = {"ß": "\N{LATIN CAPITAL LETTER SHARP S}"}  # of which str.upper() makes two letters

_TAGGED = (
    " JOIN link_tags ON link_tags.link_id = links.id AND link_tags.workspace_id = :workspace_id "
    "AND link_tags.tag = :tag"
)

_STATUS = {
    # By what counts: a link whose time is over is expired, whether or not the sweep has marked it.
    Status.ACTIVE: "links.status = 'active' AND (links.expires_at IS NULL OR links.expires_at > :now)",
    Status.EXPIRED: "(links.status = 'expired' OR (links.status = 'active' AND links.expires_at <= :now))",
    Status.DISABLED: "links.status = 'disabled'",
    Status.DELETED: "links.status = 'deleted'",
}

TextFilter = Literal["none", "short", "long"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a request changes the text of its statement."""

    sort: Sort
    text: TextFilter
    tagged: bool
    status: Status | None

    @classmethod
    def of(cls, request: PageRequest) -> "Shape":
        """The shape of a request. Fewer letters than a trigram has are in no index of trigrams."""
        text: TextFilter = "none"
        if request.text:
            text = "long" if len(request.text) >= TRIGRAM else "short"
        return cls(request.sort, text, bool(request.tag), request.status)


@cache  # there are not more than sixty shapes
def page_statement(shape: Shape) -> Statement:
    """The statement of a shape. It takes all parameters of `page_parameters`, whichever of them it names."""
    return Statement("page_of_links", "Reads a page of a workspace's links.", _postgresql(shape), _sqlite(shape))


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
        "spellings": f"*{''.join(map(_spelled, request.text[:TRIGRAM]))}*",  # a longer one is not asked for
    }


def _postgresql(shape: Shape) -> str:
    conditions: dict[TextFilter, list[str]] = {
        "none": [],
        # Not LIKE, which would tempt the planner to read the whole index of trigrams.
        "short": [f"strpos({_SEARCHED}, lower(:text)) > 0"],
        "long": [f"{_SEARCHED} LIKE lower(:pattern)"],
    }
    walks = shape.tagged or shape.status is not Status.EXPIRED  # which are marked or not, in two indexes
    if shape.sort is Sort.CREATED and shape.text != "long" and walks:
        return _walk(shape, conditions[shape.text])
    key = "link_tags.link_id" if shape.tagged else "links.id"
    return _page(shape, "links" + (_TAGGED if shape.tagged else ""), key, conditions[shape.text], TAGS_OF)


def _sqlite(shape: Shape) -> str:
    conditions: dict[TextFilter, list[str]] = {
        "none": [],
        # Its lower() knows the letters of ASCII alone; of the others the pattern names small and large ones.
        "short": [f"{_SEARCHED_SQLITE} GLOB :spellings"],
        "long": ["links_search MATCH :phrase"],
    }
    key = "link_tags.link_id" if shape.tagged else "links.id"
    source = "links"
    if shape.text == "long":
        # CROSS is SQLite's word for "in this order": the matches are walked, and not the workspace.
        key, source = "links_search.rowid", "links_search CROSS JOIN links ON links.id = links_search.rowid"
    return _page(shape, source + (_TAGGED if shape.tagged else ""), key, conditions[shape.text], TAGS_OF_SQLITE)


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
    else's links, of which there may be millions since the owner made the last one. A search is told so all the same:
    there it has to weigh the index of trigrams against the order, for which it needs to know how many links there are.
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


def _status(shape: Shape) -> list[str]:
    return [] if shape.status is None else [_STATUS[shape.status]]


def _select(tags: str, source: str, conditions: list[str], order: str) -> str:
    where = " AND ".join(conditions)
    return f"SELECT {_COLUMNS}, {tags} FROM {source} WHERE {where} ORDER BY {order} LIMIT :limit"  # noqa: S608


def _escaped(text: str) -> str:
    """A text for LIKE that stands for itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _spelled(letter: str) -> str:
    """A letter for GLOB: one of ASCII as lower() leaves it, of any other a choice of its spellings."""
    if letter.isascii():
        return f"[{letter}]" if letter in _WILD else letter.lower()
    small = letter.lower()
    found = {letter, small, small.upper(), small.title(), _LARGE.get(small, small)}
    return f"[{''.join(sorted(one for one in found if one.lower() == small and len(one) == 1))}]"
