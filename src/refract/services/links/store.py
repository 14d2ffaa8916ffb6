"""Rows to links and back."""

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from refract.kernel.errors import NotFound
from refract.runtime.ports import Database, Reads, Row, Transaction
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

CODE_INDEX = "links_short_code"

INSERT_LINK = Statement(
    "insert_link",
    "Keeps a new link unless its URL has one; a code that is taken is a UniqueViolation.",
    # An error for a known URL would cost a rollback and a line in PostgreSQL's log, for what is no error.
    f"""
    INSERT INTO links ({_LIST}) VALUES ({_PARAMETERS})
    ON CONFLICT (workspace_id, url_key) WHERE url_key IS NOT NULL DO NOTHING
    """,  # noqa: S608  # names, not values
)

# In the order of code points, which is SQLite's and Python's, whatever the language of the database.
TAGS_OF = """(SELECT json_agg(tag ORDER BY tag COLLATE "C") FROM link_tags WHERE link_id = links.id) AS tags"""
TAGS_OF_SQLITE = (
    "(SELECT json_group_array(tag) FROM (SELECT tag FROM link_tags WHERE link_id = links.id ORDER BY tag)) "
    'AS "tags [JSONTEXT]"'
)

FIND_LINK = Statement(
    "find_link",
    "Reads a link and locks it until the transaction ends.",
    f"SELECT {_LIST} FROM links WHERE short_code = :short_code FOR UPDATE",  # noqa: S608
    sqlite=f"SELECT {_LIST} FROM links WHERE short_code = :short_code",  # noqa: S608
)

FIND_TAGS = Statement("find_tags", "Reads the tags of a link.", "SELECT tag FROM link_tags WHERE link_id = :link_id")

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

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOMENTS = ("created_at", "updated_at", "expires_at", "last_clicked_at")
_DIGEST = 32

# Links as one JSON document, which both engines can read. What JSON does not know goes beside it or as a number: the
# digests in one string of bytes, with `url_key` for their places, and moments in microseconds since 1970.
_FROM_DOCUMENT = {
    **{column: column for column in COLUMNS},
    # In two steps: the product of a year far ahead would not be exact.
    **{
        moment: f"timestamptz 'epoch' + {moment} / 1000000 * interval '1 second' "
        f"+ {moment} % 1000000 * interval '1 microsecond'"
        for moment in _MOMENTS
    },
    "url_key": f"substring(:digests::bytea FROM url_key FOR {_DIGEST})",
}
_FROM_DOCUMENT_SQLITE = {
    **{column: f"value ->> '{column}'" for column in COLUMNS},
    "url_key": f"substr(:digests, value ->> 'url_key', {_DIGEST})",
}

INSERT_LINKS = Statement(
    "insert_links",
    "Keeps new links, in their order, but for those whose code or URL is taken; returns which were kept.",
    f"""
    INSERT INTO links ({_LIST}) SELECT {", ".join(_FROM_DOCUMENT[column] for column in COLUMNS)}
    FROM json_to_recordset(:links) AS document (
        id bigint, short_code text, original_url text, workspace_id text, created_by text, owner_email text, title text,
        notes text, status text, redirect_status smallint, stats_public boolean, created_at bigint, updated_at bigint,
        expires_at bigint, version bigint, url_key integer, total_clicks bigint, last_clicked_at bigint
    )
    ON CONFLICT DO NOTHING RETURNING id
    """,  # noqa: S608  # names, not values
    sqlite=f"""
    INSERT INTO links ({_LIST}) SELECT {", ".join(_FROM_DOCUMENT_SQLITE[column] for column in COLUMNS)}
    FROM json_each(:links) WHERE true ORDER BY key
    ON CONFLICT DO NOTHING RETURNING id
    """,  # noqa: S608
)

REMOVE_TAGS = Statement("remove_tags", "Takes all tags off a link.", "DELETE FROM link_tags WHERE link_id = :link_id")


