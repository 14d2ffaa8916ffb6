"""A service composed of its parts: its routes, its events from announcement to reaction, its readiness."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from litestar import Request, get

from refract.kernel.clock import SystemClock
from refract.kernel.errors import Unavailable
from refract.kernel.events import LINK_EXCHANGE, Event, EventDecoder
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.messages import Binding, Queue
from refract.runtime.metrics import Metrics
from refract.runtime.migrations import migrate
from refract.runtime.ports import Transaction
from refract.runtime.service import Foundation, Reaction, compose
from refract.runtime.supervisor import Supervisor
from refract.runtime.tokens import TokenVerifier
from refract.services.links.api import UrlDeleted
from tests.support.http import fetch, running
from tests.support.waiting import eventually

VERIFIER = TokenVerifier(["a-secret-of-at-least-thirty-two-bytes"], SystemClock())
QUEUE = Queue("test.events", (Binding(LINK_EXCHANGE, "url.*"),))


@get("/who")
async def who(request: Request[Any, Any, Any]) -> dict[str, str]:
    """The address the service sees."""
    return {"address": request.scope["state"]["client_address"]}


@pytest.fixture
async def foundation(tmp_path: Path) -> AsyncIterator[Foundation]:
    await migrate("links", tmp_path / "links.sqlite3")
    database = await EmbeddedDatabase.open(tmp_path / "links.sqlite3")
    bus = await EmbeddedBus.open(tmp_path / "bus.sqlite3")
    yield Foundation(database, bus, SystemClock(), Metrics(), VERIFIER, timedelta(days=7))
    await bus.close()
    await database.close()


async def test_an_announced_event_reaches_its_reaction(foundation: Foundation) -> None:
    seen: list[Event] = []

    async def handle(_tx: Transaction, events: Sequence[Event]) -> None:
        seen.extend(events)

    service = compose(
        "url-service", foundation, reactions=[Reaction(QUEUE, EventDecoder(UrlDeleted), handle)], queues=[QUEUE]
    )
    async with Supervisor() as supervisor:
        await service.join(supervisor)
        async with foundation.database.transaction() as tx:
            await tx.announce(UrlDeleted(occurred_at=datetime.now(UTC), short_code="a", user_id="u", user_email="e"))
        # Both are counted after their commit, which comes after the handler.
        await eventually(lambda: b'inbox_handled_total{reader="test.events"} 1.0' in foundation.metrics.exposition())
        await eventually(
            lambda: b'outbox_published_total{service="url-service"} 1.0' in foundation.metrics.exposition()
        )

    assert isinstance(seen[0], UrlDeleted)
    assert seen[0].short_code == "a"


@pytest.mark.parametrize(("trusted", "address"), [("127.0.0.1/32", "203.0.113.9"), ("10.0.0.0/8", "127.0.0.1")])
async def test_a_service_sees_the_client_behind_a_gateway_it_trusts(
    foundation: Foundation, trusted: str, address: str
) -> None:
    service = compose("url-service", replace(foundation, trusted_proxies=(ip_network(trusted),)), routes=[who])
    async with running(service.application) as server:
        answer = await fetch(server.port, "/who", "X-Forwarded-For: 203.0.113.9")
    assert answer.json == {"address": address}


async def test_it_is_ready_when_all_it_stands_on_answers(foundation: Foundation) -> None:
    async def away() -> None:
        raise Unavailable("redis", "nobody answers")

    async def here() -> None:
        await asyncio.sleep(0)

    for check, status in ((here, 200), (away, 503)):
        service = compose("url-service", replace(foundation, checks={"redis": check}))
        async with running(service.application) as server:
            answer = await fetch(server.port, "/ready")
        assert answer.status == status
        assert list(answer.json["checks"]) == ["database", "bus", "redis"]
