"""Verification of email addresses: the mail, the token that works once, and those that do not."""

import hashlib
import json
from datetime import timedelta

import pytest

from refract.runtime.correlation import correlated
from refract.services.identity.commands.verifying import ask_for_verification
from tests.support.clocks import START
from tests.support.mail_desk import BASE_URL, MailDesk, desk, mail_location, migrated_dsn, migrated_file

__all__ = ["desk", "mail_location", "migrated_dsn", "migrated_file"]

VERIFICATION = "email.verification.requested"
INVALID = (400, b'{"error":"invalid or expired token"}')


async def test_registering_asks_for_the_mail_in_the_envelope_of_the_platform(desk: MailDesk) -> None:
    with correlated("of-the-request"):
        user = await desk.user("alice@example.com", mailed=True)
    [row] = await desk.outbox()
    envelope = json.loads(row["payload"])
    [token] = await desk.mailed_tokens(VERIFICATION)
    assert (row["exchange"], row["event_type"], row["mandatory"]) == ("smap.events", VERIFICATION, True)
    assert envelope.pop("event_id").startswith("evt_")
    assert envelope == {
        "timestamp": "2026-03-01T12:00:00Z",
        "correlation_id": "of-the-request",
        "payload": {
            "user_id": user.id,
            "data": {
                "recipient": "alice@example.com",
                "subject": "Confirm your email address",
                "template": "email_verification",
                "link": f"{BASE_URL}/verify#token={token}",
                "expires_at": "2026-03-02T12:00:00Z",
            },
        },
    }


async def test_of_a_token_only_the_hash_is_kept(desk: MailDesk) -> None:
    user = await desk.user(mailed=True)
    [token] = await desk.mailed_tokens(VERIFICATION)
    [row] = await desk.tokens()
    assert len(token) >= 43
    assert row["token_hash"] == hashlib.sha256(token.encode()).hexdigest()
    assert token not in str(dict(row))
    assert (row["user_id"], row["purpose"], row["used_at"]) == (user.id, "verify", None)
    assert (row["created_at"], row["expires_at"]) == (START, START + timedelta(hours=24))


async def test_no_two_tokens_are_alike(desk: MailDesk) -> None:
    for number in range(5):
        await desk.user(f"user-{number}@example.com", mailed=True)
    assert len(set(await desk.mailed_tokens(VERIFICATION))) == 5


async def test_a_registration_that_fails_sends_nothing(desk: MailDesk) -> None:
    user = await desk.user()

    async def crash() -> None:
        async with desk.database.transaction() as tx:
            await ask_for_verification(tx, desk.mails, user_id=user.id, email=user.email)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await crash()
    assert await desk.outbox() == []
    assert await desk.tokens() == []


async def test_a_token_verifies_the_address_and_again_is_no_error(desk: MailDesk) -> None:
    user, other = await desk.user(mailed=True), await desk.user("bob@example.com", mailed=True)
    token, _ = await desk.mailed_tokens(VERIFICATION)
    desk.clock.advance(60)
    answer = await desk.call("/verify", {"token": token})
    assert (answer.status, answer.body) == (204, b"")
    desk.clock.advance(60)
    again = await desk.call("/verify", {"token": token})
    assert (again.status, again.body) == (204, b"")
    verified = await desk.found(user)
    assert verified.email_verified_at == START + timedelta(seconds=60)
    assert verified.updated_at == START + timedelta(seconds=60)
    assert (verified.password_hash, verified.token_generation) == (user.password_hash, 0)
    assert sorted(str(row["used_at"]) for row in await desk.tokens()) == [str(verified.email_verified_at), "None"]
    assert (await desk.found(other)).email_verified_at is None


async def test_a_token_is_over_at_its_end_used_or_not(desk: MailDesk) -> None:
    user = await desk.user(mailed=True)
    late = await desk.user("late@example.com", mailed=True)
    in_time, too_late = await desk.mailed_tokens(VERIFICATION)
    desk.clock.advance(24 * 3600 - 0.000001)
    await desk.verifying.verify(in_time)
    desk.clock.advance(0.000001)
    answers = [await desk.call("/verify", {"token": token}) for token in (in_time, too_late)]
    assert [(answer.status, answer.body) for answer in answers] == [INVALID] * 2
    assert (await desk.found(user)).email_verified_at is not None
    assert (await desk.found(late)).email_verified_at is None


async def test_what_is_no_verification_token_is_told_the_same(desk: MailDesk) -> None:
    user = await desk.user(mailed=True)
    [token] = await desk.mailed_tokens(VERIFICATION)
    reset = await desk.reset_token(user)
    wrong = (reset, token[:-1], token + "A", token.swapcase(), "", "\x00", "ü" * 50, "' OR 1=1 --")
    answers = [await desk.call("/verify", {"token": text}) for text in wrong]
    assert {(answer.status, answer.body) for answer in answers} == {INVALID}
    assert (await desk.found(user)).email_verified_at is None
    assert (await desk.call("/verify", {"token": token})).status == 204


async def test_a_body_that_cannot_be_read_is_refused(desk: MailDesk) -> None:
    for path in ("/verify", "/reset", "/reset/confirm"):
        for body in (b"", b"{", b"[]", b'{"token": 5, "email": 5}'):
            answer = await desk.call(path, body)
            assert answer.status == 400, (path, body)
            assert answer.json["error"].startswith("invalid request body"), (path, body)
        answer = await desk.call(path, {"token": "a" * 1024, "email": "b" * 1024})
        assert (answer.status, answer.json) == (400, {"error": "request body too large"})
    assert (await desk.call("/verify", {})).body == INVALID[1]
