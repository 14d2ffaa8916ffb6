"""Searches: what may look at many links for few, in turns, so that nobody's searches hold up everything else."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from refract.kernel.errors import Kind, Limited, RefractError, TimedOut
from refract.runtime.fairness import SOON, Turns
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement

LONGEST_WAIT = 5.0
"""Seconds for which a search waits for its turn. With what follows it is over long before the gateway gives up waiting:
else whoever sends slow searches would have the service taken for broken, and closed to everybody."""

MOST_WAITING = 30
"""Searches of one owner that wait behind the one at work; a person who types asks for a few in a second."""

_EVERYBODY = ""


class SearchTooLong(RefractError):
    """It was given up. Sent again it would take as long; asked for less, it may not."""

    kind: ClassVar[Kind] = Kind.UNPROCESSABLE
    message = "this search takes too long; ask for more letters or fewer filters"


class Searches:
    """In a process one search of an owner at a time; of all owners as many as leave half of the connections alone."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._own = Turns(1, MOST_WAITING)
        self._all = Turns(max(1, database.reads_at_once // 2))

    async def fetch(self, owner: str, statement: Statement, **parameters: Any) -> Sequence[Row]:
        """The rows of a search; raises Limited for too many at once, and SearchTooLong for one that does not end."""
        try:
            async with asyncio.timeout(LONGEST_WAIT) as patience, self._own.turn(owner), self._all.turn(_EVERYBODY):
                patience.reschedule(None)  # its turn has come
                return await self._database.fetch(statement, **parameters)
        except TimedOut:
            raise SearchTooLong from None
        except TimeoutError:
            raise Limited(SOON) from None