class Links:
    """The links of this database, inside the caller's transaction."""

    async def add(self, tx: Transaction, link: Link) -> bool:
        """Keep a new link, unless its URL has one already: False. A code that is taken is a UniqueViolation."""
        added = await tx.execute(INSERT_LINK, **parameters_of(link)) == 1
        if added:
            await self._add_tags(tx, link)
        return added

    async def add_many(self, tx: Transaction, links: Sequence[Link]) -> set[int]:
        """Keep new links but for those whose code or URL is taken; returns the ids of those kept.

        They are written in their order: two that write the same links in the same order do not block each other.
        """
        documents, digests = _documents_of(links)
        kept = {row["id"] for row in await tx.fetch(INSERT_LINKS, links=documents, digests=digests)}
        await self._add_tags(tx, *(link for link in links if link.id in kept))
        return kept

    async def get(self, tx: Transaction, short_code: str) -> Link:
        """The link with this code, locked, or NotFound."""
        row = await tx.fetch_one(FIND_LINK, short_code=short_code)
        if row is None:
            raise NotFound
        # Once the lock is held: a statement that had to wait for it would see the tags of before it waited.
        tags = await tx.fetch(FIND_TAGS, link_id=row["id"])
        return link_of({**row, "tags": sorted(tag["tag"] for tag in tags)})

    async def save(self, tx: Transaction, before: Link, after: Link) -> None:
        """Write a link that has changed."""
        parameters = parameters_of(after)
        names = SAVE_LINK.for_postgresql()[1]
        await tx.execute(SAVE_LINK, **{name: parameters[name] for name in names})
        if before.tags != after.tags:
            await tx.execute(REMOVE_TAGS, link_id=after.id)
            await self._add_tags(tx, after)

    async def _add_tags(self, tx: Transaction, *links: Link) -> None:
        rows = [(link.workspace_id, tag, link.id) for link in links for tag in link.tags]
        if rows:
            await tx.insert_many("link_tags", ("workspace_id", "tag", "link_id"), rows)


def parameters_of(link: Link) -> dict[str, Any]:
    """A link as the parameters of a statement that names COLUMNS."""
    parameters = {column: getattr(link, column) for column in COLUMNS}
    parameters["status"] = link.status.value
    return parameters


def ending_of(link: Link) -> dict[str, Any]:
    """What a statement writes that ends a link: its status, what is left of its key, its version and the moment."""
    return {
        "id": link.id,
        "status": link.status.value,
        "url_key": link.url_key,
        "version": link.version,
        "updated_at": link.updated_at,
    }


def _documents_of(links: Sequence[Link]) -> tuple[list[dict[str, Any]], bytes]:
    """Links as INSERT_LINKS takes them."""
    documents, digests = [], bytearray()
    for link in links:
        document = parameters_of(link)
        for name in _MOMENTS:
            if document[name] is not None:
                document[name] = (document[name] - _EPOCH) // _MICROSECOND
        if link.url_key is not None:
            document["url_key"] = len(digests) + 1
            digests += link.url_key
        documents.append(document)
    return documents, bytes(digests)


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


async def find_by_keys(reads: Reads, workspace_id: str, url_keys: Sequence[bytes]) -> dict[bytes, Link]:
    """The links that stand for URLs in a workspace, by the keys of those that have one."""
    rows = await reads.fetch(
        FIND_BY_KEYS,
        workspace_id=workspace_id,
        url_keys=url_keys,
        places=[place * _DIGEST + 1 for place in range(len(url_keys))],
        digests=b"".join(url_keys),
    )
    return {bytes(row["url_key"]): link_of(row) for row in rows}


FIND_BY_KEYS = Statement(
    "find_by_keys",
    "Reads the links that stand for URLs.",
    f"SELECT {_LIST}, {TAGS_OF} FROM links "  # noqa: S608
    "WHERE workspace_id = :workspace_id AND url_key = ANY(:url_keys)",
    # JSON knows no bytes: SQLite finds the digests at their places in one string.
    sqlite=f"SELECT {_LIST}, {TAGS_OF_SQLITE} FROM links WHERE workspace_id = :workspace_id "  # noqa: S608
    f"AND url_key IN (SELECT substr(:digests, value, {_DIGEST}) FROM json_each(:places))",
)


OFFER_SECRET = Statement(
    "offer_secret",
    "Keeps a secret of the instance unless there is one.",
    "INSERT INTO instance_secrets (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING",
)
FIND_SECRET = Statement(
    "find_secret", "Reads a secret of the instance.", "SELECT value FROM instance_secrets WHERE name = :name"
)


async def kept_secret(database: Database, name: str) -> str:
    """A secret that all processes of the instance share, made by the first that asks."""
    async with database.transaction() as tx:
        await tx.execute(OFFER_SECRET, name=name, value=secrets.token_urlsafe(48))
        row = await tx.fetch_one(FIND_SECRET, name=name)
    assert row is not None, "it was there or has just been made"
    return str(row["value"])
