"""Changing and deleting links: one transaction with its event, the owner alone, and no copy left in a cache."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import Forbidden, NotFound, Unavailable
from refract.kernel.events import Event
from refract.runtime.caching import CacheEntry
from refract.runtime.ports import Transaction
from refract.runtime.statements import Statement
from refract.services.links.commands.managing import Managing
from refract.services.links.domain.drafts import Unsafe
from refract.services.links.domain.link import Change, Deleted, NotAllowedNow, Status
from refract.services.links.store import Links
from tests.support.clocks import START
from tests.support.links import ALICE, BOB, LinksWorld, keep, some_link
from tests.support.patience import patient

__all__ = ["patient"]

KEY_OF = Statement("key_of", "Reads the key of a link.", "SELECT url_key FROM links WHERE short_code = :short_code")

UNSEEN = "https://example.com/elsewhere"


async def copy(links: LinksWorld, short_code: str) -> bytes | None:
    [kept] = await links.cache.get_many([f"url:{short_code}"])
    return kept


async def cached(links: LinksWorld, **options: Any) -> str:
    """The code of a new link that has a copy in the cache."""
    code: str = (await links.create(**options))["short_code"]
    await links.cache.set_many([CacheEntry(f"url:{code}", 1, b"copy", 60.0)])
    assert await copy(links, code) == b"copy"
    return code


async def key_of(links: LinksWorld, short_code: str) -> bytes | None:
    row = await links.database.fetch_one(KEY_OF, short_code=short_code)
    assert row is not None
    key: bytes | None = row["url_key"]
    return key


# Changing.


async def test_a_change_is_kept_announced_and_no_copy_is_left(links: LinksWorld) -> None:
    code = await cached(links, url="https://example.com/", title="before")
    links.clock.advance(5)
    after = await links.managing.change(
        ALICE,
        code,
        Change(
            original_url=UNSEEN,
            title="after",
            notes="two\nlines",
            tags=("a", "b"),
            sets_expiry=True,
            expires_at=START + timedelta(days=1),
            status=Status.DISABLED,
            redirect_status=302,
            stats_public=False,
        ),
    )
    shown = await links.queries.one(ALICE, code)
    assert shown == links.views.of(after)
    assert (shown.original_url, shown.title, shown.notes, shown.tags) == (UNSEEN, "after", "two\nlines", ["a", "b"])
    assert (shown.status, shown.is_active, shown.redirect_status, shown.stats_public) == ("disabled", False, 302, False)
    assert (shown.created_at, shown.updated_at) == (START, START + timedelta(seconds=5))
    created, updated = await links.events(code)
    assert (created["event_type"], updated["event_type"]) == ("url.created", "url.updated")
    assert (created["order"], updated["order"], after.version) == (1, 2, 2)
    assert (updated["original_url"], updated["status"], updated["title"]) == (UNSEEN, "disabled", "after")
    assert await copy(links, code) is None


async def test_a_slow_reader_cannot_put_the_old_copy_back(links: LinksWorld) -> None:
    code = await cached(links)
    after = await links.managing.change(ALICE, code, Change(title="new"))
    await links.cache.set_many([CacheEntry(f"url:{code}", 1, b"old", 60.0)])
    assert await copy(links, code) is None
    await links.cache.set_many([CacheEntry(f"url:{code}", after.version + 1, b"newer", 60.0)])
    assert await copy(links, code) == b"newer"


async def test_what_is_not_named_stays(links: LinksWorld) -> None:
    link = await links.create(title="t", notes="n", tags=["x"], redirect_status=307, expires_at="2026-06-01T00:00:00Z")
    code = link["short_code"]
    await links.managing.change(ALICE, code, Change(title=""))
    shown = (await links.call("GET", f"/urls/{code}")).json
    assert shown == {**link, "title": ""}
    await links.managing.change(ALICE, code, Change(sets_expiry=True, tags=()))
    shown = (await links.call("GET", f"/urls/{code}")).json
    del link["expires_at"]
    assert shown == {**link, "title": "", "tags": []}


async def test_a_change_that_changes_nothing_is_no_event(links: LinksWorld) -> None:
    code = (await links.create(title="same"))["short_code"]
    links.clock.advance(5)
    for change in (Change(), Change(title="same"), Change(status=Status.ACTIVE), Change(sets_expiry=True)):
        assert (await links.managing.change(ALICE, code, change)).version == 1
    assert len(await links.events(code)) == 1
    assert (await links.queries.one(ALICE, code)).updated_at == START


async def test_a_change_that_changes_nothing_drops_what_a_crash_left(links: LinksWorld) -> None:
    code = await cached(links, title="same")
    assert (await links.call("PATCH", f"/urls/{code}", {"title": "same"})).json["title"] == "same"
    assert await copy(links, code) is None


async def test_a_change_of_a_link_that_is_over_frees_its_url(links: LinksWorld) -> None:
    """Also where no sweep has been: it is marked by the change, and no sweep will look at it again."""
    plain = {"url": "https://example.com/plain"}
    code = (await links.call("POST", "/shorten", plain)).json["short_code"]
    await links.managing.change(ALICE, code, Change(sets_expiry=True, expires_at=START + timedelta(seconds=60)))
    links.clock.advance(60)
    assert (await links.managing.change(ALICE, code, Change(title="over"))).status is Status.EXPIRED
    assert await key_of(links, code) is None
    again = await links.call("POST", "/shorten", plain)
    assert (again.status, again.json["status"]) == (201, "active")


async def test_a_new_destination_frees_the_url(links: LinksWorld) -> None:
    plain = {"url": "https://example.com/plain"}
    code = (await links.call("POST", "/shorten", plain)).json["short_code"]
    await links.managing.change(ALICE, code, Change(title="still the same place"))
    assert (await links.call("POST", "/shorten", plain)).json["short_code"] == code
    await links.managing.change(ALICE, code, Change(original_url=UNSEEN))
    assert await key_of(links, code) is None
    again = await links.call("POST", "/shorten", plain)
    assert again.status == 201
    assert again.json["short_code"] != code


async def test_a_link_goes_off_and_on_again_but_what_is_over_is_over(links: LinksWorld) -> None:
    code = (await links.create(expires_at="2026-03-01T13:00:00Z"))["short_code"]
    assert (await links.managing.change(ALICE, code, Change(status=Status.DISABLED))).status is Status.DISABLED
    assert (await links.managing.change(ALICE, code, Change(status=Status.ACTIVE))).status is Status.ACTIVE
    links.clock.advance(3600)
    later = START + timedelta(days=9)
    for change in (Change(status=Status.ACTIVE), Change(sets_expiry=True), Change(sets_expiry=True, expires_at=later)):
        with pytest.raises(NotAllowedNow):
            await links.managing.change(ALICE, code, change)
    await links.managing.change(ALICE, code, Change(title="a name it may still have"))
    await links.managing.retire(ALICE, code)
    with pytest.raises(Deleted):
        await links.managing.change(ALICE, code, Change(title="none"))
    assert [event["order"] for event in await links.events(code)] == [1, 2, 3, 4, 5]


# Safety.


async def test_a_new_destination_is_checked_and_an_old_one_is_not(links: LinksWorld) -> None:
    code = (await links.create("https://example.com/"))["short_code"]
    links.safety.asked.clear()
    links.safety.threats = {UNSEEN: "malware", "https://example.com/": "malware"}
    with pytest.raises(Unsafe, match="malware"):
        await links.managing.change(ALICE, code, Change(original_url=UNSEEN))
    await links.managing.change(ALICE, code, Change(original_url="https://example.com/", title="x"))
    await links.managing.change(ALICE, code, Change(title="y"))
    assert links.safety.asked == [UNSEEN]
    links.safety.away = True
    with pytest.raises(Unavailable):
        await links.managing.change(ALICE, code, Change(original_url=UNSEEN))
    assert (await links.queries.one(ALICE, code)).original_url == "https://example.com/"


async def test_nobody_makes_us_ask_about_anothers_link(links: LinksWorld) -> None:
    code = (await links.create())["short_code"]
    links.safety.asked.clear()
    with pytest.raises(Forbidden):
        await links.managing.change(BOB, code, Change(original_url=UNSEEN))
    with pytest.raises(NotFound):
        await links.managing.change(BOB, "absent", Change(original_url=UNSEEN))
    assert links.safety.asked == []


# Deleting.


async def test_a_deleted_link_is_announced_once_and_no_copy_is_left(links: LinksWorld) -> None:
    code = await cached(links)
    await links.managing.retire(ALICE, code)
    assert await copy(links, code) is None
    await links.managing.retire(ALICE, code)
    shown = await links.queries.one(ALICE, code)
    assert (shown.status, shown.is_active) == ("deleted", False)
    _, deleted = await links.events(code)
    assert (deleted["event_type"], deleted["order"], deleted["user_id"]) == ("url.deleted", 2, ALICE.user_id)
    assert deleted["user_email"] == ALICE.email


async def test_deleting_again_drops_what_a_crash_left(links: LinksWorld) -> None:
    code = (await links.create(custom_code="kept-by-a-crash"))["short_code"]
    links.clock.advance(60)
    await keep(links.database, some_link(7, status=Status.DELETED, version=9))
    await links.cache.set_many([CacheEntry("url:code-7", 8, b"copy", 60.0)])
    await links.managing.retire(ALICE, "code-7")
    assert await copy(links, "code-7") is None
    assert await links.events("code-7") == []
    assert (await links.queries.one(ALICE, code)).is_active


async def test_a_deleted_link_frees_its_url_and_keeps_its_code(links: LinksWorld) -> None:
    plain = {"url": "https://example.com/plain"}
    first = (await links.call("POST", "/shorten", plain)).json["short_code"]
    await links.managing.retire(ALICE, first)
    assert await key_of(links, first) is None
    assert (await links.call("POST", "/shorten", plain)).status == 201
    alias = (await links.create(custom_code="only-once"))["short_code"]
    await links.managing.retire(ALICE, alias)
    taken = await links.call("POST", "/shorten", {**plain, "custom_code": alias})
    assert (taken.status, taken.json) == (409, {"error": "short code already taken"})


# Owners.


async def test_anothers_link_is_forbidden_and_noted(links: LinksWorld, caplog: pytest.LogCaptureFixture) -> None:
    code = (await links.create())["short_code"]
    for attempt in (
        links.managing.change(BOB, code, Change(title="mine")),
        links.managing.retire(BOB, code),
        links.queries.one(BOB, code),
    ):
        caplog.clear()
        with pytest.raises(Forbidden):
            await attempt
        ours = [record for record in caplog.records if record.name.startswith("refract")]
        [warning] = [record for record in ours if record.levelno == logging.WARNING]
        assert (vars(warning)["user_id"], vars(warning)["short_code"]) == (BOB.user_id, code)
    for attempt in (
        links.managing.change(BOB, "absent", Change(title="mine")),
        links.managing.retire(BOB, "absent"),
        links.queries.one(BOB, "absent"),
    ):
        with pytest.raises(NotFound):
            await attempt
    shown = await links.queries.one(ALICE, code)
    assert (shown.title, shown.status) == ("", "active")
    assert len(await links.events(code)) == 1


# One transaction.


@pytest.fixture
async def torn(links: LinksWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A link whose writes are undone after everything was said and done, but for the commit."""
    code = await cached(links)
    save = Links.save

    async def save_and_fail(self: Links, tx: Transaction, *arguments: Any) -> None:
        await save(self, tx, *arguments)
        announce = tx.announce

        async def announce_and_fail(*events: Event) -> None:
            await announce(*events)
            raise Unavailable("database", "it went away before the commit")

        tx.announce = announce_and_fail  # type: ignore[method-assign]  # the last step before the commit fails

    monkeypatch.setattr(Links, "save", save_and_fail)
    yield code
    monkeypatch.undo()


