"""Searches: what may look at many links for few, in turns, so that nobody's searches hold up everything else."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from refract.kernel.errors import Kind, RefractError
from refract.runtime.fairness import Turns
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement

LONGEST_SEARCH = 2.0
"""Seconds; a page of the owner of 100,000 links takes 0.12 s at worst."""

MOST_WAITING = 30
"""Searches of one owner that wait behind the one at work; a person who types asks for a few in a second."""

_EVERYBODY = ""


class SearchTooLong(RefractError):
    """It was given up. Sent again it would take as long; asked for less, it may not."""

    kind: ClassVar[Kind] = Kind.UNPROCESSABLE
    message = "this search takes too long; ask for more letters or fewer filters"


class Searches:
    """One search of an owner at a time, and of all owners as many as leave the half of the connections to others."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._own = Turns(1, MOST_WAITING)
        self._all = Turns(max(1, database.reads_at_once // 2))

    async def fetch(self, owner: str, statement: Statement, **parameters: Any) -> Sequence[Row]:
        """The rows of a search; raises Limited for too many at once, and SearchTooLong for one that does not end."""
        async with self._own.turn(owner), self._all.turn(_EVERYBODY):
            try:
                async with asyncio.timeout(LONGEST_SEARCH):  # a statement that nobody waits for is stopped
                    return await self._database.fetch(statement, **parameters)
            except TimeoutError:
                raise SearchTooLong from None
