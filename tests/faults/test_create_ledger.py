"""Links that are made while the process is killed: each that was acknowledged is there, with exactly one event.

They are made in every way there is: plainly, with an alias, and with an Idempotency-Key.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.services.links.api import UrlCreated
from tests.support.instances import Instance, instance, servers
from tests.support.ledger import Ledger, Verdict
from tests.support.load import BROKEN, Making
from tests.support.waiting import eventually

__all__ = ["instance", "servers"]

CONNECTIONS = 8
PREFIX = "https://example.com/"
LINKS = "SELECT short_code, original_url FROM links"
COUNT = "SELECT count(*) FROM links"
KEYS = "SELECT key, answer FROM idempotency_keys"
ROWS = 1_000


def number_of(url: str) -> int:
    """The number of the attempt that made a link."""
    return int(url.removeprefix(PREFIX))


async def created(instance: Instance) -> list[tuple[str, str]]:
    """Codes and URLs of all created events, sorted."""
    events = [event for event in await instance.events() if isinstance(event, UrlCreated)]
    return sorted((event.short_code, event.original_url) for event in events)


async def check_ways(instance: Instance, making: Making, codes: Mapping[int, str]) -> None:
    """There are links of each way to make them: aliases are what was asked for, and answers are kept with the links."""
    aliases = {number: alias for number in codes if (alias := making.alias(number))}
    keys = {key: codes[number] for number in codes if (key := making.key(number))}
    plain = len(codes) - len(aliases) - len(keys)
    assert min(len(aliases), len(keys), plain) > len(codes) / 4
    assert {number: codes[number] for number in aliases} == aliases
    kept = {row[0]: msgspec.json.decode(row[1])["short_code"] for row in await instance.fetch(KEYS)}
    assert kept == keys, "a link without the answer to its key, or an answer without its link"


async def make_and_kill(instance: Instance, folder: Path, links: int, kills: int) -> None:
    """Clients make links while the process is killed so many times, spread over all they do."""
    with Ledger(folder / "ledger") as ledger:
        target, token = f"{instance.api}/shorten", instance.token()
        making = Making(instance.port, ledger, links, target=target, token=token, prefix=PREFIX)
        async with making.running(CONNECTIONS) as running:
            for kill in range(1, kills + 1):
                await making.answered(kill * links // (kills + 1))
                await instance.kill()
                await instance.start()
            await running
        await instance.drained()
        assert await instance.stop() == 0
        rows = sorted((row[0], row[1]) for row in await instance.fetch(LINKS))
        assert ledger.compare(number_of(url) for _, url in rows) == Verdict()
        assert await created(instance) == rows, "a link without its event, or an event without its link"
        await check_ways(instance, making, {number_of(url): code for code, url in rows})
        assert making.refused == Counter()
        assert ledger.answered == links == ledger.attempted - making.unanswered
        assert kills <= making.unanswered < links / 4, "the kills did not come in mid-load"


async def test_three_hundred_creates_and_three_kills(instance: Instance, tmp_path: Path) -> None:
    await make_and_kill(instance, tmp_path, 300, 3)


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_fifty_thousand_creates_and_twenty_kills(instance: Instance, tmp_path: Path) -> None:
    await make_and_kill(instance, tmp_path, 50_000, 20)


# A thousand rows in one request


async def bulk(instance: Instance, rows: list[Any], key: str) -> bytes | None:
    """The answer to a request for many links; None if the process ended before it came."""
    try:
        answer = await instance.call("POST", "/shorten/bulk", {"urls": rows}, f"Idempotency-Key: {key}")
    except BROKEN:
        return None
    assert answer.status == 200, answer.body
    return answer.body


async def kill_in_mid_bulk(instance: Instance, rows: list[Any], key: str) -> int:
    """Kill the process while it works on the rows; how many links it had made of them."""
    [before] = await instance.fetch(COUNT)
    asking = asyncio.create_task(bulk(instance, rows, key))

    async def began() -> bool:
        return asking.done() or bool((await instance.fetch(COUNT))[0][0] > before[0])

    await eventually(began, interval=0)
    await instance.kill()
    await asking
    await instance.start()
    [after] = await instance.fetch(COUNT)
    return int(after[0] - before[0])


async def test_a_bulk_that_a_kill_cut_short_is_completed_by_a_repetition(instance: Instance) -> None:
    bad = {17: "not a url", 400: "ftp://example.com/", 1_000: "https://example.com/\r\nx"}
    good = ROWS - len(bad)
    for attempt in range(10):  # a quick machine may be through before the kill comes
        rows = [bad.get(number, f"{PREFIX}{attempt * ROWS + number}") for number in range(1, ROWS + 1)]
        made = await kill_in_mid_bulk(instance, rows, f"bulk-{attempt}")
        if 0 < made < good:
            break
    else:
        pytest.fail("no kill came in the middle of a request")
    report = await bulk(instance, rows, f"bulk-{attempt}")
    assert report is not None
    assert await bulk(instance, rows, f"bulk-{attempt}") == report
    results = msgspec.json.decode(report)["results"]
    assert [result["row"] for result in results] == list(range(1, ROWS + 1))
    assert {result["row"]: result["error"] for result in results if result["status"] == 400} == {
        17: "url must include scheme and host",
        400: "url scheme must be http or https",
        1_000: "url must not contain control characters",
    }
    assert Counter(result["status"] for result in results) == {201: good, 400: len(bad)}
    await instance.drained()
    assert await instance.stop() == 0
    codes = {result["short_code"]: rows[result["row"] - 1] for result in results if result["status"] == 201}
    stored = sorted((row[0], row[1]) for row in await instance.fetch(LINKS))
    assert sorted(pair for pair in stored if pair[1] in rows) == sorted(codes.items())
    assert await created(instance) == stored
