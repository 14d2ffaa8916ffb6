"""Sends digests: what was gathered for a user leaves as one mail, once, whatever the number of processes."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from refract.kernel.clock import Clock
from refract.runtime.ports import Database, Row, Transaction
from refract.runtime.rounds import Pause, repeat
from refract.runtime.statements import Statement
from refract.services.notifications.commands.telling import MANY, log_mail, mail_of_many
from refract.services.notifications.domain.digests import Line, digest_subject, next_digest
from refract.services.notifications.domain.preferences import Digest
from refract.services.notifications.store.deliveries import add_deliveries

log = logging.getLogger(__name__)

ROUND_SECONDS = 30.0
MOST_IN_ONE = 5_000
"""Notifications that one digest tells of; the rest comes in another one, at once."""

_DUE = """
    SELECT recipients.user_id, recipients.email, digests.every
    FROM digests JOIN recipients ON recipients.user_id = digests.user_id
    WHERE digests.next_at <= :now ORDER BY digests.next_at LIMIT 1
"""
DUE_DIGEST = Statement(
    "due_digest",
    "Takes a digest that is due, and its user; one of whom somebody else has anything in hand is left for later.",
    f"{_DUE} FOR UPDATE SKIP LOCKED",
    sqlite=_DUE,
)

NEVER = timedelta(days=8)
_LATE = "SELECT user_id FROM digests WHERE next_at > :never"
HURRY_DIGESTS = Statement(
    "hurry_digests",
    "Makes those due that would not be for longer than any period: the clock was set back since.",
    # Past the locks of users, and so without waiting for anybody.
    f"UPDATE digests SET next_at = :now WHERE user_id = ANY(ARRAY({_LATE} FOR UPDATE SKIP LOCKED))",  # noqa: S608
    sqlite=f"UPDATE digests SET next_at = :now WHERE user_id IN ({_LATE})",  # noqa: S608  # a statement of ours
)

_TAKE = """
    UPDATE notifications SET gathered = false, status = :status, sent_at = :sent_at
    WHERE gathered AND id IN (
        SELECT id FROM notifications WHERE user_id = :user_id AND gathered ORDER BY created_at, id LIMIT :most
    )
    RETURNING id, event_type, title
"""
TAKE_GATHERED = Statement("take_gathered", "Takes what was gathered for a user, each once.", _TAKE)

NEXT_DIGEST = Statement(
    "next_digest",
    "Says when the next one is due.",
    "UPDATE digests SET next_at = :next_at WHERE user_id = :user_id",
)
REMOVE_DIGEST = Statement("remove_digest", "Ends it for good.", "DELETE FROM digests WHERE user_id = :user_id")


@dataclass(frozen=True, slots=True)
class _Sent:
    """A digest that has left the table of notifications."""

    email: str
    subject: str


class Digesting:
    """Looks twice a minute for digests that are due. When one is due, and that it is sent, is one row: a process that
    was away, or dies while it sends, leaves everything as it was for the next one.

    What was missed while nobody ran comes as one digest, and not as several.
    """

    def __init__(self, database: Database, clock: Clock, *, sends_mail: bool, pause: Pause = asyncio.sleep) -> None:
        self._database = database
        self._clock = clock
        self._sends_mail = sends_mail
        self._pause = pause

    async def run(self) -> None:
        """Send for ever; a database that is away is tried again at the next round."""
        await repeat(self.send_due, ROUND_SECONDS, log=log, trouble="digests failed; will retry", pause=self._pause)

    async def send_due(self) -> int:
        """Send every digest that is due, each in a transaction of its own; returns how many left."""
        sent, now = 0, self._clock.now()
        async with self._database.transaction() as tx:
            await tx.execute(HURRY_DIGESTS, now=now, never=now + NEVER)
        while True:
            async with self._database.transaction() as tx:
                due = await tx.fetch_one(DUE_DIGEST, now=self._clock.now())
                digest = None if due is None else await self._send(tx, due, self._clock.now())
            if due is None:
                return sent
            if digest is not None:
                sent += 1
                if not self._sends_mail:
                    log_mail(MANY, digest.email, digest.subject, "")

    async def _send(self, tx: Transaction, due: Row, now: datetime) -> _Sent | None:
        """Send one, and say when the next is due; None where nothing was gathered."""
        every, user_id, email = Digest(due["every"]), due["user_id"], due["email"]
        mailed = self._sends_mail and bool(email)
        # What is mailed is pending until the mail has left.
        status, sent_at = ("pending", None) if mailed else ("sent", now)
        rows = await tx.fetch(TAKE_GATHERED, user_id=user_id, status=status, sent_at=sent_at, most=MOST_IN_ONE)
        if len(rows) < MOST_IN_ONE:
            await self._settle(tx, user_id, every, now)
        if not rows:
            return None
        rows.sort(key=lambda row: row["id"])
        lines = [Line(row["event_type"], row["title"]) for row in rows]
        if mailed:
            told = [row["id"] for row in rows]
            await add_deliveries(tx, [mail_of_many(user_id, email, every, lines, told)], now)
        return _Sent(email, digest_subject(every, lines))

    async def _settle(self, tx: Transaction, user_id: str, every: Digest, now: datetime) -> None:
        if every is Digest.OFF:
            await tx.execute(REMOVE_DIGEST, user_id=user_id)
        else:
            await tx.execute(NEXT_DIGEST, user_id=user_id, next_at=next_digest(every, now))
