"""Forgets what the outbox keeps of mails that are on their way: tokens, and addresses that may be nobody's."""

import asyncio
import logging

from refract.runtime.ports import Database
from refract.runtime.rounds import Pause, in_batches, repeat
from refract.runtime.statements import Statement
from refract.services.identity.api import EmailPasswordResetRequested, EmailVerificationRequested
from refract.services.identity.domain.one_time import ResetAsked

log = logging.getLogger(__name__)

FORGET_SECONDS = 15.0
BATCH = 500

_SECRET = ", ".join(
    f"'{event.routing_key()}'" for event in (EmailVerificationRequested, EmailPasswordResetRequested, ResetAsked)
)
# The index outbox_mails has the same condition.
SENT = f"SELECT id FROM outbox WHERE published_at IS NOT NULL AND event_type IN ({_SECRET}) LIMIT :batch"  # noqa: S608

FORGET_SENT = Statement(
    "forget_sent_mails",
    "Deletes one batch of rows of mails that are published; what another process has in hand is left to it.",
    f"DELETE FROM outbox WHERE id = ANY(ARRAY({SENT} FOR UPDATE SKIP LOCKED))",  # noqa: S608  # names of ours, not values
    sqlite=f"DELETE FROM outbox WHERE id IN ({SENT})",  # noqa: S608
)


class Forgetting:
    """Goes over the outbox four times a minute.

    Published rows are kept as an audit trail (decision 19), but for those of mails: their bodies hold in clear what the
    table of one-time tokens holds as a hash only.
    """

    def __init__(self, database: Database, *, pause: Pause = asyncio.sleep) -> None:
        self._database = database
        self._pause = pause

    async def run(self) -> None:
        """Forget for ever; a database that is away is tried again at the next round."""
        await repeat(self.forget, FORGET_SECONDS, log=log, trouble="mails not forgotten; will retry", pause=self._pause)

    async def forget(self) -> int:
        """Forget all mails that are published, in batches that hold no lock for long; returns how many rows."""
        return await in_batches(self._database, BATCH, lambda tx: tx.execute(FORGET_SENT, batch=BATCH))
