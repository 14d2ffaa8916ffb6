"""GET /api/audit and /api/audit/summary: what is asked in the URL, and answers in JSON or in 003's plain text."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from litestar import Router

from refract.runtime.server import HttpServer
from refract.runtime.web import build_app
from refract.services.sms.http import auditing
from refract.services.sms.http.auditing import audit_routes
from refract.services.sms.http.texts import render_text
from refract.services.sms.queries.attempts import AttemptQueries
from refract.services.sms.queries.summaries import SummaryQueries
from tests.support.audit import Audit, attempt, audit, sms_location
from tests.support.clocks import START
from tests.support.http import Answer, fetch, running

__all__ = ["audit", "sms_location"]

ON_SQLITE = pytest.mark.parametrize("empty_location", ["embedded"], indirect=True)
"""What the database has no part in."""


@pytest.fixture
async def server(audit: Audit) -> AsyncIterator[HttpServer]:
    """The routes behind a server."""
    queries = AttemptQueries(audit.database), SummaryQueries(audit.database, audit.clock)
    router = Router(
        "/", route_handlers=audit_routes(*queries, audit.clock), exception_handlers={Exception: render_text}
    )
    async with running(build_app("sms-gateway", [router], ready={})) as server:
        yield server


async def get(server: HttpServer, target: str, method: str = "GET") -> Answer:
    return await fetch(server.port, target, method=method)


async def test_an_attempt_is_shown_by_the_names_of_its_topic(audit: Audit, server: HttpServer) -> None:
    noted = attempt(7, "limited", reason="Rate Limit Exceeded", message_id="", message="grüße")
    await audit.keep(noted)
    answer = await get(server, "/api/audit")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json == {
        "attempts": [
            {
                "event_id": noted.event_id,
                "userId": 7,
                "status": "limited",
                "path": "redis",
                "message": "grüße",
                "reason": "Rate Limit Exceeded",
                "correlation_id": "c-1",
                "occurred_at": "2026-03-01T12:00:00Z",
            }
        ]
    }, "what there is not is left out, the cursor too"


@ON_SQLITE
async def test_all_parameters_of_the_list_are_read(audit: Audit, server: HttpServer) -> None:
    await audit.keep(
        *(attempt(7, message=f"{number}", at=START - timedelta(minutes=number)) for number in range(5)),
        attempt(7, "failed", at=START - timedelta(minutes=2)),
        attempt(8, at=START - timedelta(minutes=2)),
    )
    query = "userId=7&status=sent&from=2026-03-01T11:57:00Z&to=2026-03-01T12:00:00Z&limit=2"
    first = (await get(server, f"/api/audit?{query}")).json
    assert [one["message"] for one in first["attempts"]] == ["1", "2"]
    second = (await get(server, f"/api/audit?{query}&after={first['next_cursor']}")).json
    assert [one["message"] for one in second["attempts"]] == ["3"]
    assert "next_cursor" not in second


@ON_SQLITE
async def test_the_summary_is_in_the_names_of_its_topic(audit: Audit, server: HttpServer) -> None:
    await audit.keep(attempt(7), attempt(7, "limited"), attempt(8))
    audit.clock.advance(60)
    answer = await get(server, "/api/audit/summary?userId=7&from=2026-03-01T12:00:00Z&to=2026-03-01T12:01:00Z&limit=5")
    assert answer.json == {
        "from": "2026-03-01T12:00:00Z",
        "to": "2026-03-01T12:01:00Z",
        "users": [
            {
                "userId": 7,
                "attempts": 2,
                "sent": 1,
                "limited": 1,
                "failed": 0,
                "invalid": 0,
                "limited_share": 0.5,
                "attempts_per_minute": 2.0,
                "peak_minute": "2026-03-01T12:00:00Z",
                "peak_attempts": 2,
            }
        ],
    }


@ON_SQLITE
@pytest.mark.parametrize(
    "target",
    [
        "/api/audit?userId=x",
        "/api/audit?userId=-1",
        "/api/audit?userId=2147483648",
        "/api/audit?userId=1&userId=2&userId=x",
        "/api/audit?status=lost",
        "/api/audit?limit=0",
        "/api/audit?after=nowhere",
        "/api/audit?from=2026-13-01",
        "/api/audit?to=%00",
        "/api/audit/summary?userId=%FF",
        "/api/audit/summary?from=2026-01-01",
        "/api/audit/summary?limit=ten",
    ],
)
async def test_a_wrong_parameter_is_refused_in_plain_text(server: HttpServer, target: str) -> None:
    answer = await get(server, target)
    assert (answer.status, answer.text) == (400, "Missing/Invalid Arguments")
    assert answer.headers["content-type"].startswith("text/plain")


@ON_SQLITE
async def test_head_has_no_body_and_an_empty_parameter_is_none(audit: Audit, server: HttpServer) -> None:
    await audit.keep(attempt(7))
    assert (await get(server, "/api/audit", "HEAD")).status == 200
    assert len((await get(server, "/api/audit?userId=&status=&after=")).json["attempts"]) == 1


@ON_SQLITE
async def test_a_database_that_is_away_is_said_in_the_words_of_003(audit: Audit, server: HttpServer) -> None:
    await audit.database.close()
    for target in ("/api/audit", "/api/audit/summary"):
        answer = await get(server, target)
        assert (answer.status, answer.text) == (503, "Postgres Down : Service Unavailable")


@ON_SQLITE
async def test_a_database_that_hangs_is_said_in_the_same_words(
    audit: Audit, server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not in those of the server, which gives up a little later."""
    monkeypatch.setattr(auditing, "PATIENCE", 0.05)
    monkeypatch.setattr(audit.database, "fetch", lambda *_, **__: asyncio.Event().wait())
    for target in ("/api/audit", "/api/audit/summary"):
        answer = await get(server, target)
        assert (answer.status, answer.text) == (503, "Postgres Down : Service Unavailable")
        assert answer.headers["content-type"].startswith("text/plain")
