"""Pages of links: order, cursors and filters."""

import itertools
import random
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from refract.kernel.errors import Invalid
from refract.services.links.domain.link import Link, Status, status_at
from refract.services.links.queries.paging import BEYOND_ALL, Cursor, PageRequest, Sort
from tests.support.clocks import START
from tests.support.links import ALICE, BOB, LinksWorld, keep, some_link

YESTERDAY = START - timedelta(days=1)
TOMORROW = START + timedelta(days=1)


async def page(links: LinksWorld, **query: Any) -> Any:
    answer = await links.call("GET", f"/urls?{urlencode(query)}")
    assert answer.status == 200, answer.body
    return answer.json


async def codes(links: LinksWorld, **query: Any) -> list[str]:
    """The codes of all pages, which are followed to the end."""
    found: list[str] = []
    while True:
        shown = await page(links, **query)
        found += [link["short_code"] for link in shown["urls"]]
        if "next_cursor" not in shown:
            return found
        assert shown["urls"]
        query["after"] = shown["next_cursor"]


# Order and pages.


async def test_nobody_has_an_empty_page_that_is_null(links: LinksWorld) -> None:
    await keep(links.database, some_link(1, BOB))
    assert (await links.call("GET", "/urls")).body == b'{"urls":[]}'


async def test_the_cursor_leads_through_all_links_newest_first(links: LinksWorld) -> None:
    made = [(await links.create(f"https://example.com/{number}"))["short_code"] for number in range(5)]
    sizes, query = [], {"limit": "2"}
    found: list[str] = []
    while True:
        shown = await page(links, **query)
        sizes.append(len(shown["urls"]))
        found += [link["short_code"] for link in shown["urls"]]
        if "next_cursor" not in shown:
            break
        query["after"] = shown["next_cursor"]
    assert (found, sizes) == (made[::-1], [2, 2, 1])


async def test_a_page_that_is_just_full_is_the_last(links: LinksWorld) -> None:
    await keep(links.database, *(some_link(number) for number in range(1, 5)))
    first = await page(links, limit=2)
    second = await page(links, limit=2, after=first["next_cursor"])
    assert len(second["urls"]) == 2
    assert "next_cursor" not in second


async def test_links_that_are_made_meanwhile_shift_no_page(links: LinksWorld) -> None:
    await keep(links.database, *(some_link(number, total_clicks=7) for number in range(10, 20)))
    first = {sort: await page(links, limit=4, sort=sort) for sort in Sort}
    await keep(links.database, *(some_link(number, total_clicks=7) for number in range(20, 30)))
    await keep(links.database, some_link(5, total_clicks=7))
    for sort, shown in first.items():
        rest = await codes(links, limit=4, sort=sort, after=shown["next_cursor"])
        assert [link["short_code"] for link in shown["urls"]] == ["code-19", "code-18", "code-17", "code-16"]
        assert rest == ["code-15", "code-14", "code-13", "code-12", "code-11", "code-10", "code-5"]


async def test_the_most_clicked_first_and_the_newest_of_equals(links: LinksWorld) -> None:
    clicks = {1: 5, 2: 0, 3: 9, 4: 5, 5: 0, 6: 5}
    await keep(links.database, *(some_link(number, total_clicks=count) for number, count in clicks.items()))
    for limit in (1, 2, 3, 100):
        found = await codes(links, sort="clicks", limit=limit)
        assert found == ["code-3", "code-6", "code-4", "code-1", "code-5", "code-2"]


async def test_as_many_as_asked_for_up_to_a_hundred(links: LinksWorld) -> None:
    await keep(links.database, *(some_link(number) for number in range(1, 130)))
    limits = {"": 20, "1": 1, "+7": 7, "007": 7, "99": 99, "100": 100, "101": 100, "9" * 300: 100}
    for limit, shown in limits.items():
        assert len((await page(links, limit=limit))["urls"]) == shown


async def test_any_other_limit_is_refused(links: LinksWorld) -> None:
    for limit in ("0", "-1", "-0", "000", "ten", "1.5", "1e3", " 5", "5 ", "+", "٣", "1_0", "0x10"):
        answer = await links.call("GET", f"/urls?{urlencode({'limit': limit})}")
        assert (answer.status, answer.json) == (400, {"error": "limit must be a positive integer"}), limit


# Cursors.


@pytest.mark.parametrize("sort", list(Sort))
@pytest.mark.parametrize("number", [0, 1, 61, 62, 2**41, BEYOND_ALL])
def test_a_cursor_is_read_as_it_was_written(sort: Sort, number: int) -> None:
    cursor = Cursor(number, number) if sort is Sort.CLICKS else Cursor(number)
    assert Cursor.read(cursor.write(sort), sort) == cursor
    other = Sort.CREATED if sort is Sort.CLICKS else Sort.CLICKS
    with pytest.raises(Invalid, match="after is not a cursor"):
        Cursor.read(cursor.write(sort), other)


