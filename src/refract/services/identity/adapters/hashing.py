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
"""Passwords of users that wait or are looked at. Two processors are through with so many before the gateway's 30 s are
over; a longer queue would do work whose answer nobody waits for."""

MOST_OF_STRANGERS = 48
"""Those of people who register, of which anybody may send as many as they like: they have places and threads of their
own, and are through in time also while people sign in without a pause."""

AT_A_TIME = 8
"""Passwords of one client that wait for a processor or have one; two processors are through with them in 1.2 s."""

NICENESS = 10
NICENESS_FOR_STRANGERS = 15
"""Steps down from this process; on a busy processor strangers get a third of the time that users get."""

LOWEST = 19
"""There is no niceness beyond."""

_PREFIX = b"2a"  # M2's; the library makes the same hash of it as of 2b

T = TypeVar("T")


class Hasher:
    """Hashes and compares, each in its turn; every method costs one bcrypt.

    bcrypt lets go of the interpreter while it works, and its threads run at a lower priority: requests that need no
    password are answered while many log in, and people log in while many register.
    """

    def __init__(self, cost: int = COST, threads: int = 2) -> None:
        self._cost = cost
        self._users = _Line("passwords", threads, NICENESS, MOST_WAITING)
        self._strangers = _Line("new-passwords", threads, NICENESS_FOR_STRANGERS, MOST_OF_STRANGERS)
        # A salt, and a digest that no password has: comparing with it takes as long as with any other.
        self._nothing = bcrypt.gensalt(cost, _PREFIX) + b"." * 31

    async def hash(self, password: str, *, of_user: bool = False) -> str:
        """A hash of a new password, with a salt of its own; a user has shown who they are, and does not register."""
        line = self._users if of_user else self._strangers
        hashed = await line.take(lambda: bcrypt.hashpw(_octets(password), bcrypt.gensalt(self._cost, _PREFIX)))
        return hashed.decode()

    async def compare(self, password: str, password_hash: str) -> bool:
        """Whether the hash is one of this password."""
        return await self._users.take(lambda: bcrypt.checkpw(_octets(password), password_hash.encode()))

    async def compare_nothing(self, password: str) -> bool:
        """The same work where there is no hash: False, and by the time it takes nobody can tell (M2 §6.2)."""
        await self._users.take(lambda: bcrypt.checkpw(_octets(password), self._nothing))
        return False

    def close(self) -> None:
        """Let the threads end; what waits is given up."""
        self._users.close()
        self._strangers.close()


class _Line:
    """A few threads of one priority, and a line before them that is never too long to be served in time."""

    def __init__(self, name: str, threads: int, niceness: int, most: int) -> None:
        self._threads = ThreadPoolExecutor(threads, name, initializer=_step_back, initargs=(niceness,))
        self._most = most
        self.waiting = 0

    async def take(self, work: Callable[[], T]) -> T:
        """Work in a thread, in turn; raises Unavailable where too many wait already."""
        if self.waiting >= self._most:
            raise Unavailable("password hashing", f"{self.waiting} passwords wait already")
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Let the threads end; what waits is given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _octets(password: str) -> bytes:
    """What bcrypt is given, so that every byte counts: a digest where it would stop reading, or begin anew.

    It looks at 72 bytes, and it repeats shorter passwords with a zero byte between: `one` and `one\\0one` would be the
    same to it.
    """
    raw = password.encode()
    if len(raw) <= LONGEST and b"\0" not in raw:
        return raw
    return base64.b64encode(hashlib.sha256(raw).digest())


def _step_back(steps: int) -> None:
    """Lower the priority of this thread, where the system has one for each thread.

    From where it is, which is where the loop is: a process may have been started with a low priority itself.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):  # a sandbox may forbid it: slower for others, and no reason to let nobody in
            os.setpriority(os.PRIO_PROCESS, thread, min(LOWEST, os.getpriority(os.PRIO_PROCESS, thread) + steps))
