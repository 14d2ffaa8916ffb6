"""Work of concurrent requests, done together: whatever waits while one transaction commits is the next."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

from refract.kernel.errors import Unavailable

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

AT_ONCE = 200
WRITERS = 2
"""While one commits, the other gathers."""
LONGEST_LINE = 10_000
"""More than any server serves in the time that a request has: whoever comes behind these is told so at once."""


class Together(Generic[Item, Outcome]):
    """A line of items. A transaction costs much the same for one as for thirty."""

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome]]],
        *,
        at_once: int = AT_ONCE,
        writers: int = WRITERS,
    ) -> None:
        self._name = name
        self._write = write
        self._at_once = at_once
        self._most_writers = writers
        self._waiting: list[tuple[Item, asyncio.Future[Outcome]]] = []
        self._writing = 0
        self._writers: set[asyncio.Task[None]] = set()

    async def add(self, item: Item) -> Outcome:
        """Have it written with others; returns its own outcome, or raises what its transaction raised.

        Raises Unavailable where the line is too long. What nobody waits for any more when its turn comes is left out.
        """
        if len(self._waiting) >= LONGEST_LINE:
            raise Unavailable(self._name, f"{LONGEST_LINE} wait already")
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, outcome))
        if self._writing < self._most_writers:
            self._writing += 1
            # In no request's context: it works for many, and outlives the one that started it.
            writer = asyncio.create_task(self._run(), name=self._name, context=Context())
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)
        return await outcome

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._at_once], self._waiting[self._at_once :]
                wanted = [each for each in batch if not each[1].done()]
                if wanted:
                    await self._serve(wanted)
        finally:
            # At once, and not when the task is seen to be done: nobody may come in between and find a writer who left.
            self._writing -= 1

    async def _serve(self, batch: Sequence[tuple[Item, "asyncio.Future[Outcome]"]]) -> None:
        try:
            outcomes = await self._write([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001  # whatever it is, nobody may be left waiting
            _fail([waiter for _, waiter in batch], error)
        else:
            for (_, waiter), outcome in zip(batch, outcomes, strict=True):
                if not waiter.done():
                    waiter.set_result(outcome)


def _fail(waiters: Sequence[asyncio.Future[Outcome]], error: Exception) -> None:
    for waiter in waiters:
        if not waiter.done():
            # Each its own: an error that is raised in many places gathers all their tracebacks.
            own = Unavailable(error.dependency, error.reason) if isinstance(error, Unavailable) else error
            waiter.set_exception(own)
