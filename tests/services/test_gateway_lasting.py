"""Answers that last for hours end when their token or key is taken back, in both ways to reach a service."""

import asyncio
from contextlib import suppress
from datetime import timedelta

import pytest

from refract.runtime.edge import Receive, Scope, Send
from refract.services.gateway.domain.keys import KnownKeys
from refract.services.gateway.domain.revocations import Revocation, Revocations
from refract.services.gateway.http import lasting
from tests.support.clocks import ManualClock
from tests.support.fronts import Front, authorization, front, signed, tokens
from tests.support.http import Client, head
from tests.support.keys import Desk, hash_of
from tests.support.waiting import eventually

__all__ = ["front"]

LIVE, EXPORT = "/api/stats/abc/live", "/api/stats/abc/export"
LAST_CHUNK = b"0\r\n\r\n"


class Speaker(Desk):
    """Answers with pieces that a test asks it for, for as long as its client is there."""

    def __init__(self, media_type: bytes = b"text/event-stream", clock: ManualClock | None = None) -> None:
        super().__init__(clock or ManualClock())
        self.media_type = media_type
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.listeners = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak, or be identity."""
        if not scope["path"].startswith("/stats/"):
            await super().__call__(scope, receive, send)
            return
        assert (await receive())["type"] == "http.request"
        self.listeners += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self.media_type)]})
        speaking = asyncio.create_task(self._speak(send))
        assert (await receive())["type"] == "http.disconnect"
        speaking.cancel()
        self.listeners -= 1

    async def _speak(self, send: Send) -> None:
        while True:
            await send({"type": "http.response.body", "body": await self.pieces.get(), "more_body": True})


async def listen(client: Client, path: str, *headers: str) -> None:
    await client.send(head("GET", path, *headers))
    answer = (await client.reader.readuntil(b"\r\n\r\n")).decode()
    assert " 200 " in answer.splitlines()[0], answer


async def heard(client: Client, speaker: Speaker, piece: bytes) -> None:
    speaker.pieces.put_nowait(piece)
    assert (await client.reader.readuntil(piece + b"\r\n")).endswith(piece + b"\r\n")


async def rest_of(client: Client) -> bytes:
    """What comes until nothing more does."""
    async with asyncio.timeout(30):
        with suppress(ConnectionResetError):
            return await client.reader.read(1_000)
    return b""


@pytest.mark.parametrize("session", [False, True])
async def test_a_stream_ends_with_its_token(front: Front, session: bool) -> None:
    speaker, revocations = Speaker(), Revocations()
    port = await front(speaker, revocations=revocations)
    claims = tokens().verify(token := signed("ann"))
    other = authorization(signed("bob"))
    field = f"Cookie: refract_session={token}" if session else authorization(token)
    async with await Client.connect(port) as client, await Client.connect(port) as another:
        await listen(client, LIVE, field)
        await heard(client, speaker, b"first")
        await listen(another, LIVE, other)
        revocations.apply(Revocation("ann", claims.expires_at + timedelta(minutes=1), token_id=claims.token_id))
        assert await rest_of(client) == LAST_CHUNK, "like any other that ends"
        await eventually(lambda: speaker.listeners == 1)
        await heard(another, speaker, b"second")
    await eventually(lambda: speaker.listeners == 0)


async def test_a_stream_ends_when_its_token_expires(front: Front) -> None:
    clock = ManualClock()
    speaker = Speaker(clock=clock)
    port = await front(speaker, tokens=tokens(clock))
    async with await Client.connect(port) as client:
        await listen(client, LIVE, authorization(signed(clock=clock)))
        clock.advance(2 * 24 * 3_600)
        assert await rest_of(client) == LAST_CHUNK
    await eventually(lambda: speaker.listeners == 0)


async def test_a_stream_ends_with_its_key_and_is_a_single_use(front: Front) -> None:
    clock = ManualClock()
    speaker, known = Speaker(clock=clock), KnownKeys(clock)
    port = await front(speaker, tokens=tokens(clock), known_keys=known)
    key = speaker.issue("stats:read")
    async with await Client.connect(port) as client:
        await listen(client, LIVE, f"X-API-Key: {key}")
        known.forget(hash_of(key))  # as after a gap in what the gateway hears
        await eventually(lambda: len(speaker.asked(key)) == 2)
        await heard(client, speaker, b"still good")
        assert known.take_uses() == {}, "to look again is no use of it"
        assert speaker.asked(key) == [0, 1]
        del speaker.issued[key]
        known.forget(hash_of(key))
        assert await rest_of(client) == LAST_CHUNK
    await eventually(lambda: speaker.listeners == 0)


async def test_nothing_ends_while_identity_cannot_be_asked(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting, "LOOK_SECONDS", 0.01)
    clock = ManualClock()
    speaker, known = Speaker(clock=clock), KnownKeys(clock)
    port = await front(speaker, tokens=tokens(clock), known_keys=known)
    key = speaker.issue("stats:read")
    async with await Client.connect(port) as client:
        await listen(client, LIVE, f"X-API-Key: {key}")
        speaker.instead = (500, b"{}")
        known.forget(hash_of(key))
        await eventually(lambda: len(speaker.asked(key)) >= 3)
        await heard(client, speaker, b"still there")


async def test_a_file_is_cut_off_so_that_half_of_it_does_not_look_whole(front: Front) -> None:
    speaker, revocations = Speaker(b"text/csv"), Revocations()
    port = await front(speaker, revocations=revocations)
    claims = tokens().verify(token := signed("ann"))
    async with await Client.connect(port) as client:
        await listen(client, EXPORT, authorization(token))
        await heard(client, speaker, b"a,b,c")
        revocations.apply(Revocation("ann", claims.expires_at, generation=1))
        assert await rest_of(client) == b""
    await eventually(lambda: speaker.listeners == 0)
