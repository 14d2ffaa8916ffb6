"""Waiting for a condition instead of for a time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

import pytest

T = TypeVar("T")

LAST_TRY = 5.0
"""Seconds that a try has at least: after a stall the one that would succeed is perhaps the last."""


@overload
async def eventually(condition: Callable[[], Awaitable[T]], timeout: float = ..., interval: float = ...) -> T: ...
@overload
async def eventually(condition: Callable[[], T], timeout: float = ..., interval: float = ...) -> T: ...
async def eventually(condition: Callable[[], Any], timeout: float = 30.0, interval: float = 0.02) -> Any:
    """Call the condition until it gives something truthy, and return that; what it raises counts as not yet."""
    deadline = time.monotonic() + timeout
    while True:
        trouble: BaseException | None = None
        try:
            async with asyncio.timeout(max(LAST_TRY, deadline - time.monotonic())):
                given = condition()
                value = await given if inspect.isawaitable(given) else given
            if value:
                return value
            outcome = f"the last value was {value!r}"
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # what is on its way up raises what it likes
            trouble, outcome = error, f"it last raised {error!r}"
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {outcome}") from trouble
        await asyncio.sleep(interval)


async def listens(address: str) -> bool:
    """Whether anybody listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.transport.abort()
    return True
