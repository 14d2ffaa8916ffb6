"""Notifications in trouble: nobody else notices, nothing is lost, nothing is told twice, nothing is told of clients."""

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.http import Client
from tests.support.instances import EmbeddedInstance, embedded
from tests.support.notices import (
    ALICE,
    BOB,
    NoticesWorld,
    created,
    notices,
    notifications_dsn,
    notifications_file,
    notifications_location,
)
from tests.support.waiting import eventually

__all__ = ["notices", "notifications_dsn", "notifications_file", "notifications_location"]

CLIENT = "203.0.113.77"


async def told(instance: EmbeddedInstance) -> list[str]:
    """The codes of all that the owner was told."""
    codes, query = [], "?limit=100"
    while True:
        page = (await instance.call("GET", f"/notifications{query}")).json
        codes += [notification["short_code"] for notification in page["notifications"]]
        if "next_cursor" not in page:
            return codes
        query = f"?limit=100&after={page['next_cursor']}"


async def follow(instance: EmbeddedInstance, code: str) -> int:
    async with await Client.connect(instance.port) as client:
        return (await client.get(f"/{code}", f"X-Forwarded-For: {CLIENT}", "User-Agent: test")).status


async def make(instance: EmbeddedInstance, number: int) -> str:
    body = {"url": f"https://example.com/to/{number}"}
    answer = await instance.call("POST", "/shorten", body, f"X-Forwarded-For: {CLIENT}")
    assert answer.status == 201
    code: str = answer.json["short_code"]
    return code


async def test_links_go_on_while_notifications_cannot_write_and_all_is_told_after(tmp_path: Path) -> None:
    """ACCEPTANCE 25, for one process: then 38, over everything that it left behind."""
    async with embedded(tmp_path) as instance:
        path = instance.data.database("notifications")
        with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as other:
            other.execute("BEGIN EXCLUSIVE")
            codes = [await make(instance, number) for number in range(12)]
            assert [await follow(instance, code) for code in codes] == [301] * len(codes)
            assert await told(instance) == [], "what was there can still be read"
        await eventually(lambda: _as_many(instance, len(codes)))
        await instance.kill()
        await instance.start()
        codes += [await make(instance, number) for number in range(100, 112)]
        await instance.kill()  # wherever it was
        await instance.start()
        await eventually(lambda: _as_many(instance, len(codes)))
        assert sorted(await told(instance)) == sorted(codes)
        assert (await instance.call("GET", "/notifications?limit=1")).json["unread"] == len(codes)
        assert await instance.stop() == 0
    assert _holding(tmp_path, b"would send email to user"), "the log is among what is searched"
    assert _holding(tmp_path, codes[0].encode()), "and so are the databases"
    assert _holding(tmp_path, CLIENT.encode()) == []


def _holding(folder: Path, text: bytes) -> list[Path]:
    """The files in which a text stands."""
    return [file for file in folder.rglob("*") if file.is_file() and text in file.read_bytes()]


async def _as_many(instance: EmbeddedInstance, count: int) -> bool:
    return len(await told(instance)) >= count


@pytest.mark.full
async def test_one_poison_message_among_ten_thousand_that_come_twice(notices: NoticesWorld) -> None:
    """ACCEPTANCE 16 and 18."""
    events = [created(random.choice((ALICE, BOB))) for _ in range(9_999)]
    copies = events * 2
    random.shuffle(copies)
    async with notices.reading() as post:
        for first in range(0, len(copies), 1_000):
            await post.send(*copies[first : first + 1_000])
            if first == 7_000:
                await post.send_body("url.created", created(user_id="").encode(), "poison")

        async def finished() -> bool:
            return sum((await notices.unread()).values()) == len(events)

        await eventually(finished, timeout=60, interval=0.2)
        [letter] = await eventually(post.dead)
        assert letter.message.message_id == "poison"
        await asyncio.sleep(1)
    assert len(await notices.notifications()) == len(events)
