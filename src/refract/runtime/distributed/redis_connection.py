"""One connection to Redis for all callers of a process: sends what they ask together, and knows when Redis is away."""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import hiredis
from redis.asyncio import Connection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from refract.kernel.errors import Unavailable

T = TypeVar("T")
Part = str | int | bytes

DIAL_TIMEOUT = 3.0
CACHE_DEADLINE = 0.05
"""Redis answers in well under a millisecond; a cache or a counter that needs this long is better done without."""
STATE_DEADLINE = 1.0
"""State has no other place to be asked for, so it is worth a wait."""

PROBE_PAUSE = 1.0
FIRST_PROBE_PAUSE = 0.1
STABLE_SECONDS = 10.0
"""After so long without trouble an outage is taken for a hiccup, and the first probe comes quickly."""
REFUSAL_LOG_PAUSE = 60.0
MAX_BATCH = 256
SLICES = 5
RUN_BYTES = 8

TROUBLE = (RedisError, OSError, TimeoutError)

_logger = logging.getLogger("refract.redis")


@dataclass(frozen=True)
class Script:
    """A Lua script, sent by its hash; Redis keeps the text until it is restarted."""

    text: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


class RedisConnection:
    """Shared by the ports that use one Redis database; whoever made it closes it.

    Commands of all tasks that arrive while others are under way leave together. An answer that takes longer than the
    deadline counts as none: from then on every call fails at once, and a probe in the background finds out when Redis
    is back. Each outage is one warning at its start and one line at its end.
    """

    def __init__(
        self,
        address: str,
        *,
        password: str | None = None,
        database: int = 0,
        deadline: float = CACHE_DEADLINE,
        consequence: str = "cache disabled",
    ) -> None:
        self._host, self._port = _host_and_port(address)
        self._password = password
        self._database = database
        self._deadline = deadline
        self._consequence = consequence
        self._connection: Connection | None = None
        self._run_id = bytes(RUN_BYTES)
        self._queue: list[tuple[bytes, asyncio.Future[Any]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._away: str | None = "not connected yet"
        self._back_at = 0.0
        self._refusal_logged_at = -REFUSAL_LOG_PAUSE

    @property
    def away(self) -> str | None:
        """Why Redis cannot be asked now, or None when it can."""
        return self._away

    @property
    def run_id(self) -> bytes:
        """Of the server that gave the last reply: another after every restart, and on every other server."""
        return self._run_id

    async def start(self) -> None:
        """Try once to reach Redis; when it is absent, warn, return, and go on trying in the background."""
        try:
            await self._reach()
        except TROUBLE as error:
            self._lost(error)

    async def command(self, *parts: Part) -> Any:
        """Send one command and return the reply, in which texts are bytes; raises Unavailable."""
        reply = await self._ask(parts)
        if isinstance(reply, ResponseError):
            raise self.refusal(reply)
        return reply

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Part]) -> Any:
        """Run a script; raises Unavailable."""
        reply = await self._ask(("EVALSHA", script.sha, len(keys), *keys, *arguments))
        if isinstance(reply, NoScriptError):
            return await self.command("EVAL", script.text, len(keys), *keys, *arguments)
        if isinstance(reply, ResponseError):
            raise self.refusal(reply)
        return reply

    async def ping(self) -> None:
        """Return if Redis answers; raise Unavailable if not."""
        await self.command("PING")

    async def dial(self) -> Connection:
        """A new connection, logged in and on its database; raises one of TROUBLE."""
        connection = Connection(
            host=self._host,
            port=self._port,
            db=self._database,
            password=self._password,
            socket_timeout=None,  # the deadline of the whole exchange is ours
            socket_connect_timeout=DIAL_TIMEOUT,
            driver_info=None,
            protocol=2,
        )
        try:
            async with asyncio.timeout(DIAL_TIMEOUT):
                await connection.connect()  # type: ignore[no-untyped-call]
        except TimeoutError:
            await hang_up(connection)
            raise TimeoutError(f"no connection within {DIAL_TIMEOUT:g} s") from None
        except BaseException:
            await hang_up(connection)
            raise
        return connection

    def refusal(self, error: ResponseError) -> Unavailable:
        """Redis answers but will not do it, being full or a replica: said once in a while, not for each request."""
        now = time.monotonic()
        if now - self._refusal_logged_at >= REFUSAL_LOG_PAUSE:
            self._refusal_logged_at = now
            _logger.warning("redis refused a command", extra={"error": str(error)})
        return Unavailable("redis", str(error))

    async def close(self) -> None:
        """Let what is under way finish, and hang up."""
        self._away = "closed"
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        if self._flusher is not None:
            await asyncio.gather(self._flusher, return_exceptions=True)
        await self._hang_up()

    async def _ask(self, parts: Sequence[Part]) -> Any:
        if self._away is not None:
            raise Unavailable("redis", self._away)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.append((packed(*parts), reply))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush(), name="redis commands")
        return await reply

    async def _flush(self) -> None:
        """Send what has been asked, again and again until nothing is left; a batch grows while the last is out."""
        try:
            while self._queue:
                batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
                try:
                    answers = await _within(self._deadline, self._exchange([command for command, _ in batch]))
                except Exception as error:  # noqa: BLE001  # whatever it is, nobody may be left waiting for a reply
                    await self._hang_up()
                    self._lost(error)
                    self._fail([*batch, *self._queue])
                    return
                for (_, reply), answer in zip(batch, answers, strict=True):
                    if not reply.done():
                        reply.set_result(answer)
        finally:
            self._flusher = None

    async def _exchange(self, commands: Sequence[bytes]) -> list[Any]:
        connection = self._connection
        # A server may close a connection that was idle; whether it is away shows when it is called again.
        if connection is None or await connection.can_read():
            await self._hang_up()
            connection = self._connection = await self.dial()
            self._run_id = await _run_id_at(connection)
        return await exchange(connection, commands)

    def _fail(self, unanswered: Sequence[tuple[bytes, asyncio.Future[Any]]]) -> None:
        self._queue = []
        for _, reply in unanswered:
            if not reply.done():
                reply.set_exception(Unavailable("redis", str(self._away)))

    async def _reach(self) -> None:
        connection = await self.dial()
        try:
            run_id = await _within(self._deadline, _run_id_at(connection))
        except BaseException:
            await hang_up(connection)
            raise
        self._connection = connection
        self._run_id = run_id
        self._away = None
        self._back_at = time.monotonic()

    def _lost(self, error: Exception) -> None:
        if self._away == "closed":
            return
        self._away = str(error) or type(error).__name__
        _logger.warning("redis unavailable; %s", self._consequence, extra={"error": self._away})
        self._probe = asyncio.create_task(self._probe_until_back(), name="redis probe")

    async def _probe_until_back(self) -> None:
        stable = time.monotonic() - self._back_at > STABLE_SECONDS
        pause = FIRST_PROBE_PAUSE if stable else PROBE_PAUSE
        while True:
            await asyncio.sleep(pause)
            try:
                await self._reach()
            except TROUBLE as error:
                self._away = str(error) or type(error).__name__
                pause = PROBE_PAUSE
            else:
                _logger.info("redis is back")
                return

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await hang_up(connection)


