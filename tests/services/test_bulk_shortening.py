"""Shortening many URLs in one request, on both engines: a result for every row, and a report that survives a crash."""

import asyncio
import json
import logging
from contextlib import suppress

import pytest

from refract.kernel.errors import Invalid, Unavailable
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.services.links.domain.drafts import Wish
from refract.services.links.store import Links
from tests.support.links import LinksWorld
from tests.support.row_locks import wait_for_waiting
from tests.support.shortening import ANNA, BASE_URL, BORIS, Crash, FailingDatabase, Workshop, at_once, sent

EXPIRE = Statement("expire", "Ends links.", "UPDATE links SET expires_at = :moment")


pytestmark = pytest.mark.usefixtures("patient_locks")


@pytest.fixture
def workshop(database: Database) -> Workshop:
    return Workshop(database)


def urls(number: int, start: int = 0) -> list[object]:
    return [f"https://example.com/{each}" for each in range(start, start + number)]


def statuses(results: list[dict[str, object]]) -> list[object]:
    return [result["status"] for result in results]


async def test_every_row_gets_a_link_in_the_order_of_the_request(workshop: Workshop) -> None:
    results = await workshop.results(urls(250))
    assert [result["row"] for result in results] == list(range(1, 251))
    assert statuses(results) == [201] * 250
    links = {row["short_code"]: row for row in await workshop.links()}
    for number, result in enumerate(results):
        assert set(result) == {"row", "status", "short_code", "short_url"}
        assert result["short_url"] == f"{BASE_URL}/{result['short_code']}"
        assert links[result["short_code"]]["original_url"] == f"https://example.com/{number}"
    # The newest in a list is the last of the request.
    assert [row["short_code"] for row in await workshop.links()] == [result["short_code"] for result in results]
    await workshop.check_each_link_was_announced_once()


@pytest.mark.parametrize("number", [0, 1_001])
async def test_too_few_or_too_many_rows_are_refused(workshop: Workshop, number: int) -> None:
    with pytest.raises(Invalid, match="urls must have 1 to 1000 rows"):
        await workshop.results(urls(number))
    assert await workshop.links() == []


async def test_a_thousand_rows_are_written_a_hundred_at_a_time(workshop: Workshop) -> None:
    workshop.database = FailingDatabase(workshop.database, commits=10)
    assert statuses(await workshop.results(urls(1_000))) == [201] * 1_000
    with pytest.raises(Crash):
        await workshop.results(urls(1, start=1_000))


async def test_bad_rows_are_named_and_the_others_succeed(workshop: Workshop) -> None:
    workshop.safety.threats["https://bad.example/"] = "phishing"
    rows = [
        "https://example.com/1",
        "example.com",
        {"url": "https://example.com/2", "expires_at": "yesterday"},
        5,
        {"url": "https://example.com/3", "tags": [1]},
        "https://bad.example/",
        {"url": "https://example.com/4", "custom_code": "api"},
        {"url": "javascript:alert(1)"},
        {"url": "https://example.com/5", "title": "fine", "tags": ["b", "a"], "custom_code": "fine"},
        "https://example.com/6",
    ]
    results = await workshop.results(rows)
    assert statuses(results) == [201, 400, 400, 400, 400, 422, 400, 400, 201, 201]
    assert [result.get("error") for result in results] == [
        None,
        "url must include scheme and host",
        "expires_at must be RFC3339 format",
        "a row must be a URL or an object",
        "tags[0]: expected string, got integer",
        "url is flagged as unsafe: phishing",
        "custom_code is reserved",
        "url scheme must be http or https",
        None,
        None,
    ]
    assert set(results[1]) == {"row", "status", "error"}
    assert len(await workshop.links()) == 3
    assert [row["tag"] for row in await workshop.tags()] == ["a", "b"]
    assert workshop.dropped == ["url:fine"]
    assert "javascript:alert(1)" not in workshop.safety.asked[0]
    await workshop.check_each_link_was_announced_once()


async def test_nothing_but_bad_rows(workshop: Workshop) -> None:
    assert statuses(await workshop.results(["x", ""])) == [400, 400]
    assert workshop.safety.asked == []


