"""Rows to links and back."""

from collections.abc import Sequence
from typing import Any

from refract.kernel.errors import NotFound
from refract.runtime.ports import Reads, Row, Transaction
from refract.runtime.statements import Statement
from refract.services.links.domain.link import Link, Status

COLUMNS = (
    "id",
    "short_code",
    "original_url",
    "workspace_id",
    "created_by",
    "owner_email",
    "title",
    "notes",
    "status",
    "redirect_status",
    "stats_public",
    "created_at",
    "updated_at",
    "expires_at",
    "version",
    "url_key",
    "total_clicks",
    "last_clicked_at",
)

_LIST = ", ".join(COLUMNS)
_PARAMETERS = ", ".join(f":{column}" for column in COLUMNS)

INSERT_LINK = Statement(
    "insert_link",
    "Keeps a new link; a code or a URL that is taken is a UniqueViolation.",
    f"INSERT INTO links ({_LIST}) VALUES ({_PARAMETERS})",  # noqa: S608  # names, not values
)

TAGS_OF = "(SELECT json_agg(tag ORDER BY tag) FROM link_tags WHERE link_id = links.id) AS tags"
TAGS_OF_SQLITE = (
    "(SELECT json_group_array(tag) FROM (SELECT tag FROM link_tags WHERE link_id = links.id ORDER BY tag)) "
    'AS "tags [JSONTEXT]"'
)

FIND_LINK = Statement(
    "find_link",
    "Reads a link and locks it until the transaction ends.",
    f"SELECT {_LIST}, {TAGS_OF} FROM links WHERE short_code = :short_code FOR UPDATE",  # noqa: S608
    sqlite=f"SELECT {_LIST}, {TAGS_OF_SQLITE} FROM links WHERE short_code = :short_code",  # noqa: S608
)

SAVE_LINK = Statement(
    "save_link",
    "Writes what can change of a link.",
    """
    UPDATE links SET original_url = :original_url, title = :title, notes = :notes, status = :status,
        redirect_status = :redirect_status, stats_public = :stats_public, updated_at = :updated_at,
        expires_at = :expires_at, version = :version, url_key = :url_key
    WHERE id = :id
    """,
)

REMOVE_TAGS = Statement("remove_tags", "Takes all tags off a link.", "DELETE FROM link_tags WHERE link_id = :link_id")


class Links:
    """The links of this database, inside the caller's transaction."""

    async def add(self, tx: Transaction, link: Link) -> None:
        """Keep a new link; raises UniqueViolation with the name of the index."""
        await tx.execute(INSERT_LINK, **parameters_of(link))
        await self._add_tags(tx, link)

    async def get(self, tx: Transaction, short_code: str) -> Link:
        """The link with this code, locked, or NotFound."""
        row = await tx.fetch_one(FIND_LINK, short_code=short_code)
        if row is None:
            raise NotFound
        return link_of(row)

    async def save(self, tx: Transaction, before: Link, after: Link) -> None:
        """Write a link that has changed."""
        parameters = parameters_of(after)
        names = SAVE_LINK.for_postgresql()[1]
        await tx.execute(SAVE_LINK, **{name: parameters[name] for name in names})
        if before.tags != after.tags:
            await tx.execute(REMOVE_TAGS, link_id=after.id)
            await self._add_tags(tx, after)

    async def _add_tags(self, tx: Transaction, link: Link) -> None:
        if link.tags:
            rows = [(link.workspace_id, tag, link.id) for tag in link.tags]
            await tx.insert_many("link_tags", ("workspace_id", "tag", "link_id"), rows)


def parameters_of(link: Link) -> dict[str, Any]:
    """A link as the parameters of a statement that names COLUMNS."""
    parameters = {column: getattr(link, column) for column in COLUMNS}
    parameters["status"] = link.status.value
    return parameters


def link_of(row: Row) -> Link:
    """The link of a row with COLUMNS and, if it has them, tags."""
    fields = {column: row[column] for column in COLUMNS}
    fields["status"] = Status(row["status"])
    tags: Sequence[str] | None = row.get("tags")
    return Link(**fields, tags=tuple(tags or ()))


async def find_by_key(reads: Reads, workspace_id: str, url_key: bytes) -> Link | None:
    """The link that stands for a URL in a workspace."""
    row = await reads.fetch_one(FIND_BY_KEY, workspace_id=workspace_id, url_key=url_key)
    return None if row is None else link_of(row)


FIND_BY_KEY = Statement(
    "find_by_key",
    "Reads the link that stands for a URL.",
    f"SELECT {_LIST}, {TAGS_OF} FROM links WHERE workspace_id = :workspace_id AND url_key = :url_key",  # noqa: S608
    sqlite=f"SELECT {_LIST}, {TAGS_OF_SQLITE} FROM links "  # noqa: S608
    "WHERE workspace_id = :workspace_id AND url_key = :url_key",
)
