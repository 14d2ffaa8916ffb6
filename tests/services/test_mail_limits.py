"""How many mails there may be: for a mailbox, from a client, also while Redis is away; and no trace of either."""

import logging

import pytest

from refract.runtime.client_address import address_hash
from refract.runtime.distributed.rate_limiter import DistributedRateLimiter
from refract.services.identity.commands.mailing import PER_ACCOUNT, PER_ADDRESS
from tests.support.http import Answer
from tests.support.mail_desk import MailDesk, desk, mail_location, migrated_dsn, migrated_file
from tests.support.redis_twins import administering, connected

__all__ = ["desk", "mail_location", "migrated_dsn", "migrated_file"]

RESET = "email.password_reset.requested"
ASKED = "identity.reset.asked"


async def asked(desk: MailDesk, *emails: str) -> list[int]:
    return [(await desk.call("/reset", {"email": email})).status for email in emails]


async def test_a_mailbox_gets_three_mails_an_hour_and_nobody_is_told(desk: MailDesk) -> None:
    await desk.user("alice@example.com")
    await desk.user("bob@example.com")
    spellings = ("alice@example.com", "ALICE@example.com", " alice@example.com", "Alice@Example.com")
    assert await asked(desk, *spellings) == [204] * 4
    assert await asked(desk, "bob@example.com") == [204]
    await desk.answer_wishes()
    assert len(await desk.outbox(RESET)) == 4
    assert len(await desk.outbox(ASKED)) == 4


async def test_a_mailbox_of_nobody_is_counted_alike(desk: MailDesk) -> None:
    assert await asked(desk, *["nobody@example.com"] * 5) == [204] * 5
    assert len(await desk.outbox(ASKED)) == 3


async def test_a_client_that_floods_is_refused(desk: MailDesk) -> None:
    answers: list[Answer] = [await desk.call("/reset", {"email": f"user-{n}@example.com"}) for n in range(22)]
    assert [answer.status for answer in answers] == [204] * 20 + [429] * 2
    assert {answer.body for answer in answers[20:]} == {b'{"error":"rate limit exceeded"}'}
    assert all(0 < int(answer.headers["retry-after"]) <= 63 * 60 for answer in answers[20:])
    assert len(await desk.outbox(ASKED)) == 20


async def test_the_addresses_of_one_ipv6_network_are_one_client(desk: MailDesk) -> None:
    allowed = [(await desk.limits.of_address(f"2001:db8:1:2::{number:x}")).allowed for number in range(21)]
    assert allowed == [True] * 20 + [False]
    assert (await desk.limits.of_address("2001:db8:1:3::1")).allowed


@pytest.mark.parametrize("mail_location", ["embedded"], indirect=True)  # Redis has a clock of its own
async def test_after_an_hour_there_is_a_mail_again(desk: MailDesk) -> None:
    assert await asked(desk, *["alice@example.com"] * 4) == [204] * 4
    desk.clock.advance(63 * 60)
    assert await asked(desk, "alice@example.com") == [204]
    assert len(await desk.outbox(ASKED)) == 4


async def test_registrations_are_counted_for_the_client_alone(desk: MailDesk) -> None:
    limits = desk.limits
    assert [await limits.admits_registration_from("192.0.2.1") for _ in range(21)] == [True] * 20 + [False]
    assert await limits.admits_registration_from("192.0.2.2")
    # Whoever registers a mailbox that is taken, all day long, does not keep its owner from asking for a reset.
    assert (await limits.of_account("alice@example.com")).remaining == 2


async def test_while_redis_is_away_the_limits_are_kept_here(desk: MailDesk) -> None:
    async with connected("127.0.0.1:1", deadline=0.05) as redis:
        away = MailDesk(desk.database, DistributedRateLimiter(redis), desk.clock)
        for _ in range(5):
            await away.asking.ask("alice@example.com", "192.0.2.1")
        allowed = [(await away.limits.of_address("192.0.2.9")).allowed for _ in range(21)]
        away.hasher.close()
    assert len(await desk.outbox(ASKED)) == 3
    assert allowed == [True] * 20 + [False]


async def test_neither_the_mailbox_nor_the_client_is_written_down(
    desk: MailDesk, redis_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    mailbox, client = f"{desk.salt}@example.com", f"client-{desk.salt}"
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            await desk.asking.ask(mailbox, client)
    assert "no mail sent: too many lately" in caplog.text
    assert desk.salt not in caplog.text
    if isinstance(desk.limiter, DistributedRateLimiter):
        async with administering(redis_address) as redis:
            assert [key async for key in redis.scan_iter(f"*{desk.salt}*")] == []
            assert await redis.exists(PER_ACCOUNT.key(address_hash(mailbox, desk.salt))) == 1
            assert await redis.exists(PER_ADDRESS.key(address_hash(client, desk.salt))) == 1