async def test_a_row_keeps_everything_it_asks_for(workshop: Workshop) -> None:
    row = {
        "url": "https://example.com/1",
        "custom_code": "spring",
        "expires_at": "9999-12-31T23:59:59.999999Z",
        "title": 'Spring "26" \\ ü',
        "notes": "two\nlines",
        "tags": ["ü", "a"],
        "redirect_status": 308,
        "stats_public": False,
    }
    other = sent({**row, "custom_code": "b" * 3})
    single = await workshop.shortening.shorten(BORIS, workshop.maker.draft(Wish.of(other)))
    await workshop.results([row])
    async with workshop.database.transaction() as tx:
        link = await Links().get(tx, "spring")
    for name in ("original_url", "expires_at", "title", "notes", "tags", "redirect_status", "stats_public"):
        assert getattr(link, name) == getattr(single.link, name)
    assert (link.created_at, link.version, link.url_key) == (workshop.clock.now(), 1, None)
    assert (link.created_by, link.owner_email) == (ANNA.user_id, ANNA.email)


async def test_the_same_url_twice_is_one_link(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    known = await workshop.code("https://example.com/known?secret")
    rows = [
        "https://example.com/a",
        "HTTPS://EXAMPLE.COM/a",
        "https://example.com/known?secret",
        *urls(100),
        " https://example.com/a",
    ]
    results = await workshop.results(rows)
    assert statuses(results) == [201, 200, 200, *[201] * 100, 200]
    assert len({results[place]["short_code"] for place in (0, 1, -1)}) == 1
    assert results[2]["short_code"] == known
    assert await workshop.code("https://example.com/a") == results[0]["short_code"]
    await workshop.check_each_link_was_announced_once()
    assert workshop.hits("url") == 4
    assert "secret" not in caplog.text


async def test_a_forced_row_is_always_new(workshop: Workshop) -> None:
    forced = {"url": "https://example.com/a", "force_new": True}
    results = await workshop.results([forced, "https://example.com/a", forced])
    assert statuses(results) == [201, 201, 201]
    assert len({result["short_code"] for result in results}) == 3


async def test_a_taken_alias_is_a_conflict_of_its_row(workshop: Workshop) -> None:
    await workshop.results([{"url": "https://example.com/a", "custom_code": "taken"}], owner=BORIS)
    aliases = ["one", "taken", "two", "one"]
    rows = [{"url": "https://example.com/a", "custom_code": alias} for alias in aliases]
    results = await workshop.results(rows)
    assert statuses(results) == [201, 409, 201, 409]
    assert [result.get("error") for result in results][1::2] == ["short code already taken"] * 2
    await workshop.check_each_link_was_announced_once()


async def test_taken_codes_are_tried_again_with_others(workshop: Workshop) -> None:
    workshop.with_codes(["aaaaaaa", "aaaaaaa", "aaaaaaa", "ccccccc", "aaaaaaa", "bbbbbbb"])
    results = await workshop.results([*urls(2), {"url": "https://example.com/0", "force_new": True}])
    assert statuses(results) == [201] * 3
    assert {result["short_code"] for result in results} == {"aaaaaaa", "bbbbbbb", "ccccccc"}
    await workshop.check_each_link_was_announced_once()


async def test_after_five_taken_codes_a_row_is_given_up(workshop: Workshop) -> None:
    workshop.with_codes(["aaaaaaa"] * 6 + ["bbbbbbb"])
    results = await workshop.results(urls(2))
    assert sorted(map(str, statuses(results))) == ["201", "503"]
    assert [result["error"] for result in results if "error" in result] == ["could not generate unique code; try again"]
    await workshop.check_each_link_was_announced_once()


async def test_expired_links_make_room(workshop: Workshop) -> None:
    before = await workshop.results(urls(3))
    async with workshop.database.transaction() as tx:
        await tx.execute(EXPIRE, moment=workshop.clock.now())
    after = await workshop.results(urls(4))
    assert statuses(after) == [201] * 4
    assert not {result["short_code"] for result in before} & {result["short_code"] for result in after}
    assert [row["status"] for row in await workshop.links()] == ["expired"] * 3 + ["active"] * 4
    assert len(await workshop.events("url.updated")) == 3
    assert len(workshop.dropped) == 3
    await workshop.check_each_link_was_announced_once()


async def test_overlapping_requests_at_once(workshop: Workshop) -> None:
    """Each in another order, with aliases among them, so that they would wait for each other in a circle."""
    rows = urls(150) + [{"url": "https://example.com/x", "custom_code": f"alias-{each}"} for each in range(20)]
    orders = [rows, rows[::-1], rows[80:] + rows[:80], rows[::2] + rows[1::2]] * 2
    reports = await at_once(*map(workshop.results, orders))
    assert len(await workshop.links()) == 170
    assert sum(statuses(report).count(201) for report in reports) == 170
    assert sum(statuses(report).count(409) for report in reports) == 20 * 7
    await workshop.check_each_link_was_announced_once()


def alias(code: str) -> dict[str, object]:
    return {"url": "https://example.com/x", "custom_code": code}


@pytest.mark.parametrize(
    "rows",
    [
        ["https://example.com/a", "https://example.com/m", "https://example.com/z"],
        ["https://example.com/a", "https://example.com/m", alias("last")],
        [alias("first"), alias("middle"), alias("last")],
    ],
    ids=["urls", "urls and an alias", "aliases"],
)
async def test_opposite_requests_do_not_wait_in_a_circle(workshop: Workshop, rows: list[object]) -> None:
    """Somebody holds the row in the middle until both have begun: written as they came, each would hold an end."""
    middle = workshop.maker.link(ANNA, workshop.maker.draft(Wish.of(sent(rows[1]))))
    with suppress(Crash):
        async with workshop.database.transaction() as tx:
            await Links().add(tx, middle)
            requests = [asyncio.create_task(workshop.results(order)) for order in (rows, rows[::-1])]
            await wait_for_waiting(workshop.database, 2)
            raise Crash
    await at_once(*requests)
    assert len(await workshop.links()) == 3
    await workshop.check_each_link_was_announced_once()


async def test_requests_and_single_ones_at_once(workshop: Workshop) -> None:
    works = [workshop.results(urls(100)), workshop.results(urls(100, start=50))]
    codes = await at_once(*works, *(workshop.code(f"https://example.com/{each}") for each in range(0, 150, 10)))
    assert len(await workshop.links()) == 150
    by_row = [result["short_code"] for result in codes[0]]
    assert [by_row[each] for each in range(0, 100, 10)] == codes[2:12]
    await workshop.check_each_link_was_announced_once()


async def test_a_report_survives_a_crash(workshop: Workshop) -> None:
    whole = workshop.database
    rows: list[object] = [{"url": f"https://example.com/{each}", "force_new": True} for each in range(450)]
    rows[7] = "not a url"
    workshop.database = FailingDatabase(whole, commits=3)  # the first says that the rows are counted
    with pytest.raises(Crash):
        await workshop.results(rows, key="k")
    workshop.database = whole
    assert len(await workshop.links()) == 199
    made = {row["short_code"] for row in await workshop.links()}

    results = await workshop.results(rows, key="k")
    assert [result["row"] for result in results] == list(range(1, 451))
    assert statuses(results) == [201] * 7 + [400] + [201] * 442
    assert {result["short_code"] for result in results[:200] if "short_code" in result} == made
    assert len(await workshop.links()) == 449
    await workshop.check_each_link_was_announced_once()
    # Only what was not done yet was looked at again.
    assert [len(asked) for asked in workshop.safety.asked] == [449, 250]

    assert await workshop.results(rows, key="k") == results
    assert len(await workshop.links()) == 449
    assert workshop.hits("key") == 1


async def test_many_at_once_with_one_key_have_one_effect(workshop: Workshop) -> None:
    rows: list[object] = [{"url": f"https://example.com/{each}", "force_new": True} for each in range(250)]
    answers = await at_once(*(workshop.bulk.answer(ANNA, list(map(sent, rows)), "k") for _ in range(100)))
    assert len({answer.body for answer in answers}) == 1
    assert len(json.loads(answers[0].body)["results"]) == 250
    assert len(await workshop.links()) == 250
    assert [row["part"] for row in await workshop.keys()] == [0, 1, 2, 3]
    await workshop.check_each_link_was_announced_once()


async def test_copies_that_come_together_are_known_by_their_key(workshop: Workshop) -> None:
    answers = await at_once(*(workshop.bulk.answer(ANNA, list(map(sent, urls(50))), "k") for _ in range(20)))
    assert len({answer.body for answer in answers}) == 1
    assert workshop.hits("key") == 19


async def test_a_safety_check_that_fails_leaves_nothing_half_done(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(_urls: object) -> dict[str, str]:
        raise Unavailable("safety", "away")

    with monkeypatch.context() as patch:
        patch.setattr(workshop.safety, "check", check)
        with pytest.raises(Unavailable):
            await workshop.results(urls(300), key="k")
    assert await workshop.links() == []
    assert statuses(await workshop.results(urls(300), key="k")) == [201] * 300


async def test_the_documentation_has_every_status_that_comes(links: LinksWorld) -> None:
    operation = (await links.call("GET", "/docs/openapi.json")).json["paths"]["/shorten/bulk"]["post"]
    assert set(operation["responses"]) == {"200", "400", "401", "422", "429", "503"}
    assert "Retry-After" in operation["responses"]["429"]["description"]
