"""Many at once, over one process or two: one effect for one wish, and every reader ends at the last version."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refract.kernel.events import LINK_EXCHANGE, LinkEvent
from refract.kernel.ids import new_event_id
from refract.runtime.messages import Message
from refract.services.links.api import UrlClicked, UrlCreated, UrlDeleted, UrlUpdated
from tests.support.http import Answer, Client, fetch
from tests.support.instances import DistributedInstance, Instance, beside, servers, started
from tests.support.waiting import eventually

__all__ = ["servers"]

AT_ONCE = 100
CODES = "SELECT short_code FROM links"
Processes = list[Instance]


@pytest.fixture
async def processes(servers: dict[str, str] | None, tmp_path: Path) -> AsyncIterator[Processes]:
    """The one process of embedded mode, or two of links on one database."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(started(tmp_path, servers))
        if isinstance(first, DistributedInstance):
            yield [first, await stack.enter_async_context(beside(first))]
        else:
            yield [first]


async def all_at_once(processes: Processes, wishes: Sequence[Any], *headers: str) -> list[Answer]:
    """As many requests to shorten as wishes, each over a connection of its own that stands already, at one moment."""
    chosen = [processes[number % len(processes)] for number in range(len(wishes))]
    clients = [await Client.connect(process.port) for process in chosen]
    own = (f"Authorization: Bearer {processes[0].token()}", *headers)
    target = f"{processes[0].api}/shorten"
    try:
        return await asyncio.gather(
            *(
                client.post(target, msgspec.json.encode(wish), *own)
                for client, wish in zip(clients, wishes, strict=True)
            )
        )
    finally:
        for client in clients:
            client.close()


async def events(processes: Processes) -> list[LinkEvent]:
    """What reached the bus of all processes, which have ended then."""
    await processes[0].drained()
    assert [await process.stop() for process in processes] == [0] * len(processes)
    return await processes[0].events()


async def made(processes: Processes) -> list[tuple[str, ...]]:
    """The codes in the database."""
    return [tuple(row) for row in await processes[0].fetch(CODES)]


# One wish


async def test_one_url_a_hundred_times_at_once_is_one_link(processes: Processes) -> None:
    answers = await all_at_once(processes, [{"url": "https://example.com/one"}] * AT_ONCE)
    assert Counter(answer.status for answer in answers) == {201: 1, 200: AT_ONCE - 1}
    [code] = {answer.json["short_code"] for answer in answers}
    assert await made(processes) == [(code,)]
    [event] = await events(processes)
    assert (type(event), event.event_id != "") == (UrlCreated, True)


async def test_one_idempotency_key_a_hundred_times_at_once_is_one_effect(processes: Processes) -> None:
    wish = {"url": "https://example.com/one", "force_new": True}
    answers = await all_at_once(processes, [wish] * AT_ONCE, "Idempotency-Key: one")
    assert {answer.status for answer in answers} == {201}
    [body] = {answer.body for answer in answers}
    code = msgspec.json.decode(body)["short_code"]
    assert await made(processes) == [(code,)]

    last = processes[-1]
    other = await last.call("POST", "/shorten", wish | {"title": "another"}, "Idempotency-Key: one")
    assert other.status == 422
    assert (await last.call("POST", "/shorten", wish, f"Idempotency-Key: {'k' * 256}")).status == 400
    assert await made(processes) == [(code,)]
    theirs = await last.call("POST", "/shorten", wish, "Idempotency-Key: one", user="bob")
    assert theirs.status == 201
    assert theirs.json["short_code"] != code
    assert [type(event) for event in await events(processes)] == [UrlCreated, UrlCreated]


