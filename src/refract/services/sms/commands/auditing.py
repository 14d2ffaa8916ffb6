"""The audit trail: every attempt goes to its topic without anybody's waiting, and from there into the database."""

from collections.abc import Sequence

from refract.runtime.ports import Database, RecordLog
from refract.runtime.records import ReceivedRecord, Record
from refract.services.sms.api import NOTIFICATION_EVENTS
from refract.services.sms.domain.attempt_events import decode, encode
from refract.services.sms.domain.attempts import Attempt
from refract.services.sms.store.attempts import add_attempts

NOBODY = "-"
"""The key of attempts that named no user: they stay in order among themselves."""


class AuditTrail:
    """Notes attempts. The record log keeps what it cannot write at once, and what it has to drop it counts."""

    def __init__(self, records: RecordLog) -> None:
        self._records = records

    def note(self, attempt: Attempt) -> None:
        """Put an attempt on its way; never waits and never fails a request."""
        key = NOBODY if attempt.user_id is None else str(attempt.user_id)
        self._records.publish_soon(Record(NOTIFICATION_EVENTS.name, key, encode(attempt)))


class Auditing:
    """Keeps what was noted."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, attempts: Sequence[Attempt]) -> int:
        """Keep attempts in one transaction, each once however often it comes; returns how many were new."""
        async with self._database.transaction() as tx:
            return await add_attempts(tx, attempts)


def attempt_in(record: ReceivedRecord) -> Attempt:
    """The attempt in a record; raises PoisonMessage where there is none."""
    return decode(record.value)
