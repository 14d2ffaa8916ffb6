"""Clients that follow and make links without rest, over kept-alive connections, and note what they are told."""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tests.support.http import Answer, Client
from tests.support.ledger import Ledger
from tests.support.waiting import eventually

PAUSE = 0.02
"""Seconds before a client whose server is away tries it again."""

MOST_ATTEMPTS = 2
"""So many for each acknowledgement that is wanted, and the clients give up."""

BROKEN = (OSError, EOFError, TimeoutError)

Ask = Callable[[Client], Awaitable[Answer]]


@dataclass
class Load:
    """What so many clients do together, and what became of it."""

    port: int
    ledger: Ledger
    total: int | None = None
    """When so many were acknowledged they are done; without any number, when they are told to stop."""
    attempts: int | None = None
    """After so many attempts they are done, whatever came of them."""
    unanswered: int = 0
    """Requests that were sent whole and got no answer before the connection ended."""
    refused: Counter[int] = field(default_factory=Counter)
    """Answers with a status that acknowledges nothing."""
    wrong: list[str] = field(default_factory=list)
    stopping: bool = False
    reconnects: bool = True
    rest: float = 0.0
    """Seconds that a client waits before each attempt; may be changed meanwhile."""
    asking: int = 0
    """Attempts of which nobody knows yet what becomes of them."""
    gave_up: str = ""
    """Why, if they did."""

    @property
    def done(self) -> bool:
        """Whether no more is to be attempted."""
        return (
            self.stopping
            or bool(self.gave_up)
            or (self.total is not None and self.ledger.answered >= self.total)
            or (self.attempts is not None and self.ledger.attempted >= self.attempts)
        )

    @property
    def _is_enough(self) -> bool:
        """Whether all that is left may be acknowledged to those who ask: one more could be one too many."""
        return self.total is not None and self.ledger.answered + self.asking >= self.total

    def _check_progress(self) -> None:
        """A server that acknowledges next to nothing is not asked for ever."""
        if self.total is not None and self.ledger.attempted >= MOST_ATTEMPTS * self.total:
            self.gave_up = (
                f"of {self.ledger.attempted} attempts {self.ledger.answered} were acknowledged and not {self.total}: "
                f"{self.unanswered} had no answer, and {dict(self.refused)} another"
            )
            raise AssertionError(self.gave_up)

    async def answered(self, number: int, timeout: float = 120) -> None:
        """Wait until so many were acknowledged in all; fails when none is for so many seconds.

        However many they are: what is promised is that they come, and how many do in a second is up to the machine.
        """
        while self.ledger.answered < number:
            before = self.ledger.answered
            more = partial(self._has_heard_more, before)
            await eventually(more, timeout=timeout, interval=0.002)
            assert not self.gave_up or self.ledger.answered >= number, self.gave_up

    def _has_heard_more(self, before: int) -> bool:
        return bool(self.gave_up) or self.ledger.answered > before

    async def run(self, connections: int) -> None:
        """Go on until everything that is wanted was acknowledged; fails where that does not come."""
        async with asyncio.TaskGroup() as clients:
            for _ in range(connections):
                clients.create_task(self._work())

    @asynccontextmanager
    async def running(self, connections: int) -> AsyncIterator[asyncio.Task[None]]:
        """The same in the background; at the end of the block they come to theirs."""
        task = asyncio.create_task(self.run(connections))
        try:
            yield task
            self.stopping = True
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _work(self) -> None:
        while not self.done:
            try:
                client = await Client.connect(self.port)
            except OSError:
                if not self.reconnects:
                    return
                await asyncio.sleep(PAUSE)
                continue
            async with client:
                await self._use(client)
            if not self.reconnects:
                return

    async def _use(self, client: Client) -> None:
        """Ask until this connection ends."""
        while not self.done:
            if self._is_enough:
                await asyncio.sleep(PAUSE)
                continue
            self._check_progress()
            if self.rest:
                await asyncio.sleep(self.rest)
            number = self.ledger.attempt()
            self.asking += 1
            try:
                answer = await self._ask(client, number)
            except BROKEN:
                self.unanswered += 1
                return
            finally:
                self.asking -= 1
            if self._is_acknowledged(number, answer):
                self.ledger.answer(number)
            else:
                self.refused[answer.status] += 1
            if answer.closes:
                return

    async def _ask(self, client: Client, number: int) -> Answer:
        raise NotImplementedError

    def _is_acknowledged(self, number: int, answer: Answer) -> bool:
        raise NotImplementedError


@dataclass
class Following(Load):
    """Clients that follow links, each time with a number that the click carries in its query."""

    places: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    """Where each code may lead."""
    headers: tuple[str, ...] = ("User-Agent: ledger",)

    def __post_init__(self) -> None:
        """The codes are followed in turn."""
        self._codes = list(self.places)

    def code(self, number: int) -> str:
        """The code that an attempt follows."""
        return self._codes[number % len(self._codes)]

    async def _ask(self, client: Client, number: int) -> Answer:
        return await client.get(f"/{self.code(number)}?n={number}", *self.headers)

    def _is_acknowledged(self, number: int, answer: Answer) -> bool:
        if answer.status not in {301, 302, 307, 308}:
            return False
        allowed = self.places[self.code(number)]
        location = answer.headers["location"]
        if location not in ((allowed,) if isinstance(allowed, str) else allowed):
            self.wrong.append(f"{self.code(number)} led to {location}")
        return True


@dataclass
class Repeating(Following):
    """Clients whose every request has the same bytes, as a browser's or a benchmark's: only their sum can be told."""

    async def _ask(self, client: Client, number: int) -> Answer:
        return await client.get(f"/{self._codes[0]}", *self.headers)

    def code(self, number: int) -> str:
        """Always the same one."""
        return self._codes[0]


@dataclass
class Making(Load):
    """Clients that make links, each to a URL with a number of its own: plainly, with an alias, and with a key, in turn.

    A plain one is saved with its neighbours; the other two are each a transaction.
    """

    target: str = "/shorten"
    token: str = ""
    prefix: str = "https://example.com/"
    name: str = field(default_factory=lambda: secrets.token_hex(4))
    """In aliases and keys, which others may have on the same instance."""

    def alias(self, number: int) -> str | None:
        """The code that an attempt asks for, if it does."""
        return f"{self.name}-{number}" if number % 3 == 1 else None

    def key(self, number: int) -> str | None:
        """The Idempotency-Key of an attempt, if it has one."""
        return f"{self.name}-{number}" if number % 3 == 2 else None

    async def _ask(self, client: Client, number: int) -> Answer:
        wish = {"url": f"{self.prefix}{number}"}
        headers = [f"Authorization: Bearer {self.token}"]
        if alias := self.alias(number):
            wish["custom_code"] = alias
        if key := self.key(number):
            headers.append(f"Idempotency-Key: {key}")
        return await client.post(self.target, msgspec.json.encode(wish), *headers)

    def _is_acknowledged(self, number: int, answer: Answer) -> bool:
        return answer.status == 201
