"""Waiting for a condition instead of for a time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(condition: Callable[[], Awaitable[T]], timeout: float = ..., interval: float = ...) -> T: ...
@overload
async def eventually(condition: Callable[[], T], timeout: float = ..., interval: float = ...) -> T: ...
async def eventually(condition: Callable[[], Any], timeout: float = 10.0, interval: float = 0.02) -> Any:
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
