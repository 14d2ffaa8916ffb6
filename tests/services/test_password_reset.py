"""Reset of a forgotten password: who gets a mail, what a token does once, and what nobody learns from the answers."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from refract.kernel.errors import Invalid
from refract.runtime.correlation import correlated
from refract.runtime.ports import Database
from refract.services.identity.commands.resetting import AskingForReset, Resetting, end_resets
from refract.services.identity.domain.one_time import InvalidToken, ResetAsked
from tests.support.clocks import START
from tests.support.mail_desk import (
    BASE_URL,
    NEW_PASSWORD,
    PASSWORD,
    MailDesk,
    NotingDatabase,
    desk,
    mail_location,
    migrated_dsn,
    migrated_file,
)
from tests.support.patience import patient
from tests.support.shortening import Crash, FailingDatabase

__all__ = ["desk", "mail_location", "migrated_dsn", "migrated_file", "patient"]

RESET = "email.password_reset.requested"
ASKED = "identity.reset.asked"
INVALID = (400, b'{"error":"invalid or expired token"}')


def through(desk: MailDesk, database: Any) -> AskingForReset:
    """The same command on a database that is looked at."""
    seen: Database = database
    return AskingForReset(seen, desk.clock, desk.limits, desk.mails)


async def confirmed(desk: MailDesk, *tokens: str) -> list[bool]:
    """Which of the tokens set a password, all brought back at once."""
    answers = await asyncio.gather(
        *(desk.resetting.confirm(token, NEW_PASSWORD) for token in tokens), return_exceptions=True
    )
    assert all(answer is None or isinstance(answer, InvalidToken) for answer in answers), answers
    return [answer is None for answer in answers]


# Asking.


async def test_the_owner_of_an_account_gets_the_mail(desk: MailDesk) -> None:
    user = await desk.user("alice@example.com")
    with correlated("of-the-request"):
        await desk.asking.ask("  Alice@Example.COM ", "192.0.2.1")
    desk.clock.advance(2)
    await desk.answer_wishes()
    [asked, mail] = await desk.outbox()
    [token] = await desk.mailed_tokens(RESET)
    assert (asked["event_type"], asked["exchange"], asked["mandatory"]) == (ASKED, "smap.events", True)
    assert (mail["event_type"], mail["exchange"], mail["mandatory"]) == (RESET, "smap.events", True)
    envelope = json.loads(mail["payload"])
    assert envelope.pop("event_id").startswith("evt_")
    assert envelope == {
        "timestamp": "2026-03-01T12:00:02Z",
        "correlation_id": "of-the-request",
        "payload": {
            "user_id": user.id,
            "data": {
                "recipient": "alice@example.com",
                "subject": "Choose a new password",
                "template": "password_reset",
                "link": f"{BASE_URL}/reset#token={token}",
                "expires_at": "2026-03-01T13:00:02Z",
            },
        },
    }
    [row] = await desk.tokens()
    assert (row["user_id"], row["purpose"], row["used_at"]) == (user.id, "reset", None)
    assert token not in str(dict(row))


async def test_nobody_learns_from_the_answer_whether_there_is_an_account(desk: MailDesk) -> None:
    await desk.user("known@example.com")
    await desk.user("suspended@example.com", status="suspended")
    await desk.foreigner("foreign@example.com")
    who = ("known@example.com", "unknown@example.com", "suspended@example.com", "foreign@example.com")
    answers = [await desk.call("/reset", {"email": email}) for email in who]
    assert [(answer.status, answer.body) for answer in answers] == [(204, b"")] * 4
    heads = [{**answer.headers, "date": "", "x-correlation-id": ""} for answer in answers]
    assert all(head == heads[0] for head in heads)
    await desk.answer_wishes()
    assert [json.loads(row["payload"])["payload"]["data"]["recipient"] for row in await desk.outbox(RESET)] == [who[0]]
    assert len(await desk.tokens()) == 1


async def test_the_request_does_the_same_work_for_every_address(desk: MailDesk) -> None:
    await desk.user("known@example.com")
    await desk.user("suspended@example.com", status="suspended")
    hashed, noted = desk.hasher.hashed, []
    for email in ("known@example.com", "unknown@example.com", "suspended@example.com"):
        database = NotingDatabase(desk.database)
        await through(desk, database).ask(email, "192.0.2.1")
        noted.append(database.noted)
    # Nothing is looked up while somebody waits.
    assert noted == [["announce ResetAsked", "commit"]] * 3
    assert desk.hasher.hashed == hashed


async def test_what_is_no_address_is_refused(desk: MailDesk) -> None:
    cases = {"": "email is required", "alice": "email format is invalid", "A <a@b.c>": "email format is invalid"}
    answers = {email: await desk.call("/reset", {"email": email}) for email in cases}
    assert {email: (answer.status, answer.json["error"]) for email, answer in answers.items()} == {
        email: (400, message) for email, message in cases.items()
    }
    assert (await desk.call("/reset", {})).json == {"error": "email is required"}
    assert await desk.outbox() == []


async def test_a_wish_that_waited_too_long_is_forgotten(desk: MailDesk) -> None:
    user = await desk.user()
    for waited, mails in ((timedelta(hours=1), 0), (timedelta(hours=1) - timedelta(microseconds=1), 1)):
        asked = ResetAsked(occurred_at=desk.clock.now() - waited, email=user.email)
        async with desk.database.transaction() as tx:
            await desk.asking.answer(tx, asked)
        assert len(await desk.outbox(RESET)) == mails


# Confirming.


async def test_a_token_sets_the_password_and_ends_what_the_old_one_gave(desk: MailDesk) -> None:
    user, other = await desk.user(), await desk.user("bob@example.com")
    token = await desk.reset_token(user)
    desk.clock.advance(60)
    answer = await desk.call("/reset/confirm", {"token": token, "password": NEW_PASSWORD})
    assert (answer.status, answer.body) == (204, b"")
    assert await desk.has_password(user, NEW_PASSWORD)
    assert not await desk.has_password(user, PASSWORD)
    found, now = await desk.found(user), START + timedelta(seconds=60)
    assert (found.token_generation, found.email_verified_at, found.updated_at) == (1, now, now)
    [revoked] = await desk.outbox("user.revoked")
    payload = json.loads(revoked["payload"])["payload"]
    assert (payload["user_id"], payload["generation"]) == (user.id, 1)
    assert await desk.found(other) == other


async def test_a_flood_of_registrations_keeps_nobody_from_it(desk: MailDesk) -> None:
    user = await desk.user()
    token = await desk.reset_token(user)
    desk.hasher._strangers._most = 0
    answer = await desk.call("/reset/confirm", {"token": token, "password": NEW_PASSWORD})
    assert answer.status == 204


async def test_a_token_works_once(desk: MailDesk) -> None:
    user = await desk.user()
    token = await desk.reset_token(user)
    body = {"token": token, "password": NEW_PASSWORD}
    assert (await desk.call("/reset/confirm", body)).status == 204
    again = await desk.call("/reset/confirm", {**body, "password": "another password"})
    assert (again.status, again.body) == INVALID
    assert await desk.has_password(user, NEW_PASSWORD)
    assert (await desk.found(user)).token_generation == 1


@pytest.mark.usefixtures("patient")
async def test_of_many_at_once_one_wins(desk: MailDesk) -> None:
    user = await desk.user()
    token = await desk.reset_token(user)
    hashed = desk.hasher.hashed
    assert sum(await confirmed(desk, *[token] * 8)) == 1
    assert desk.hasher.hashed == hashed + 1  # or one token would keep the processors busy for as long as one likes
    assert (await desk.found(user)).token_generation == 1
    assert len(await desk.outbox("user.revoked")) == 1


@pytest.mark.usefixtures("patient")
async def test_one_reset_kills_all_other_tokens_also_those_that_come_at_once(desk: MailDesk) -> None:
    user, other = await desk.user(), await desk.user("bob@example.com")
    tokens = [await desk.reset_token(user) for _ in range(3)]
    of_other = await desk.reset_token(other)
    assert len(set(tokens)) == 3
    assert sum(await confirmed(desk, *tokens)) == 1
    assert (await desk.found(user)).token_generation == 1
    assert await confirmed(desk, *tokens) == [False] * 3
    assert await confirmed(desk, of_other) == [True]


async def test_a_password_that_was_changed_otherwise_ends_the_tokens_too(desk: MailDesk) -> None:
    user = await desk.user(mailed=True)
    token = await desk.reset_token(user)
    async with desk.database.transaction() as tx:
        await end_resets(tx, user.id, desk.clock.now())
    assert await confirmed(desk, token) == [False]
    [verification] = await desk.mailed_tokens("email.verification.requested")
    await desk.verifying.verify(verification)


async def test_a_token_is_over_after_an_hour(desk: MailDesk) -> None:
    user = await desk.user()
    first, second = await desk.reset_token(user), await desk.reset_token(user)
    desk.clock.advance(3600)
    assert await confirmed(desk, first) == [False]
    desk.clock.advance(-0.000001)
    assert await confirmed(desk, second) == [True]


async def test_a_token_that_ends_while_the_password_is_hashed_is_over(desk: MailDesk) -> None:
    user = await desk.user()
    token = await desk.reset_token(user)
    hashing = desk.hasher.hash

    async def hash_slowly(password: str, *, of_user: bool = False) -> str:
        desk.clock.advance(3600)
        return await hashing(password, of_user=of_user)

    desk.hasher.hash = hash_slowly  # type: ignore[method-assign]  # the real one, in an hour
    assert await confirmed(desk, token) == [False]
    assert await desk.has_password(user, PASSWORD)


async def test_what_is_no_reset_token_is_told_the_same_and_costs_no_hash(desk: MailDesk) -> None:
    user = await desk.user(mailed=True)
    [verification] = await desk.mailed_tokens("email.verification.requested")
    token = await desk.reset_token(user)
    hashed = desk.hasher.hashed
    for text in (verification, token[:-1], token + "A", "", "\x00", "ü" * 50):
        answer = await desk.call("/reset/confirm", {"token": text, "password": NEW_PASSWORD})
        assert (answer.status, answer.body) == INVALID, text
    assert desk.hasher.hashed == hashed
    assert await desk.has_password(user, PASSWORD)


async def test_a_password_that_will_not_do_costs_no_token(desk: MailDesk) -> None:
    user = await desk.user()
    token = await desk.reset_token(user)
    for text in (token, "no token at all"):
        answer = await desk.call("/reset/confirm", {"token": text, "password": "short"})
        assert (answer.status, answer.json) == (400, {"error": "password must be at least 8 characters"})
    strict = Resetting(desk.database, desk.clock, desk.hasher, "strict")
    with pytest.raises(Invalid, match="too common"):
        await strict.confirm(token, "password1")
    assert await confirmed(desk, token) == [True]


async def test_who_was_suspended_meanwhile_sets_no_password(desk: MailDesk) -> None:
    user = await desk.user()
    token = await desk.reset_token(user)
    await desk.suspend(user)
    assert await confirmed(desk, token) == [False]
    assert await desk.has_password(user, PASSWORD)


async def test_a_crash_changes_nothing_and_the_token_stays_good(desk: MailDesk) -> None:
    user = await desk.user()
    token = await desk.reset_token(user)
    broken: Any = FailingDatabase(desk.database, commits=0)
    with pytest.raises(Crash):
        await Resetting(broken, desk.clock, desk.hasher, "length").confirm(token, NEW_PASSWORD)
    assert await desk.found(user) == user
    assert await desk.outbox("user.revoked") == []
    assert await confirmed(desk, token) == [True]
