"""The audit of sms in a test: a database of either mode, attempts made up, and what is kept of them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from refract.kernel.ids import new_event_id
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.sms.commands.auditing import Auditing
from refract.services.sms.domain.attempts import Attempt, Status
from refract.services.sms.queries.attempts import AttemptPage, AttemptQueries
from refract.services.sms.queries.requests import PageRequest, SummaryRequest
from refract.services.sms.queries.summaries import Summary, SummaryQueries
from tests.support.clocks import START, ManualClock
from tests.support.databases import Location, furnish, open_database

ATTEMPTS = Statement("attempts", "Reads all attempts.", "SELECT * FROM attempts ORDER BY occurred_at, event_id")
MINUTES = Statement("minutes", "Reads all counts.", "SELECT * FROM attempt_minutes ORDER BY user_id, minute")
SENT = Statement("sent", "Reads all marks.", "SELECT * FROM sent_messages ORDER BY message_id")


def attempt(user_id: int | None = 7, status: Status = "sent", *, at: datetime = START, **changes: Any) -> Attempt:
    """An attempt with an id of its own."""
    fields: dict[str, Any] = {
        "event_id": new_event_id(),
        "path": "redis",
        "message": "hello",
        "reason": "",
        "correlation_id": "c-1",
        "message_id": "m-1",
    }
    return Attempt(user_id=user_id, status=status, occurred_at=at, **fields | changes)


@dataclass
class Audit:
    """A database of sms and what reads it."""

    database: Database
    clock: ManualClock = field(default_factory=ManualClock)

    async def keep(self, *attempts: Attempt) -> int:
        """Keep attempts as one batch."""
        return await Auditing(self.database).keep(attempts)

    async def page(self, **parameters: str) -> AttemptPage:
        """What the parameters of a URL show."""
        return await AttemptQueries(self.database).page(PageRequest.read(**parameters))

    async def summary(self, **parameters: str) -> Summary:
        """The same summed up."""
        request = SummaryRequest.read(self.clock.now(), **parameters)
        return await SummaryQueries(self.database, self.clock).summary(request)

    async def rows(self, statement: Statement) -> list[Row]:
        """What a table holds."""
        return await self.database.fetch(statement)


def minutes_before(number: float, moment: datetime = START) -> datetime:
    """A moment so many minutes earlier."""
    return moment - timedelta(minutes=number)


@pytest.fixture
async def sms_location(empty_location: Location) -> Location:
    """A database with the tables of sms."""
    await furnish("sms", empty_location)
    return empty_location


@pytest.fixture
async def audit(sms_location: Location) -> AsyncIterator[Audit]:
    """An audit without attempts."""
    database = await open_database(sms_location)
    yield Audit(database)
    await database.close()
