"""What an operator does to accounts, on both databases."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest

from refract.kernel.errors import Invalid, NotFound
from refract.runtime.ports import Database, Row
from refract.runtime.statements import Statement
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.commands.administering import Administering
from refract.services.identity.domain.accounts import EmailTaken
from tests.support.clocks import ManualClock
from tests.support.databases import Location, furnish, open_database
from tests.support.outboxes import OUTBOX

PASSWORD = "a password of some length"
USERS = Statement("users", "Reads the accounts.", "SELECT * FROM users ORDER BY email")
REVOCATIONS = Statement("revocations", "Reads what was taken back.", "SELECT * FROM revocations ORDER BY id")
ADD_FOREIGN = Statement(
    "add_foreign",
    "Adds an account of another issuer.",
    """
    INSERT INTO users (id, email, oidc_issuer, oidc_subject, created_at, updated_at)
    VALUES (:id, :email, 'https://issuer.example', 'ann', :now, :now)
    """,
)
FOREIGN_ID = "7e0f4b1c-58a2-4d7e-9a53-0d8c8f2f3b11"


@pytest.fixture
async def identity(empty_location: Location) -> AsyncIterator[Database]:
    """A database with identity's tables."""
    await furnish("identity", empty_location)
    database = await open_database(empty_location)
    yield database
    await database.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 5, 1, tzinfo=UTC))


@pytest.fixture
def administering(identity: Database, clock: ManualClock) -> Administering:
    return Administering(identity, Hasher(cost=4), "length", clock)


async def announced(identity: Database) -> list[tuple[str, int]]:
    """The users whose tokens were ended, with their new generation."""
    rows = await identity.fetch(OUTBOX)
    assert {row["event_type"] for row in rows} <= {"user.revoked"}
    payloads = [msgspec.json.decode(row["payload"])["payload"] for row in rows]
    return [(payload["user_id"], payload["generation"]) for payload in payloads]


async def the_user(identity: Database) -> Row:
    [row] = await identity.fetch(USERS)
    return row


async def test_an_account_can_sign_in_at_once(identity: Database, administering: Administering) -> None:
    made = await administering.create(" Ann@Example.org ", PASSWORD, role="administrator")
    row = await the_user(identity)
    assert (str(row["id"]), row["email"], row["role"], row["status"]) == (
        made.id,
        "ann@example.org",
        "administrator",
        "active",
    )
    assert row["email_verified_at"] == row["created_at"] == datetime(2026, 5, 1, tzinfo=UTC)
    assert await Hasher(cost=4).compare(PASSWORD, row["password_hash"])
    assert PASSWORD not in repr(made)


@pytest.mark.parametrize(
    ("email", "password", "words"),
    [
        ("ann", PASSWORD, "email format is invalid"),
        ("Ann <ann@example.org>", PASSWORD, "email format is invalid"),
        ("ann@example.org", "short", "password must be at least 8 characters"),
    ],
)
async def test_what_nobody_could_register_is_refused(
    identity: Database, administering: Administering, email: str, password: str, words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        await administering.create(email, password)
    assert await identity.fetch(USERS) == []


async def test_the_policy_of_the_instance_holds(identity: Database, clock: ManualClock) -> None:
    with pytest.raises(Invalid, match="too common"):
        await Administering(identity, Hasher(cost=4), "strict", clock).create("ann@example.org", "password1")


async def test_an_address_is_taken_once(identity: Database, administering: Administering) -> None:
    await administering.create("ann@example.org", PASSWORD)
    with pytest.raises(EmailTaken):
        await administering.create("ANN@example.org", PASSWORD, role="administrator")
    assert (await the_user(identity))["role"] == "user"


async def test_who_is_promoted_keeps_their_tokens_and_who_loses_the_role_does_not(
    identity: Database, administering: Administering, clock: ManualClock
) -> None:
    made = await administering.create("ann@example.org", PASSWORD)
    clock.advance(60)
    promoted, changed = await administering.change_role("Ann@example.org", "administrator")
    assert (promoted.role, changed) == ("administrator", True)
    assert await announced(identity) == []
    row = await the_user(identity)
    assert (row["role"], row["updated_at"], row["token_generation"]) == ("administrator", clock.now(), 0)

    demoted, changed = await administering.change_role(made.id, "user")
    assert (demoted.role, changed) == ("user", True)
    assert await announced(identity) == [(made.id, 1)]
    row = await the_user(identity)
    assert (row["role"], row["token_generation"]) == ("user", 1)


async def test_suspending_ends_every_token_in_the_same_transaction(
    identity: Database, administering: Administering, clock: ManualClock
) -> None:
    made = await administering.create("ann@example.org", PASSWORD)
    suspended, changed = await administering.change_status("ann@example.org", "suspended")
    assert (suspended.status, changed) == ("suspended", True)
    row = await the_user(identity)
    assert (row["status"], row["token_generation"]) == ("suspended", 1)
    assert await announced(identity) == [(made.id, 1)]
    [revocation] = await identity.fetch(REVOCATIONS)
    assert (revocation["user_id"], revocation["generation"], revocation["token_id"]) == (made.id, 1, "")


async def test_who_is_let_in_again_has_no_old_tokens(identity: Database, administering: Administering) -> None:
    made = await administering.create("ann@example.org", PASSWORD)
    await administering.change_status(made.id, "suspended")
    active, changed = await administering.change_status(made.id, "active")
    assert (active.status, changed) == ("active", True)
    row = await the_user(identity)
    assert (row["status"], row["token_generation"]) == ("active", 1)
    assert await announced(identity) == [(made.id, 1)]


async def test_doing_it_again_changes_nothing(identity: Database, administering: Administering) -> None:
    made = await administering.create("ann@example.org", PASSWORD)
    outcomes = [await administering.change_status(made.id, "suspended") for _ in range(2)]
    outcomes += [await administering.change_role(made.id, "administrator") for _ in range(2)]
    assert [changed for _, changed in outcomes] == [True, False, True, False]
    assert await announced(identity) == [(made.id, 1)]


@pytest.mark.parametrize(
    ("who", "words"),
    [("bob@example.org", "no account signs in here"), ("bob", "no account with that id"), (FOREIGN_ID, "with that id")],
)
async def test_who_is_not_there_is_said(administering: Administering, who: str, words: str) -> None:
    await administering.create("ann@example.org", PASSWORD)
    for change in (administering.change_role(who, "administrator"), administering.change_status(who, "suspended")):
        with pytest.raises(NotFound, match=words):
            await change


async def test_an_account_of_another_issuer_is_named_by_its_id(
    identity: Database, administering: Administering, clock: ManualClock
) -> None:
    ours = await administering.create("ann@example.org", PASSWORD)
    async with identity.transaction() as tx:
        await tx.execute(ADD_FOREIGN, id=FOREIGN_ID, email="ann@example.org", now=clock.now())
    suspended = [(await administering.change_status(who, "suspended"))[0].id for who in ("ann@example.org", FOREIGN_ID)]
    assert suspended == [ours.id, FOREIGN_ID]


async def test_the_newest_come_first(administering: Administering, clock: ManualClock) -> None:
    assert await administering.newest(10) == []
    for number in range(4):
        clock.advance(1)
        await administering.create(f"{number}@example.org", PASSWORD)
    assert [user.email for user in await administering.newest(3)] == [f"{number}@example.org" for number in (3, 2, 1)]
