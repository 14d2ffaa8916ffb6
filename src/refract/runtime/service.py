"""What every service with a database is made of: its application, its relay, its readers, its housekeeping."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from refract.kernel.clock import Clock
from refract.kernel.events import EventDecoder
from refract.runtime.callers import caller_from
from refract.runtime.client_address import Network
from refract.runtime.edge import Application
from refract.runtime.fast_path import FastPath
from refract.runtime.inbox import Handle, Inbox
from refract.runtime.keeping import Keeper
from refract.runtime.messages import Queue
from refract.runtime.metrics import Metrics
from refract.runtime.outbox import Relay
from refract.runtime.ports import Database, EventBus, RecordLog
from refract.runtime.readiness import Check
from refract.runtime.records import Topic
from refract.runtime.request_log import EVERY_LINE
from refract.runtime.rush import Rush
from refract.runtime.supervisor import Supervisor
from refract.runtime.telemetry import serving
from refract.runtime.tokens import TokenVerifier
from refract.runtime.web import build_app


@dataclass(frozen=True, slots=True)
class Foundation:
    """What a service stands on; `checks` are asked for /ready beside the database and the bus."""

    database: Database
    bus: EventBus
    clock: Clock
    metrics: Metrics
    tokens: TokenVerifier
    outbox_retention: timedelta
    trusted_proxies: Sequence[Network] = ()
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something is tried that may kill the process; one for all services that share a process."""
    checks: Mapping[str, Check] = field(default_factory=dict)
    records: RecordLog | None = None
    """Of a service that writes or reads topics: in distributed mode only those that need Kafka have it."""
    rush: Rush | None = None
    """Of a process in which what can wait works at the cost of redirects, and rests while there is one."""
    hands_over: bool = False
    """Whether what is saved in large numbers is sent on from memory: where a relay would read it over a network."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """A queue of a service, what it understands, and what it does with it; if it `can_wait`, not during a rush."""

    queue: Queue
    decoder: EventDecoder
    handle: Handle
    can_wait: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """Something that goes on in the background; `drain` is called after it was cancelled."""

    name: str
    run: Callable[[], Awaitable[None]]
    drain: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """A service ready to be served and supervised."""

    wire_name: str
    application: Application
    declare: Callable[[], Coroutine[Any, Any, None]]
    tasks: tuple[Task, ...]
    fast_path: FastPath | None = None

    async def join(self, supervisor: Supervisor) -> None:
        """Declare its queues and put its tasks under supervision; whatever they log is logged in its name."""
        await supervisor.unless_stopping(self.declare())
        for task in self.tasks:
            drain = self._named(task.drain) if task.drain else None
            supervisor.watch(f"{self.wire_name} {task.name}", self._named(task.run), drain=drain)

    def _named(self, run: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def named() -> None:
            with serving(self.wire_name):
                await run()

        return named


def compose(  # noqa: PLR0913  # all that a service is made of
    wire_name: str,
    foundation: Foundation,
    *,
    routes: Sequence[Any] = (),
    queues: Sequence[Queue] = (),
    reactions: Sequence[Reaction] = (),
    tasks: Sequence[Task] = (),
    topics: Sequence[Topic] = (),
    fast_path: FastPath | None = None,
    can_wait: str | None = None,
    log_samples: Mapping[str, float] = EVERY_LINE,
) -> Service:
    """A service from its routes and reactions. `queues` and `topics` are declared, so that nothing is lost, and not yet
    read. Its events of the type that `can_wait` are not sent on during a rush. Of routes in `log_samples` that part of
    the requests is logged."""
    engines: dict[str, Any] = {
        "database": foundation.database,
        "clock": foundation.clock,
        "metrics": foundation.metrics,
    }
    bus = foundation.bus
    relay = Relay(wire_name, bus=bus, rush=foundation.rush, can_wait=can_wait, **engines)
    keeper = Keeper(wire_name, outbox_retention=foundation.outbox_retention, **engines)
    readers = [
        Task(
            f"reader of {reaction.queue.name}",
            partial(
                Inbox(
                    reaction.queue,
                    reaction.decoder,
                    reaction.handle,
                    bus=bus,
                    one_at_a_time=foundation.one_at_a_time,
                    **engines,
                ).run,
                foundation.rush if reaction.can_wait else None,
            ),
        )
        for reaction in reactions
    ]
    checks = {"database": foundation.database.ping, "bus": bus.ping, **foundation.checks}
    if foundation.records is not None:
        checks["records"] = foundation.records.ping
    return Service(
        wire_name,
        build_app(
            wire_name,
            routes,
            ready=checks,
            metrics=foundation.metrics,
            trusted_proxies=foundation.trusted_proxies,
            dependencies={"caller": caller_from(foundation.tokens)},
            log_samples=log_samples,
        ),
        declare=partial(_declare, foundation, queues, topics),
        tasks=(Task("relay", relay.run, relay.drain), Task("keeper", keeper.run), *readers, *tasks),
        fast_path=fast_path,
    )


async def _declare(foundation: Foundation, queues: Sequence[Queue], topics: Sequence[Topic]) -> None:
    for queue in queues:
        await foundation.bus.declare(queue)
    for topic in topics:
        assert foundation.records is not None, "a service with topics has a log for them"
        await foundation.records.declare(topic)
