"""Waiting for a condition instead of for a time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(condition: Callable[[], T | Awaitable[T]], timeout: float = 10.0, interval: float = 0.02) -> T:
    """Call the condition until it gives something truthy, and return that; what it raises counts as not yet."""
    deadline = time.monotonic() + timeout
    while True:
        trouble: Exception | None = None
        try:
            async with asyncio.timeout(max(interval, deadline - time.monotonic())):
                given = condition()
                value = await given if inspect.isawaitable(given) else given
            if value:
                return value
            outcome = f"the last value was {value!r}"
        except Exception as error:  # noqa: BLE001  # a server that is on its way up raises what it likes
            trouble, outcome = error, f"it last raised {error!r}"
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {outcome}") from trouble
        await asyncio.sleep(interval)
