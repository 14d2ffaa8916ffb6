"""The keys of sends that may be repeated: rows to records and back. Whoever writes one holds the lock of its user."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from msgspec import Struct

from refract.runtime.ports import Reads, Transaction
from refract.runtime.statements import Statement
from refract.services.sms.domain.sends import SendKey

REMEMBERED = timedelta(hours=24)
"""So long a key stands for its message. Rows are kept for longer, see commands/clearing.py."""

Status = Literal["counted", "sent"]

FIND = Statement(
    "find_send_keys",
    "Reads the keys that are remembered, with the time.",
    """
    SELECT key_hash, fingerprint, message_id, status, created_at, clock_timestamp() AS now FROM send_keys
    WHERE user_id = ANY(:user_ids) AND key_hash = ANY(:key_hashes)
    """,
    sqlite="""
    SELECT key_hash, fingerprint, message_id, status, created_at, :now AS "now [TIMESTAMP]" FROM send_keys
    WHERE user_id IN (SELECT value FROM json_each(:user_ids)) AND key_hash IN (SELECT value FROM json_each(:key_hashes))
    """,
)
CLAIM = Statement(
    "claim_send_keys",
    "Takes keys that are free, or whose time is over.",
    """
    INSERT INTO send_keys (user_id, key_hash, fingerprint, message_id, status, created_at)
    SELECT user_id, key_hash, fingerprint, message_id, status, clock_timestamp() FROM json_to_recordset(:keys)
        AS document (user_id bigint, key_hash text, fingerprint text, message_id text, status text)
    ON CONFLICT (user_id, key_hash) DO UPDATE SET
        fingerprint = excluded.fingerprint, message_id = excluded.message_id, status = excluded.status,
        created_at = excluded.created_at
    """,
    sqlite="""
    INSERT INTO send_keys (user_id, key_hash, fingerprint, message_id, status, created_at)
    SELECT value ->> 'user_id', value ->> 'key_hash', value ->> 'fingerprint', value ->> 'message_id',
        value ->> 'status', :now
    FROM json_each(:keys) WHERE true
    ON CONFLICT (user_id, key_hash) DO UPDATE SET
        fingerprint = excluded.fingerprint, message_id = excluded.message_id, status = excluded.status,
        created_at = excluded.created_at
    """,
)
MARK_SENT = Statement(
    "mark_sent",
    "Notes that messages are in the log.",
    """
    UPDATE send_keys SET status = 'sent'
    WHERE user_id = ANY(:user_ids) AND key_hash = ANY(:key_hashes)
    """,
    sqlite="""
    UPDATE send_keys SET status = 'sent'
    WHERE user_id IN (SELECT value FROM json_each(:user_ids)) AND key_hash IN (SELECT value FROM json_each(:key_hashes))
    """,
)


class KeptKey(Struct, frozen=True, gc=False):
    """A key as it is remembered; one that is over no longer stands for its message."""

    key: SendKey
    status: Status
    over: bool


async def find_keys(source: Reads, keys: Sequence[tuple[int, SendKey]], now: datetime) -> dict[str, KeptKey]:
    """Those of the keys that are there, by their hashes, which have the user in them."""
    if not keys:
        return {}
    rows = await source.fetch(FIND, **_names(keys), now=now)
    return {
        row["key_hash"]: KeptKey(
            SendKey(row["key_hash"], row["fingerprint"], row["message_id"]),
            row["status"],
            over=row["now"] - row["created_at"] >= REMEMBERED,
        )
        for row in rows
    }


async def claim_keys(tx: Transaction, keys: Iterable[tuple[int, SendKey]], status: Status, now: datetime) -> None:
    """Remember keys from now on."""
    document = [
        {
            "user_id": user_id,
            "key_hash": key.key_hash,
            "fingerprint": key.fingerprint,
            "message_id": key.message_id,
            "status": status,
        }
        for user_id, key in keys
    ]
    if document:
        await tx.execute(CLAIM, keys=document, now=now)


async def mark_sent(tx: Transaction, keys: Sequence[tuple[int, SendKey]]) -> None:
    """Their messages are in the log: repeating them needs nothing more."""
    await tx.execute(MARK_SENT, **_names(keys))


def _names(keys: Sequence[tuple[int, SendKey]]) -> dict[str, Any]:
    return {
        "user_ids": sorted({user_id for user_id, _ in keys}),
        "key_hashes": sorted({key.key_hash for _, key in keys}),
    }
