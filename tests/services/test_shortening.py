"""Shortening one URL on both engines: one URL, one link, whoever is first; and never a link without its event."""

import json
import logging
from datetime import timedelta

import pytest

from refract.kernel.errors import UniqueViolation
from refract.runtime.ports import Database
from refract.services.links.commands.making import clear_away
from refract.services.links.domain.drafts import Unsafe, Wish, checked_tags
from refract.services.links.domain.link import Change, CodesExhausted, CodeTaken, Link, Owner, Status
from refract.services.links.store import Links, find_by_key, find_by_keys, link_of
from tests.support.patience import patient
from tests.support.shortening import ANNA, BORIS, Crash, FailingDatabase, Workshop, at_once, sent

__all__ = ["patient"]

URL = "https://example.com/Path?q=1"
SPELLINGS = [
    "https://example.com/Path?q=1",
    "HTTPS://EXAMPLE.com/Path?q=1",
    "  https://example.com/Path?q=1",
    "https://example.com:443/Path?q=1 ",
    "https://example.com/./Path?q=1#",
]


@pytest.fixture
def workshop(database: Database) -> Workshop:
    return Workshop(database)


async def change(workshop: Workshop, code: str, change: Change) -> None:
    """Change a link as its owner would."""
    async with workshop.database.transaction() as tx:
        before = await Links().get(tx, code)
        after, event = before.changed(change, workshop.clock.now())
        assert event is not None
        await Links().save(tx, before, after)
        await tx.announce(event)


async def test_a_url_is_shortened(workshop: Workshop) -> None:
    shortened = await workshop.shortening.shorten(ANNA, workshop.maker.draft(Wish(url=URL)))
    assert shortened.created
    link = shortened.link
    assert (link.original_url, link.created_by, link.owner_email) == (URL, ANNA.user_id, ANNA.email)
    assert (len(link.short_code), link.short_code.isalnum(), link.status) == (7, True, Status.ACTIVE)
    async with workshop.database.transaction() as tx:
        assert await Links().get(tx, link.short_code) == link
    [event] = await workshop.events()
    assert event["event_type"] == "url.created"
    assert (event["short_code"], event["original_url"], event["user_email"]) == (link.short_code, URL, ANNA.email)


async def test_a_link_has_what_was_asked_for(workshop: Workshop) -> None:
    wish = Wish(
        url=URL,
        custom_code="Spring-26",
        expires_at="2027-03-01T12:00:00.25Z",
        title="Spring",
        notes="two\nlines",
        tags=["ärger", "Zug", "apfel"],
        redirect_status=308,
        stats_public=False,
    )
    shortened = await workshop.shortening.shorten(ANNA, workshop.maker.draft(wish))
    async with workshop.database.transaction() as tx:
        link = await Links().get(tx, "Spring-26")
    assert link == shortened.link
    assert (link.title, link.notes, link.redirect_status, link.stats_public) == ("Spring", "two\nlines", 308, False)
    assert link.tags == ("Zug", "apfel", "ärger")
    assert link.url_key is None


