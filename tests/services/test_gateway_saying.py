"""What the gateway says to a service by itself, in both ways: a POST in JSON, and whatever is answered."""

import asyncio

import pytest

from refract.runtime.correlation import correlated
from refract.runtime.edge import Receive, Scope, Send
from refract.services.gateway.adapters import in_process
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.domain.headers import UnknownUpstream, UpstreamFailed
from tests.support.both_paths import CUT, OK, Bare
from tests.support.fronts import mirror, read_body, send_answer
from tests.support.reaching import Reach, reach

__all__ = ["reach"]


async def test_it_is_a_post_with_its_body_and_the_id_of_the_request(reach: Reach) -> None:
    services = await reach(mirror)
    with correlated("of-the-request"):
        status, seen = await services.post("identity", "/keys/resolve", b'{"key":"\xc3\xa9"}')
    assert status == 200
    assert b'"method":"POST","path":"/keys/resolve"' in seen
    assert '"body":"{\\"key\\":\\"é\\"}"'.encode() in seen
    for field in (b'["content-type","application/json"]', b'["x-correlation-id","of-the-request"]'):
        assert seen.count(field) == 1
    assert b"authorization" not in seen.lower()


@pytest.mark.parametrize("status", [200, 204, 401, 404, 500, 503])
async def test_any_status_is_an_answer(reach: Reach, status: int) -> None:
    async def answer(_scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send_answer(send, status, b"" if status == 204 else b"{}")

    assert await (await reach(answer)).post("identity", "/x", b"{}") == (status, b"" if status == 204 else b"{}")


async def test_half_an_answer_is_none(reach: Reach) -> None:
    async def half(_scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    with pytest.raises(UpstreamFailed):
        await (await reach(half)).post("identity", "/x", b"{}")


async def test_somebody_who_does_not_exist_cannot_be_told(reach: Reach) -> None:
    with pytest.raises(UnknownUpstream):
        await (await reach(mirror)).post("links", "/x", b"{}")


async def test_nobody_is_waited_for_without_end(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "PATIENCE", 0.05)

    async def silent(_scope: Scope, receive: Receive, _send: Send) -> None:
        await read_body(receive)
        await asyncio.get_running_loop().create_future()

    services = await reach(silent)
    if isinstance(services, Proxy):
        monkeypatch.setattr(services, "_connect_timeout", 0.05)
    with pytest.raises(UpstreamFailed, match="TimeoutError"):
        await services.post("identity", "/x", b"{}")


async def test_a_connection_that_has_died_of_old_age_is_replaced() -> None:
    bare = Bare(CUT, first=(OK,))  # whoever comes again on the same connection finds it dead
    server = await asyncio.start_server(bare.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy = Proxy({"identity": f"http://127.0.0.1:{port}"}, connect_timeout=30.0)
    try:
        # Without a body, because a bare service reads heads alone.
        assert [await proxy.post("identity", "/x", b"") for _ in range(3)] == [(200, b"ok")] * 3
        assert bare.connections == 3
    finally:
        await proxy.close()
        server.close()


async def test_who_is_not_there_cannot_be_told() -> None:
    proxy = Proxy({"identity": "http://127.0.0.1:9"}, connect_timeout=2.0)
    with pytest.raises(UpstreamFailed):
        await proxy.post("identity", "/x", b"{}")
    await proxy.close()
    with pytest.raises(UpstreamFailed):
        await proxy.post("identity", "/x", b"{}")