def packed(*parts: Part) -> bytes:
    """A command as it goes over the wire."""
    command: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # says one part, and means any number
    return command


async def exchange(connection: Connection, commands: Sequence[bytes]) -> list[Any]:
    """Send packed commands together and read their replies; an error reply is returned in its place."""
    await connection.send_packed_command(commands)
    return [await _reply(connection) for _ in commands]


async def hang_up(connection: Connection) -> None:
    """Close a connection without waiting for the other end."""
    await connection.disconnect(nowait=True)


async def _run_id_at(connection: Connection) -> bytes:
    """A digest of the server's own name for its run; nothing where it does not say one."""
    (reply,) = await exchange(connection, [packed("INFO", "server")])
    found = re.search(rb"run_id:(\w+)", reply) if isinstance(reply, bytes) else None
    return hashlib.sha256(found[1]).digest()[:RUN_BYTES] if found else bytes(RUN_BYTES)


async def _reply(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


async def _within(deadline: float, work: Coroutine[Any, Any, T]) -> T:
    """Wait for an answer up to a deadline, cut into slices.

    When our own event loop is busy for longer than the deadline, the timer and the answer are due in the same turn;
    with several slices the answer is read before the last of them is over, and Redis is not blamed for our delay.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(SLICES):
            await asyncio.wait({task}, timeout=deadline / SLICES)
            if task.done():
                return task.result()
        raise TimeoutError(f"no answer within {deadline:g} s")
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