NO_CURSORS = (
    *("c", "k", "x", "c-", "c1-", "c-1", "c1-2", "k1", "k1-2-3", "c01", "c 1", "c1 ", "C1", "cü", "c\x00", "\ufffd"),
    "caZl8N0y58M8",  # 2^63
    "kaZl8N0y58M8-1",
    "c" + "Z" * 11,
    "c" + "1" * 5_000,
    "c" + "-1" * 2_000,
    "550e8400-e29b-41d4-a716-446655440000",
    "' OR 1=1 --",
)


async def test_what_is_no_cursor_is_refused(links: LinksWorld) -> None:
    for after, sort in itertools.product(NO_CURSORS, Sort):
        answer = await links.call("GET", f"/urls?{urlencode({'after': after, 'sort': sort})}")
        assert (answer.status, answer.json) == (400, {"error": "after is not a cursor"}), (after, sort)


async def test_a_cursor_shows_nothing_of_others(links: LinksWorld) -> None:
    await keep(links.database, *(some_link(number, BOB) for number in range(1, 9)), some_link(9), some_link(3_000))
    first = await page(links, limit=1)
    assert [link["short_code"] for link in first["urls"]] == ["code-3000"]
    assert await codes(links, after=first["next_cursor"]) == ["code-9"]


# Filters.


TEXTS = ("a", "ex", "EXAMPLE", "shop", "SHOP", "100%", "_", "p_", "%", '"', 'say "', "\\", "ing sale", "code-1", "/A")
TITLES = ("", "Spring Sale", "100% off", 'Say "hello"', "under_score", "back\\slash", "SHOP window", "a'b")
PATHS = ("", "shop/A", "shop/a?x=100%25", "p_q", "pxq")


def fits(link: Link, *, text: str, tag: str, status: str) -> bool:
    """What a filter means, told without SQL."""
    searched = (link.short_code, link.original_url, link.title)
    return (
        link.workspace_id == ALICE.workspace_id
        and any(text.lower() in one.lower() for one in searched)
        and (not tag or tag in link.tags)
        and (not status or status_at(link.status, link.expires_at, START) == status)
    )


def varied_links() -> list[Link]:
    chance = random.Random(3)
    made = [
        some_link(
            number,
            chance.choice((ALICE, ALICE, ALICE, BOB)),
            original_url=f"https://example.com/{chance.choice(PATHS)}",
            title=chance.choice(TITLES),
            tags=chance.choice(((), ("red",), ("blue",), ("blue", "red"))),
            status=chance.choice(list(Status)),
            expires_at=chance.choice((None, None, YESTERDAY, START, TOMORROW)),
            total_clicks=chance.choice((0, 0, 1, 5)),
        )
        for number in range(1, 121)
    ]
    chance.shuffle(made)
    return made


async def test_every_combination_of_filters_finds_what_fits_and_nothing_else(links: LinksWorld) -> None:
    everything = varied_links()
    await keep(links.database, *everything)
    combinations = itertools.product(Sort, ("", *TEXTS), ("", "red", "none"), ("", *Status))
    for sort, text, tag, status in combinations:
        expected = [link for link in everything if fits(link, text=text, tag=tag, status=status)]
        if sort is Sort.CREATED:
            expected.sort(key=lambda link: -link.id)
        else:
            expected.sort(key=lambda link: (-link.total_clicks, -link.id))
        request = PageRequest.read(limit="7", q=text, tag=tag, status=status, sort=sort)
        found: list[str] = []
        while True:
            shown = await links.queries.page(ALICE, request)
            found += [link.short_code for link in shown.urls]
            assert len(found) <= len(expected), (sort, text, tag, status)
            assert all(not status or link.status == status for link in shown.urls)
            if not isinstance(shown.next_cursor, str):
                break
            request = PageRequest.read(after=shown.next_cursor, limit="7", q=text, tag=tag, status=status, sort=sort)
        assert found == [link.short_code for link in expected], (sort, text, tag, status)


