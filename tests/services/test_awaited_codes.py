"""A code that somebody asked for before its link was there: nobody is told 404 of a link that was answered with 201."""

from dataclasses import replace
from itertools import count

import pytest

from refract.kernel.ids import encode_base62
from refract.runtime.ports import Database
from refract.services.links.domain.codes import code_source
from refract.services.links.domain.drafts import Wish
from refract.services.links.redirect.memory import Memory, Remembered
from tests.support.shortening import Workshop

URL = "https://example.com/"
NEXT_ID = 123456789012345678
FORESEEN = [encode_base62(NEXT_ID + number) for number in range(3)]


@pytest.fixture
def workshop(database: Database) -> Workshop:
    """One whose next codes are known."""
    workshop = Workshop(database)
    workshop.maker = replace(workshop.maker, ids=count(NEXT_ID).__next__, codes=code_source("snowflake"))
    return workshop


@pytest.fixture
def memory(workshop: Workshop) -> Memory[Remembered]:
    """What a process remembers that was asked for the next codes, and for an alias."""
    memory: Memory[Remembered] = Memory(10, workshop.clock.monotonic, capacity_bytes=1_000)
    memory.listen(workshop.cache)
    for code in (*FORESEEN, "spring"):
        assert memory.keep_absent(code.encode(), memory.ticket)
    return memory


def absent(memory: Memory[Remembered]) -> list[str]:
    return [code for code in (*FORESEEN, "spring") if memory.is_absent(code.encode())]


@pytest.mark.parametrize("key", [None, "k"], ids=["gathered with others", "alone"])
async def test_a_foreseen_code_is_no_longer_absent(
    workshop: Workshop, memory: Memory[Remembered], key: str | None
) -> None:
    assert (await workshop.shorten(URL, key=key)).status == 201
    assert absent(memory) == [*FORESEEN[1:], "spring"]


async def test_foreseen_codes_of_a_bulk_request_are_no_longer_absent(
    workshop: Workshop, memory: Memory[Remembered]
) -> None:
    results = await workshop.results([URL, f"{URL}2", URL, {"url": URL, "custom_code": "spring"}, "no URL"])
    made = {result["short_code"] for result in results if result["status"] == 201}
    assert len(made) == 3
    assert absent(memory) == [code for code in FORESEEN if code not in made]


async def test_a_new_alias_is_no_longer_absent(workshop: Workshop, memory: Memory[Remembered]) -> None:
    await workshop.shorten(Wish(url=URL, custom_code="spring"))
    assert absent(memory) == FORESEEN


async def test_nothing_is_dropped_for_a_code_that_nobody_can_foresee(workshop: Workshop) -> None:
    workshop.maker = replace(workshop.maker, codes=code_source("random"))
    await workshop.shorten(URL)
    await workshop.results([f"{URL}{number}" for number in range(3)])
    assert workshop.dropped == []
