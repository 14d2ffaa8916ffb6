"""Passwords to hashes: bcrypt in a few threads that give way to everything else."""

import asyncio
import base64
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import bcrypt

from refract.kernel.errors import Unavailable

COST = 12
LONGEST = 72
"""Bytes that bcrypt looks at."""

MOST_WAITING = 128
"""Passwords that wait or are hashed at a time. Two processors are through with so many before the gateway's 30 s are
over; a longer queue would do work whose answer nobody waits for."""

NICENESS = 10

_PREFIX = b"2a"  # M2's; the library makes the same hash of it as of 2b

T = TypeVar("T")


class Hasher:
    """Hashes and compares, each in its turn; every method costs one bcrypt.

    bcrypt lets go of the interpreter while it works, and its threads run at a lower priority: requests that need no
    password are answered while many log in.
    """

    def __init__(self, cost: int = COST, threads: int = 2) -> None:
        self._cost = cost
        self._threads = ThreadPoolExecutor(threads, "passwords", initializer=_step_back)
        self._waiting = 0
        # A salt, and a digest that no password has: comparing with it takes as long as with any other.
        self._nothing = bcrypt.gensalt(cost, _PREFIX) + b"." * 31

    async def hash(self, password: str) -> str:
        """A hash of a new password, with a salt of its own."""
        hashed = await self._in_turn(lambda: bcrypt.hashpw(_octets(password), bcrypt.gensalt(self._cost, _PREFIX)))
        return hashed.decode()

    async def compare(self, password: str, password_hash: str) -> bool:
        """Whether the hash is one of this password."""
        return await self._in_turn(lambda: bcrypt.checkpw(_octets(password), password_hash.encode()))

    async def compare_nothing(self, password: str) -> bool:
        """The same work where there is no hash: False, and by the time it takes nobody can tell (M2 §6.2)."""
        await self._in_turn(lambda: bcrypt.checkpw(_octets(password), self._nothing))
        return False

    def close(self) -> None:
        """Let the threads end; what waits is given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self._waiting >= MOST_WAITING:
            raise Unavailable("password hashing", f"{self._waiting} passwords wait already")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1


def _octets(password: str) -> bytes:
    """What bcrypt is given, so that every byte counts: a digest where it would stop reading, or begin anew.

    It looks at 72 bytes, and it repeats shorter passwords with a zero byte between: `one` and `one\\0one` would be the
    same to it.
    """
    raw = password.encode()
    if len(raw) <= LONGEST and b"\0" not in raw:
        return raw
    return base64.b64encode(hashlib.sha256(raw).digest())


def _step_back() -> None:
    """Lower the priority of this thread, where the system has one for each thread."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it: slower for others, and no reason to let nobody in
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
