"""One domain in several spellings is one mailbox, and so one account; in both modes."""

from pathlib import Path

import pytest

from refract.runtime import migrations
from refract.runtime.statements import Statement
from refract.services.identity.domain.accounts import User
from refract.services.identity.store import Users
from tests.support.clocks import START
from tests.support.databases import Location, empty_location, open_database
from tests.support.identity import IdentityWorld, identity, identity_location
from tests.support.upgrades import migrate_before

__all__ = ["empty_location", "identity", "identity_location"]

pytestmark = pytest.mark.usefixtures("patient_locks")

EMAILS = Statement("emails", "Reads who has which address.", "SELECT email FROM users ORDER BY email")


async def test_one_domain_in_two_spellings_has_one_account(identity: IdentityWorld) -> None:
    assert (await identity.register("info@faß.example")).status == 201
    assert (await identity.register("Info@xn--fa-hia.example")).status == 409
    assert (await identity.login("INFO@XN--FA-HIA.EXAMPLE")).status == 200
    assert (await identity.login("info@fass.example")).status == 401
    assert (await identity.register("info@fass.example")).status == 201, "another domain, of somebody else"
    assert {user["email"] for user in await identity.users()} == {"info@fass.example", "info@faß.example"}


async def test_a_mailbox_is_counted_by_its_domain_in_whatever_spelling(identity: IdentityWorld) -> None:
    spellings = ("info@faß.example", "info@xn--fa-hia.example", "info@\uff46aß.example", "info@f\uff41ß.example")
    for spelling in spellings:
        assert (await identity.call("POST", "/reset", {"email": spelling})).status == 204
    asked = [event for event in await identity.announced() if event["event_type"] == "identity.reset.asked"]
    assert len(asked) == 3, "no more mails an hour go to one mailbox"


async def test_a_mail_names_the_domain_so_that_no_reader_can_take_it_for_another(identity: IdentityWorld) -> None:
    assert (await identity.register("info@faß.example")).status == 201
    mails = [event["payload"] for event in await identity.announced() if "verification" in event["event_type"]]
    assert len(mails) == 2, "with the one for the older exchange, whose reader may map domains as in 2003"
    assert all("'recipient': 'info@xn--fa-hia.example'" in str(mail) for mail in mails)


async def test_accounts_of_before_are_found_by_either_spelling(
    empty_database: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate_before("0007", "identity", empty_database, tmp_path, monkeypatch)
    database = await open_database(empty_database)
    before = ("a@faß.example", "a@xn--fa-hia.example", "b@xn--fa-hia.example", "c@xn--n3h.example", "xn--d@example.com")
    async with database.transaction() as tx:
        for email in before:
            await Users().add(tx, User.local(email, "hash", START))
    await database.close()
    await migrations.migrate("identity", empty_database)
    database = await open_database(empty_database)
    try:
        after = {row["email"] for row in await database.fetch(EMAILS)}
    finally:
        await database.close()
    assert after == {*before} - {"b@xn--fa-hia.example"} | {"b@faß.example"}