async def test_filters_come_from_the_query(links: LinksWorld) -> None:
    one = await links.create("https://example.com/Shop", title="Summer", tags=["red", "two words"])
    two = await links.create("https://example.org/", title="100% shop_window", expires_at="2026-03-01T13:00:00Z")
    both = [two["short_code"], one["short_code"]]
    assert await codes(links, q="shop") == both
    assert await codes(links, q="sUMM") == both[1:]
    assert await codes(links, q="0%") == both[:1]
    assert await codes(links, q="% s") == both[:1]
    assert await codes(links, q="p_w") == both[:1]
    assert await codes(links, q=one["short_code"]) == both[1:]
    assert await codes(links, q="nowhere to be found") == []
    three = await links.create(title="東京タワー ö")
    assert (
        await codes(links, q="京タワ")
        == await codes(links, q="ー ö")
        == await codes(links, q="ö")
        == [three["short_code"]]
    )
    await links.call("DELETE", f"/urls/{three['short_code']}")
    assert await codes(links, status="deleted") == [three["short_code"]]
    assert await codes(links, tag="two words") == await codes(links, tag=" red ") == both[1:]
    assert await codes(links, tag="Red") == []
    assert await codes(links, status="active") == both
    links.clock.advance(3600)
    assert await codes(links, status="active") == both[1:]
    assert await codes(links, status="expired") == both[:1]
    assert await codes(links, q="", tag="", status="", sort="", after="", limit="") == [three["short_code"], *both]


WORDS = ("ö", "öl", "lö", "öä", "öäü", "größe", "ß", "жу", "жук", "λ", "λδ", "λδξ", "ñ", "ÿ", "ǆ", "ǆǆǆ", "ó l")
SIGNS = ("-", "?", "*", "[", "]", "^", '""', "[a", "*a", "a?", "^a", "---", "???", "***", "[a]", "[^a]", "-?-")


def spellings(word: str) -> list[str]:
    """A word in small letters, in large ones, with a large one first, and with a large one last."""
    large = word.upper().replace("SS", "ẞ")
    return [word, large, word.title(), word[:-1] + large[-1]]


async def test_small_and_large_letters_of_every_alphabet_are_the_same(links: LinksWorld) -> None:
    texts = [spelling for word in WORDS for spelling in spellings(word)]
    titled = [some_link(number, title=f"a {text} b") for number, text in enumerate(texts, 1)]
    leading = [some_link(link.id + 200, original_url=f"https://example.com/{link.title}") for link in titled]
    others = [some_link(500, title="OL oau grosse n y dz o l"), some_link(501, BOB, title=" ".join(texts))]
    everything = [*titled, *leading, *others]
    await keep(links.database, *everything)
    for text, sort in itertools.product(texts, Sort):
        expected = [link.short_code for link in everything if fits(link, text=text, tag="", status="")]
        assert await codes(links, q=text, sort=sort, limit=100) == expected[::-1], (text, sort)


async def test_signs_stand_for_themselves(links: LinksWorld) -> None:
    made = [some_link(number, short_code=f"code{number}", title=f"x{sign}x") for number, sign in enumerate(SIGNS, 1)]
    await keep(links.database, *made)
    for sign in SIGNS:
        expected = [link.short_code for link in made if fits(link, text=sign, tag="", status="")]
        assert await codes(links, q=sign) == expected[::-1], sign


async def test_a_search_finds_what_a_link_is_now(links: LinksWorld) -> None:
    link = await links.create("https://example.com/before", title="first name", tags=["old"])
    code = link["short_code"]
    change = {"url": "https://example.com/after", "title": "second name", "tags": ["new"]}
    assert (await links.call("PATCH", f"/urls/{code}", change)).status == 200
    for gone in ({"q": "before"}, {"q": "first"}, {"tag": "old"}):
        assert await codes(links, **gone) == []
    for found in ({"q": "com/after"}, {"q": "SECOND"}, {"tag": "new"}):
        assert await codes(links, **found) == [code]


async def test_other_filters_are_refused(links: LinksWorld) -> None:
    statuses, sorts = "status must be one of active, expired, disabled, deleted", "sort must be one of created, clicks"
    messages = {
        "tag=%20%20": "a tag must not be empty",
        "status=gone": statuses,
        "status=ACTIVE": statuses,
        "sort=title": sorts,
        "sort=-created": sorts,
        "q=a%00b": "q must not contain control characters",
        "q=two%0Alines": "q must not contain control characters",
        "tag=a%00b": "tag must not contain control characters",
    }
    for query, message in messages.items():
        answer = await links.call("GET", f"/urls?{query}")
        assert (answer.status, answer.json) == (400, {"error": message})


async def test_odd_texts_find_nothing(links: LinksWorld) -> None:
    await links.create(custom_code="a-code")  # one that is drawn by lot holds "AND" once in some thousand times
    for q in ("%ff", "%ed%a0%80", "%F0%9F%98%80" * 3, "%22%22%22", "AND", "*", "http*", "a" * 4000):
        answer = await links.call("GET", f"/urls?q={q}")
        assert (answer.status, answer.json) == (200, {"urls": []}), q
