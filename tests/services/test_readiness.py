"""/ready: what answers and what does not, asked together, in bounded time, and once for all who ask at once."""

import asyncio
import logging
from typing import ClassVar

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.edge import Edge, Receive, Scope, Send
from refract.runtime.readiness import Check, Readiness
from refract.runtime.web import build_app
from tests.support.http import fetch, running
from tests.support.waiting import eventually


def application(checks: dict[str, Check]) -> Edge:
    return build_app("url-service", [], ready=checks)


class Counted:
    """The application, and how many requests have come to it."""

    def __init__(self, checks: dict[str, Check]) -> None:
        self._edge = application(checks)
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        await self._edge(scope, receive, send)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that a test holds up may take their time."""
    monkeypatch.setattr("refract.runtime.readiness.CHECK_SECONDS", 60.0)


async def test_ready_names_what_answers_and_what_does_not(caplog: pytest.LogCaptureFixture) -> None:
    async def fine() -> None:
        return None

    async def away() -> None:
        raise Unavailable("redis", "cannot reach redis://me:secret@cache:6379/0")

    async def broken() -> None:
        raise KeyError("postgres://me:secret@db")

    async with running(application({"database": fine})) as server:
        answer = await fetch(server.port, "/ready")
        assert (answer.status, answer.body) == (200, b'{"status":"ready","checks":{"database":"ok"}}')
    async with running(application({"database": fine, "redis": away, "broker": broken})) as server:
        answer = await fetch(server.port, "/ready")
        assert (answer.status, answer.json) == (
            503,
            {
                "status": "not ready",
                "checks": {"database": "ok", "redis": "unavailable", "broker": "unavailable"},
            },
        )
    ours = [record for record in caplog.records if record.name.startswith("refract")]
    (line,) = [vars(record) for record in ours if record.levelno == logging.WARNING]
    assert (line["dependency"], line["reason"]) == ("redis", "cannot reach redis://cache:6379/0")


@pytest.mark.usefixtures("patient")
async def test_checks_run_together() -> None:
    class Meeting:
        """Two checks that only end together."""

        both: ClassVar[asyncio.Barrier]

        @classmethod
        async def check(cls) -> None:
            await cls.both.wait()

    Meeting.both = asyncio.Barrier(2)
    async with running(application({"a": Meeting.check, "b": Meeting.check})) as server:
        answer = await fetch(server.port, "/ready")
    assert answer.json["checks"] == {"a": "ok", "b": "ok"}


async def test_checks_are_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fine() -> None:
        return None

    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("refract.runtime.readiness.CHECK_SECONDS", 0.2)
    async with running(application({"a": fine, "b": hang, "c": fine})) as server:
        answer = await fetch(server.port, "/ready")
    assert answer.json["checks"] == {"a": "ok", "b": "unavailable", "c": "ok"}


@pytest.mark.usefixtures("patient")
async def test_whoever_asks_at_once_is_answered_by_one_round() -> None:
    rounds = 0
    release = asyncio.Event()

    async def counted() -> None:
        nonlocal rounds
        rounds += 1
        await release.wait()

    app = Counted({"database": counted})
    async with running(app) as server:
        asking = [asyncio.create_task(fetch(server.port, "/ready")) for _ in range(20)]
        await eventually(lambda: app.asked == 20)
        release.set()
        answers = await asyncio.gather(*asking)
        assert {answer.status for answer in answers} == {200}
        joined = rounds
        await fetch(server.port, "/ready")
    assert joined < 20
    assert rounds == joined + 1


@pytest.mark.usefixtures("patient")
async def test_who_stops_waiting_does_not_stop_the_others() -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        asked.set()
        await release.wait()

    readiness = Readiness({"database": slow})
    first = asyncio.create_task(readiness.report())
    await asked.wait()
    second = asyncio.create_task(readiness.report())
    first.cancel()
    await asyncio.wait([first])
    release.set()
    assert await second == {"database": "ok"}
