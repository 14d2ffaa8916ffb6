"""The gateway's own questions to a service, in both ways: a whole answer with status 200, or an error that says so."""

import pytest

from refract.runtime.edge import Edge, Receive, Scope, Send
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.domain.headers import UnknownUpstream, UpstreamFailed
from tests.support.applications import Gate
from tests.support.fronts import mirror, send_answer, url_of
from tests.support.http import running
from tests.support.reaching import Reach, reach
from tests.support.waiting import eventually

__all__ = ["reach"]


async def test_a_question_is_a_get_with_its_query_and_without_a_body(reach: Reach) -> None:
    services = await reach(mirror)
    seen = await services.fetch("identity", "/revocations", {"after": "a b&c=d/é"})
    assert b'"method":"GET","path":"/revocations"' in seen
    assert b'"query":"after=a' in seen
    assert b'"body":""' in seen
    assert b"authorization" not in seen.lower()


async def test_the_query_arrives_as_it_was_meant(reach: Reach) -> None:
    queries: list[bytes] = []

    async def note(scope: Scope, _receive: Receive, send: Send) -> None:
        queries.append(scope["query_string"])
        await send_answer(send, 200, b"{}")

    services = await reach(note)
    assert await services.fetch("identity", "/x", {}) == b"{}"
    assert await services.fetch("identity", "/x", {"after": "0190-ab", "limit": "5"}) == b"{}"
    assert queries == [b"", b"after=0190-ab&limit=5"]


async def test_an_answer_in_pieces_is_put_together(reach: Reach) -> None:
    async def in_pieces(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one ", b"two ", b"three"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    assert await (await reach(in_pieces)).fetch("identity", "/x", {}) == b"one two three"


@pytest.mark.parametrize("status", [204, 301, 401, 404, 500, 503])
async def test_anything_but_200_is_a_failure(reach: Reach, status: int) -> None:
    async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send_answer(send, status, b"" if status == 204 else b"{}", (b"location", b"/elsewhere"))

    services = await reach(refuse)
    with pytest.raises(UpstreamFailed, match=f"status {status}"):
        await services.fetch("identity", "/x", {})


async def test_an_application_that_fails_is_a_failure(reach: Reach) -> None:
    async def fail(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise RuntimeError("a bug")

    services = await reach(Edge(fail, "user-service"))
    with pytest.raises(UpstreamFailed, match="status 500"):
        await services.fetch("identity", "/x", {})


async def test_half_an_answer_is_none(reach: Reach) -> None:
    async def break_off(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    services = await reach(break_off)
    with pytest.raises(UpstreamFailed):
        await services.fetch("identity", "/x", {})


async def test_a_service_that_nobody_named_is_unknown(reach: Reach) -> None:
    services = await reach(mirror)
    with pytest.raises(UnknownUpstream):
        await services.fetch("nobody", "/x", {})


async def test_a_service_that_is_not_there_or_does_not_answer_is_a_failure() -> None:
    gate = Gate()
    async with running(gate) as server:
        services = Proxy({"identity": url_of(server)}, connect_timeout=0.1)

        async def was_reached() -> bool:
            with pytest.raises(UpstreamFailed, match="TimeoutError"):
                await services.fetch("identity", "/x", {})
            return gate.waiting > 0

        await eventually(was_reached)  # where a connection takes long, the time is over before anybody is asked
        gate.opened.set()
    with pytest.raises(UpstreamFailed):
        await services.fetch("identity", "/x", {})
    await services.close()
    with pytest.raises(UpstreamFailed, match="stopping"):
        await services.fetch("identity", "/x", {})
