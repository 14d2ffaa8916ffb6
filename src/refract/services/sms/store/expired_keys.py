"""The keys of sends that are over their time."""

from refract.runtime.statements import Statement

_OLD = "FROM send_keys WHERE created_at < :before LIMIT :batch"
FORGET_KEYS = Statement(
    "forget_keys",
    "Removes a batch of keys that nobody repeats any more; those that a send has in hand are left to it.",
    f"DELETE FROM send_keys WHERE ctid = ANY(ARRAY(SELECT ctid {_OLD} FOR UPDATE SKIP LOCKED))",  # noqa: S608  # names
    sqlite=f"DELETE FROM send_keys WHERE (user_id, key_hash) IN (SELECT user_id, key_hash {_OLD})",  # noqa: S608
)
