"""Work that comes round again for as long as a process lives, and work in batches that hold no lock for long."""

from collections.abc import Awaitable, Callable
from logging import Logger
from typing import NoReturn

from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database, Transaction

Pause = Callable[[float], Awaitable[object]]
"""How a round rests for some seconds: `asyncio.sleep`, or what a test has in its place."""


async def repeat(
    work: Callable[[], Awaitable[object]], seconds: float, *, log: Logger, trouble: str, pause: Pause
) -> NoReturn:
    """Work, rest for so many seconds, and work again, for ever; what is away is told, and tried at the next round."""
    while True:
        try:
            await work()
        except Unavailable as error:
            log.warning(trouble, extra={"error": str(error)})
        await pause(seconds)


async def in_batches(
    database: Database,
    size: int,
    work: Callable[[Transaction], Awaitable[int]],
    *,
    rest: Callable[[], Awaitable[object]] | None = None,
) -> int:
    """Work in transactions, each with up to `size` rows, until one is not full; returns how many rows it were in all.

    After each that was full comes a rest, if there is one to take.
    """
    done = 0
    while True:
        async with database.transaction() as tx:
            rows = await work(tx)
        done += rows
        if rows < size:
            return done
        if rest is not None:
            await rest()