async def test_the_same_url_gives_the_same_link(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answers = [await workshop.shorten(url) for url in SPELLINGS]
    assert [answer.status for answer in answers] == [201, 200, 200, 200, 200]
    assert len({answer.body for answer in answers}) == 1
    [row] = await workshop.links()
    assert row["original_url"] == SPELLINGS[0]
    await workshop.check_each_link_was_announced_once()
    assert workshop.hits("url") == 4
    known = [record for record in caplog.records if record.message == "url known"]
    assert [record.__dict__["short_code"] for record in known] == [row["short_code"]] * 4
    assert {record.__dict__["user_id"] for record in known} == {ANNA.user_id}
    assert "q=1" not in caplog.text


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("number", [50, 100])
async def test_many_at_once_make_one_link(workshop: Workshop, number: int) -> None:
    urls = [SPELLINGS[each % len(SPELLINGS)] for each in range(number)]
    answers = await at_once(*map(workshop.shorten, urls))
    assert sorted(answer.status for answer in answers) == [200] * (number - 1) + [201]
    assert len({answer.body for answer in answers}) == 1
    assert len(await workshop.links()) == 1
    await workshop.check_each_link_was_announced_once()


async def test_each_owner_has_a_link_of_their_own(workshop: Workshop) -> None:
    assert await workshop.code(URL, ANNA) != await workshop.code(URL, BORIS)
    await workshop.check_each_link_was_announced_once()


@pytest.mark.parametrize(
    "options",
    [{"force_new": True}, {"title": "another"}, {"expires_at": "2027-01-01T00:00:00Z"}, {"custom_code": "mine"}],
)
async def test_a_wish_with_options_gets_a_new_link(workshop: Workshop, options: dict[str, object]) -> None:
    first = await workshop.code(URL)
    second = await workshop.code(Wish.of(sent({"url": URL, **options})))
    assert second != first
    assert await workshop.code(URL) == first
    await workshop.check_each_link_was_announced_once()


async def test_the_key_is_free_when_the_link_moves_or_goes(workshop: Workshop) -> None:
    codes = [await workshop.code(URL)]
    await change(workshop, codes[0], Change(original_url="https://example.com/elsewhere"))
    codes.append(await workshop.code(URL))
    async with workshop.database.transaction() as tx:
        before = await Links().get(tx, codes[1])
        after, _ = before.retired(workshop.clock.now())
        await Links().save(tx, before, after)
    codes.append(await workshop.code(URL))
    assert len(set(codes)) == 3


async def test_a_disabled_link_is_returned_as_it_is(workshop: Workshop) -> None:
    code = await workshop.code(URL)
    await change(workshop, code, Change(status=Status.DISABLED))
    shortened = await workshop.shortening.shorten(ANNA, workshop.maker.draft(Wish(url=URL)))
    assert (shortened.link.short_code, shortened.link.status, shortened.created) == (code, Status.DISABLED, False)


async def expire(workshop: Workshop, code: str) -> None:
    """Let the time of a link pass, without a sweep."""
    await change(workshop, code, Change(sets_expiry=True, expires_at=workshop.clock.now() + timedelta(seconds=60)))
    workshop.clock.advance(60)


async def test_an_expired_link_makes_room_before_it_is_swept(workshop: Workshop) -> None:
    code = await workshop.code(URL)
    await expire(workshop, code)
    workshop.dropped.clear()
    answer = await workshop.shorten(URL)
    assert answer.status == 201
    old, new = await workshop.links()
    assert (old["status"], old["url_key"], old["version"]) == ("expired", None, 3)
    assert json.loads(answer.body)["short_code"] == new["short_code"] != code
    [marked] = [event for event in await workshop.events("url.updated") if event.get("status") == "expired"]
    assert (marked["short_code"], marked["order"]) == (code, 3)
    assert workshop.dropped == [f"url:{code}"]
    await workshop.check_each_link_was_announced_once()


@pytest.mark.usefixtures("patient")
async def test_an_expired_link_makes_room_once_for_many(workshop: Workshop) -> None:
    code = await workshop.code(URL)
    await expire(workshop, code)
    answers = await at_once(*(workshop.shorten(URL) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] * 19 + [201]
    assert len({answer.body for answer in answers}) == 1
    assert [event.get("status") for event in await workshop.events("url.updated")].count("expired") == 1
    await workshop.check_each_link_was_announced_once()


async def test_a_link_that_is_not_over_is_not_cleared_away(workshop: Workshop) -> None:
    code = await workshop.code(URL)
    [row] = await workshop.links()
    await clear_away([link_of(row)], database=workshop.database, cache=workshop.cache, clock=workshop.clock)
    [row] = await workshop.links()
    assert (row["short_code"], row["status"], row["version"]) == (code, "active", 1)
    assert workshop.dropped == []


async def test_a_taken_code_is_tried_again_with_another(workshop: Workshop) -> None:
    workshop.with_codes(["aaaaaaa", "aaaaaaa", "aaaaaaa", "aaaaaaa", "aaaaaaa", "bbbbbbb"])
    assert await workshop.code("https://example.com/1") == "aaaaaaa"
    assert await workshop.code("https://example.com/2") == "bbbbbbb"
    await workshop.check_each_link_was_announced_once()


async def test_after_five_taken_codes_it_is_given_up(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    workshop.with_codes(["aaaaaaa"] * 6 + ["bbbbbbb"])
    await workshop.code("https://example.com/1")
    with pytest.raises(CodesExhausted):
        await workshop.code("https://example.com/2")
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.__dict__["attempts"] == 5
    assert len(await workshop.links()) == 1
    await workshop.check_each_link_was_announced_once()


async def test_a_taken_alias_is_refused_at_once(workshop: Workshop) -> None:
    await workshop.code(Wish(url=URL, custom_code="spring"))
    with pytest.raises(CodeTaken):
        await workshop.code(Wish(url="https://example.com/2", custom_code="spring"), BORIS)
    assert await workshop.code(Wish(url="https://example.com/2", custom_code="Spring")) == "Spring"
    await workshop.check_each_link_was_announced_once()


@pytest.mark.usefixtures("patient")
async def test_many_who_want_one_alias_at_once(workshop: Workshop) -> None:
    async def want(number: int) -> int:
        try:
            return (await workshop.shorten(Wish(url=f"https://example.com/{number}", custom_code="spring"))).status
        except CodeTaken:
            return 409

    assert sorted(await at_once(*map(want, range(20)))) == [201] + [409] * 19
    await workshop.check_each_link_was_announced_once()


async def test_a_new_alias_is_dropped_from_the_cache(workshop: Workshop) -> None:
    await workshop.code(Wish(url=URL, custom_code="spring"))
    assert workshop.dropped == ["url:spring"]
    await workshop.code("https://example.com/2")
    assert workshop.dropped == ["url:spring"]


async def test_another_conflict_is_no_collision(workshop: Workshop) -> None:
    workshop.maker = type(workshop.maker)(
        own=workshop.maker.own,
        normalization="rfc3986",
        stats_public=True,
        ids=lambda: 1,
        codes=workshop.maker.codes,
        clock=workshop.clock,
    )
    await workshop.code("https://example.com/1")
    with pytest.raises(UniqueViolation):
        await workshop.code("https://example.com/2")


async def test_a_failed_commit_leaves_neither_link_nor_event(workshop: Workshop) -> None:
    whole = workshop.database
    workshop.database = FailingDatabase(whole, commits=0)
    with pytest.raises(Crash):
        await workshop.shorten(Wish(url=URL, custom_code="spring", tags=["a"]))
    workshop.database = whole
    assert (await workshop.links(), await workshop.tags(), await workshop.events()) == ([], [], [])
    assert workshop.dropped == []


async def test_an_unsafe_url_is_refused_before_anything_is_stored(workshop: Workshop) -> None:
    workshop.safety.threats[URL] = "malware"
    with pytest.raises(Unsafe) as refused:
        await workshop.shorten(URL)
    assert refused.value.message == "url is flagged as unsafe: malware"
    assert (await workshop.links(), await workshop.events()) == ([], [])
    assert workshop.safety.asked == [[URL]]


async def test_the_instance_says_whether_statistics_are_public(workshop: Workshop) -> None:
    def made(owner: Owner, **fields: object) -> Link:
        return workshop.maker.link(owner, workshop.maker.draft(Wish.of(sent({"url": URL, **fields}))))

    assert made(ANNA).stats_public
    assert not made(ANNA, stats_public=False).stats_public


async def test_a_link_is_found_by_its_key_with_its_tags(workshop: Workshop) -> None:
    code = await workshop.code(URL)
    tags = checked_tags(["ärger", "Zug", "apfel"])
    await change(workshop, code, Change(tags=tags))
    [row] = await workshop.links()
    found = await find_by_key(workshop.database, ANNA.workspace_id, row["url_key"])
    assert found is not None
    assert (found.short_code, found.tags) == (code, tags)
    assert await find_by_keys(workshop.database, ANNA.workspace_id, [b"0" * 32, row["url_key"]]) == {
        row["url_key"]: found
    }
    assert await find_by_key(workshop.database, BORIS.workspace_id, row["url_key"]) is None
    assert await find_by_keys(workshop.database, BORIS.workspace_id, [row["url_key"]]) == {}