async def test_bodies_that_differ_under_one_key_at_once_have_one_winner(processes: Processes) -> None:
    wishes = [{"url": f"https://example.com/{number % 2}", "force_new": True} for number in range(AT_ONCE)]
    answers = await all_at_once(processes, wishes, "Idempotency-Key: two")
    assert Counter(answer.status for answer in answers) == {201: AT_ONCE // 2, 422: AT_ONCE // 2}
    [code] = {answer.json["short_code"] for answer in answers if answer.status == 201}
    assert await made(processes) == [(code,)]


async def test_one_alias_a_hundred_times_at_once_has_one_owner(processes: Processes) -> None:
    wishes = [{"url": f"https://example.com/{number}", "custom_code": "wanted"} for number in range(AT_ONCE)]
    answers = await all_at_once(processes, wishes)
    assert Counter(answer.status for answer in answers) == {201: 1, 409: AT_ONCE - 1}
    assert await made(processes) == [("wanted",)]


# The order of events

State = dict[str, tuple[int, str | None]]
"""The order of the last event of each code, and where it leads, or None once it is deleted."""


def version_of(event: LinkEvent) -> tuple[str, int]:
    """Which version of which link an event is about."""
    assert isinstance(event, UrlCreated | UrlUpdated | UrlDeleted)
    return event.short_code, event.order


def last_versions(found: Iterable[LinkEvent]) -> State:
    """What a reader knows that takes an event only if it is above the last one it took."""
    state: State = {}
    for event in found:
        if isinstance(event, UrlClicked):
            continue
        assert isinstance(event, UrlCreated | UrlUpdated | UrlDeleted)
        if event.order > state.get(event.short_code, (-1, None))[0]:
            state[event.short_code] = event.order, None if isinstance(event, UrlDeleted) else event.original_url
    return state


async def live(processes: Processes, number: int, every: int = 3) -> None:
    """The life of one link, each step at another process: made, changed twice, and one of so many deleted."""
    chosen = [processes[(number + step) % len(processes)] for step in range(4)]
    wish = {"url": f"https://example.com/first/{number}", "custom_code": f"link-{number}"}
    assert (await chosen[0].call("POST", "/shorten", wish)).status == 201
    for step, word in enumerate(("second", "third")):
        change = {"url": f"https://example.com/{word}/{number}"}
        assert (await chosen[step + 1].call("PATCH", f"/urls/link-{number}", change)).status == 200
    if number % every == 0:
        assert (await chosen[3].call("DELETE", f"/urls/link-{number}")).status == 204


def expected(number: int, every: int = 3) -> str | None:
    """Where a link leads at the end of its life."""
    return None if number % every == 0 else f"https://example.com/third/{number}"


async def in_the_database(processes: Processes) -> State:
    """The same as the links' own table has it."""
    rows = await processes[0].fetch("SELECT short_code, version, status, original_url FROM links")
    return {code: (version, None if status == "deleted" else url) for code, version, status, url in map(tuple, rows)}


async def all_relayed(processes: Processes) -> bool:
    """Whether each of two processes has sent something."""
    if len(processes) == 1:
        return True
    return all([await process.metric("outbox_published_total") for process in processes])


@pytest.mark.parametrize(
    ("links", "every"), [(60, 3), pytest.param(1_000, 1, marks=[pytest.mark.full, pytest.mark.timeout(600)])]
)
async def test_every_reader_ends_at_the_last_version(processes: Processes, links: int, every: int) -> None:
    for first in range(0, links, 20):
        await asyncio.gather(*(live(processes, number, every) for number in range(first, min(first + 20, links))))
    for _ in range(5):  # one of them may have stood still until the other had sent everything
        if not await all_relayed(processes):
            await asyncio.gather(*(live(processes, number, every) for number in range(links, links + 20)))
            links += 20
    assert await all_relayed(processes), "only one of the relays did anything"
    state = await in_the_database(processes)
    places = {code: place for code, (_, place) in state.items()}
    assert places == {f"link-{number}": expected(number, every) for number in range(links)}
    await processes[0].drained()
    assert [await process.stop() for process in processes] == [0] * len(processes)
    found = await processes[0].events()
    assert len(found) == 3 * links + len(range(0, links, every))
    versions = Counter(version_of(event) for event in found)
    assert set(versions.values()) == {1}, "two events of one version"
    assert last_versions(found) == state
    for seed in range(5):  # whatever order they come in, and however often
        again = found * 2
        random.Random(seed).shuffle(again)
        assert last_versions(again) == state
        assert last_versions([*found, *again]) == state


def as_new(event_type: str, payload: str) -> Message:
    """An event of the outbox once more, under an id that no reader has seen."""
    event_id = new_event_id()
    body = msgspec.json.decode(payload) | {"event_id": event_id}
    return Message(LINK_EXCHANGE, event_type, msgspec.json.encode(body), event_id, mandatory=False)


async def lead_right(processes: Processes, links: int) -> bool:
    """Whether every process sends everybody to the last version."""
    found = [
        (await fetch(process.port, f"/link-{number}")).headers.get("location")
        for process in processes
        for number in range(links)
    ]
    return found == [expected(number) for number in range(links)] * len(processes)


async def test_stale_events_after_newer_ones_change_nothing(processes: Processes) -> None:
    """Our own reader of these events drops copies: sent again in any order, they lead nobody to an older place."""
    first = processes[0]
    await asyncio.gather(*(live(processes, number) for number in range(12)))
    await first.drained()
    await eventually(lambda: lead_right(processes, 12))
    rows = await first.fetch("SELECT event_type, payload FROM outbox WHERE event_type <> 'url.clicked'")
    bus = await first.buses.open()
    for seed in range(3):
        stale = [as_new(row[0], row[1]) for row in rows]
        random.Random(seed).shuffle(stale)
        assert await bus.publish_all(stale) == [None] * len(stale)
        for _ in range(5):
            assert await lead_right(processes, 12)
    await bus.close()
    assert last_versions(await events(processes)) == await in_the_database(processes)
