"""The clients of the ledgers: what they were asked for is what was acknowledged to them, and not what they tried."""

import asyncio
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

    def __init__(self, refuses_one_in: int) -> None:
        self.asked = 0
        self._one_in = refuses_one_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        status = 503 if self.asked % self._one_in == 0 else 302
        await asyncio.sleep(0.002)
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
