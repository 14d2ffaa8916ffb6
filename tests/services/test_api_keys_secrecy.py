"""What is said of API keys in the log, and that no key is to be found anywhere."""

import logging
from pathlib import Path

import pytest

from refract.runtime.statements import Statement
from tests.support.api_keys import owner, resolve
from tests.support.databases import Location, empty_location
from tests.support.identity import IdentityWorld, identity, identity_location

__all__ = ["empty_location", "identity", "identity_location"]

pytestmark = pytest.mark.usefixtures("patient_locks")

TABLES = Statement(
    "tables",
    "Lists the tables.",
    "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'",
    sqlite="SELECT name FROM sqlite_master WHERE type = 'table'",
)


async def test_a_guess_is_logged_quietly_and_a_key_of_ours_that_is_over_is_not(
    identity: IdentityWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract.services.identity")
    alice = await owner(identity)
    made = await alice.makes()
    await alice.revokes(made["id"])
    for key in (made["key"], "refract_" + "Guess" * 8):
        assert (await resolve(identity, key)).status == 401
    told = [(one.levelname, one.getMessage()) for one in caplog.records if "key refused" in one.getMessage()]
    assert told == [("WARNING", "api key refused: revoked"), ("INFO", "api key refused: unknown")]


def contents(folder: Path) -> list[str]:
    return [file.read_bytes().decode("latin-1") for file in folder.rglob("*") if file.is_file()]


async def test_no_key_is_in_a_log_a_row_an_event_a_file_or_a_metric(
    identity: IdentityWorld, identity_location: Location, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    alice = await owner(identity)
    made, other = await alice.makes(), await alice.makes()
    guess = "refract_" + "Guess0" * 7
    await resolve(identity, made["key"], uses=3)
    await alice.revokes(made["id"])
    for key in (made["key"], guess, [made["key"]], f"{made['key']}{'x' * 5_000}"):
        assert (await resolve(identity, key)).status in {400, 401}
    await identity.call("GET", "/keys", token=other["key"])  # by mistake
    await identity.call("POST", "/keys", b'{"name": "%b"' % made["key"].encode(), token=alice.token)
    secrets = [made["key"][16:], other["key"][16:], guess[16:]]
    places = [str(vars(record)) for record in caplog.records if not record.name.startswith("asyncio")]
    assert any("api key refused: revoked" in place for place in places)
    for table in await identity.database.fetch(TABLES):
        everything = Statement("everything", "Reads all.", f"SELECT * FROM {table['name']}")
        places += [str(dict(row)) for row in await identity.database.fetch(everything)]
    assert any("apikey.revoked" in place for place in places)
    places.append(identity.metrics.exposition().decode())
    if isinstance(identity_location, Path):
        assert identity_location.is_relative_to(tmp_path)
        places += contents(tmp_path)
    for place in places:
        assert not [secret for secret in secrets if secret in place], place[:400]
