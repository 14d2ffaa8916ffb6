"""Which messages were sent: the mark by which a message that comes again is known."""

from collections.abc import Iterable
from datetime import datetime

from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement

MARK_SENT = Statement(
    "mark_sent",
    "Marks messages as sent and returns those that were not yet.",
    """
    INSERT INTO sent_messages (message_id, sent_at)
    SELECT message_id, :now FROM unnest(:message_ids::text[]) AS message_id
    ON CONFLICT DO NOTHING RETURNING message_id
    """,
    sqlite="""
    INSERT INTO sent_messages (message_id, sent_at)
    SELECT value, :now FROM json_each(:message_ids) WHERE true
    ON CONFLICT DO NOTHING RETURNING message_id
    """,
)

_OLD = "SELECT message_id FROM sent_messages WHERE sent_at < :before LIMIT :batch"
FORGET_SENT = Statement(
    "forget_sent",
    "Removes a batch of marks of messages that nobody can send again.",
    f"DELETE FROM sent_messages WHERE message_id = ANY(ARRAY({_OLD} FOR UPDATE SKIP LOCKED))",  # noqa: S608  # names
    sqlite=f"DELETE FROM sent_messages WHERE message_id IN ({_OLD})",  # noqa: S608
)


async def mark_sent(tx: Transaction, message_ids: Iterable[str], now: datetime) -> set[str]:
    """Mark messages as sent; returns those that were not before."""
    # In one order everywhere, so that two who have the same ones wait for each other instead of deadlocking.
    rows = await tx.fetch(MARK_SENT, message_ids=sorted(set(message_ids)), now=now)
    return {row["message_id"] for row in rows}
