"""The clients of the ledgers: what they were asked for is what was acknowledged to them, and not what they tried."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from refract.runtime.edge import Receive, Scope, Send
from tests.support.http import running
from tests.support.ledger import Ledger
from tests.support.load import MOST_ATTEMPTS, Following

PLACE = "https://example.com/"
TOTAL = 60
CONNECTIONS = 8


class Moody:
    """A redirector that refuses some and follows the others, a little later."""

    def __init__(self, refuses_one_in: int, *, seconds: float = 0.002, falls_silent_after: int = 1_000) -> None:
        self.asked = 0
        self._one_in = refuses_one_in
        self._seconds = seconds
        self._falls_silent_after = falls_silent_after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        status = 503 if self.asked % self._one_in == 0 else 302
        await asyncio.sleep(self._seconds if self.asked <= self._falls_silent_after else 60)
        headers = [(b"content-length", b"0"), (b"location", PLACE.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


async def test_they_go_on_until_as_many_as_were_wanted_are_acknowledged_and_no_more(tmp_path: Path) -> None:
    async with running(Moody(3)) as server:
        with Ledger(tmp_path / "ledger") as ledger:
            load = Following(server.port, ledger, TOTAL, places={"abc": PLACE})
            await load.run(CONNECTIONS)
    assert ledger.answered == TOTAL
    assert load.refused == Counter({503: ledger.attempted - TOTAL})
    assert load.refused[503] >= TOTAL // 3


@pytest.mark.parametrize("in_background", [False, True])
async def test_where_next_to_nothing_is_acknowledged_they_fail_and_say_why(
    tmp_path: Path, *, in_background: bool
) -> None:
    async with running(Moody(1)) as server:
        with Ledger(tmp_path / "ledger") as ledger:
            load = Following(server.port, ledger, TOTAL, places={"abc": PLACE})
            reason = f"of {MOST_ATTEMPTS * TOTAL} attempts 0 were acknowledged and not {TOTAL}"
            if in_background:
                with pytest.raises(AssertionError, match=reason):
                    async with load.running(CONNECTIONS):
                        await load.answered(TOTAL // 2)
            else:
                with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match=reason)):
                    await load.run(CONNECTIONS)
    assert ledger.attempted == MOST_ATTEMPTS * TOTAL


NEVER = 1_000
"""Refuses one in so many: more than are asked for here."""


async def test_whoever_waits_for_them_waits_as_long_as_something_comes(tmp_path: Path) -> None:
    async with running(Moody(NEVER, seconds=0.05)) as server:
        with Ledger(tmp_path / "ledger") as ledger:
            load = Following(server.port, ledger, places={"abc": PLACE})
            async with load.running(2):
                begun = time.monotonic()
                await load.answered(TOTAL, timeout=0.5)
                assert time.monotonic() > begun + 1, "that was not long"


async def test_and_no_longer(tmp_path: Path) -> None:
    async with running(Moody(NEVER, falls_silent_after=TOTAL // 2)) as server:
        with Ledger(tmp_path / "ledger") as ledger:
            load = Following(server.port, ledger, places={"abc": PLACE})
            with pytest.raises(AssertionError, match=r"not within 0\.5 s"):
                async with load.running(2):
                    await load.answered(TOTAL, timeout=0.5)
    assert ledger.answered == TOTAL // 2