async def test_the_write_and_its_event_are_kept_together_or_not_at_all(links: LinksWorld, torn: str) -> None:
    with pytest.raises(Unavailable):
        await links.managing.change(ALICE, torn, Change(title="lost", tags=("lost",)))
    with pytest.raises(Unavailable):
        await links.managing.retire(ALICE, torn)
    shown = await links.queries.one(ALICE, torn)
    assert (shown.title, shown.tags, shown.status) == ("", [], "active")
    assert len(await links.events(torn)) == 1
    assert await copy(links, torn) == b"copy"  # dropped only after a commit


@pytest.mark.usefixtures("patient")
async def test_changes_at_the_same_time_are_made_one_after_the_other(links: LinksWorld) -> None:
    code = (await links.create())["short_code"]
    other = Managing(links.database, links.cache, links.clock, links.safety)
    changes = [Change(title=f"title {number}") for number in range(10)] + [
        Change(tags=("a", f"b{n}")) for n in range(10)
    ]
    outcomes = await asyncio.gather(
        *(
            manager.change(ALICE, code, change)
            for change, manager in zip(changes, [links.managing, other] * 10, strict=True)
        )
    )
    assert sorted(link.version for link in outcomes) == list(range(2, 22))
    assert [event["order"] for event in await links.events(code)] == list(range(1, 22))
    last = max(outcomes, key=lambda link: link.version)
    assert await links.queries.one(ALICE, code) == links.views.of(last)


async def test_a_change_and_a_deletion_at_the_same_time(links: LinksWorld) -> None:
    for _ in range(5):
        code = (await links.create())["short_code"]
        await asyncio.gather(
            links.managing.retire(ALICE, code),
            links.managing.change(ALICE, code, Change(title="last words")),
            links.managing.retire(ALICE, code),
            return_exceptions=True,
        )
        events = await links.events(code)
        assert events[-1]["event_type"] == "url.deleted"
        assert [event["order"] for event in events] == list(range(1, len(events) + 1))
        assert (await links.queries.one(ALICE, code)).status == "deleted"
