"""Schema histories: applied once, by one process at a time, all or nothing; no Alembic when nothing is to do."""

import asyncio
import fcntl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

import refract.services
from refract.kernel.errors import Misconfigured, Unavailable
from refract.runtime import migrations
from refract.runtime.migrations import current_revision, head_revision, migrate
from refract.runtime.statements import Statement
from tests.support.databases import Location, open_database

SERVICES = ("links", "analytics", "identity", "notifications", "sms", "projects")
HEAVY = """
import asyncio, sys
from pathlib import Path
from refract.runtime.migrations import migrate

location = Path(sys.argv[2]) if sys.argv[2].startswith("/") else sys.argv[2]
asyncio.run(migrate(sys.argv[1], location))
print(sorted(name for name in ("alembic", "sqlalchemy", "greenlet") if name in sys.modules))
"""
TABLES = Statement(
    "tables",
    "Lists the tables.",
    "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1",
    sqlite="SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY 1",
)
SET_REVISION = Statement("set_revision", "Pretends.", "UPDATE alembic_version SET version_num = :revision")


async def tables(location: Location) -> list[str]:
    database = await open_database(location)
    found = [row["name"] for row in await database.fetch(TABLES)]
    await database.close()
    return found


@pytest.mark.parametrize("service", SERVICES)
async def test_every_service_reaches_its_newest_revision(service: str, empty_database: Location) -> None:
    assert await current_revision(empty_database) is None
    await migrate(service, empty_database)
    assert await current_revision(empty_database) == head_revision(service)
    assert {"alembic_version", "inbox", "inbox_attempts", "outbox"} <= set(await tables(empty_database))


def test_every_folder_of_migrations_is_tested() -> None:
    root = Path(refract.services.__path__[0])
    assert sorted(folder.parent.name for folder in root.glob("*/migrations")) == sorted(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_revisions_are_numbered_without_gaps_and_each_follows_the_last(service: str) -> None:
    folder = Path(refract.services.__path__[0]) / service / "migrations"
    files = sorted(folder.glob("[0-9]*.py"))
    assert [file.name[:4] for file in files] == [f"{number:04}" for number in range(1, len(files) + 1)]
    previous: str | None = None
    for file in files:
        text = file.read_text()
        assert f'revision = "{file.name[:4]}"' in text
        assert f"down_revision = {None if previous is None else repr(previous)}".replace("'", '"') in text
        previous = file.name[:4]


async def test_migrating_again_changes_nothing(empty_database: Location) -> None:
    await migrate("links", empty_database)
    before = await tables(empty_database)
    await migrate("links", empty_database)
    assert await tables(empty_database) == before


async def test_several_processes_may_start_at_once(empty_database: Location) -> None:
    command = [sys.executable, "-c", HEAVY, "links", str(empty_database)]
    processes = [await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL) for _ in range(4)]
    assert [await process.wait() for process in processes] == [0, 0, 0, 0]
    assert await current_revision(empty_database) == head_revision("links")


async def test_nobody_migrates_while_another_process_does(
    empty_database: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_lock(empty_database):
        with monkeypatch.context() as impatient:
            impatient.setattr(migrations, "LOCK_TIMEOUT", 0.2)
            with pytest.raises(Unavailable):
                await migrate("links", empty_database)
        assert await current_revision(empty_database) is None
    await migrate("links", empty_database)
    assert await current_revision(empty_database) == head_revision("links")


async def test_the_wait_for_another_process_can_be_given_up(
    empty_database: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", 90)
    async with held_lock(empty_database), asyncio.timeout(45):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await migrate("links", empty_database)
        # As a process does at its end: it waits for its threads.
        await asyncio.get_running_loop().shutdown_default_executor()


@asynccontextmanager
async def held_lock(location: Location) -> AsyncIterator[None]:
    """The lock that a migrating process holds."""
    if isinstance(location, Path):
        with location.with_name("migrating.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        return
    connection = await asyncpg.connect(location)
    try:
        await connection.execute(f"SELECT pg_advisory_lock({migrations._ADVISORY_LOCK})")
        yield
    finally:
        await connection.close()


async def test_a_start_without_anything_to_do_imports_no_alembic(empty_database: Location) -> None:
    command = [sys.executable, "-c", HEAVY, "links", str(empty_database)]
    first = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, text=True)
    second = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, text=True)
    assert "alembic" in first.stdout
    assert second.stdout == "[]\n"


async def test_a_database_that_is_newer_than_the_code_is_refused(empty_database: Location) -> None:
    await migrate("links", empty_database)
    database = await open_database(empty_database)
    async with database.transaction() as tx:
        await tx.execute(SET_REVISION, revision="9999")
    await database.close()
    with pytest.raises(Misconfigured, match=r"links is at revision 9999.*knows only up to"):
        await migrate("links", empty_database)


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a service whose second revision fails half way."""
    folder = tmp_path / "lamps" / "migrations"
    folder.mkdir(parents=True)
    monkeypatch.setattr(migrations, "_folder", lambda service: tmp_path / service / "migrations")
    (folder / "0001_lamps.py").write_text(
        'import sqlalchemy as sa\nfrom alembic import op\n\nrevision = "0001"\ndown_revision = None\n\n'
        'def upgrade():\n    op.create_table("lamps", sa.Column("id", sa.Integer(), primary_key=True))\n'
    )
    (folder / "0002_broken.py").write_text(
        'import sqlalchemy as sa\nfrom alembic import op\n\nrevision = "0002"\ndown_revision = "0001"\n\n'
        'def upgrade():\n    op.create_table("shades", sa.Column("id", sa.Integer(), primary_key=True))\n'
        "    raise ZeroDivisionError\n"
    )
    return folder


async def test_a_migration_that_fails_leaves_nothing_behind_and_can_be_tried_again(
    empty_database: Location, history: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        await migrate("lamps", empty_database)
    assert await tables(empty_database) == []
    broken = history / "0002_broken.py"
    broken.write_text(broken.read_text().replace("    raise ZeroDivisionError\n", ""))
    await migrate("lamps", empty_database)
    assert await tables(empty_database) == ["alembic_version", "lamps", "shades"]
    assert await current_revision(empty_database) == "0002"


async def test_only_what_is_missing_is_applied(empty_database: Location, history: Path) -> None:
    second = history / "0002_broken.py"
    text = second.read_text()
    second.unlink()
    await migrate("lamps", empty_database)
    assert await current_revision(empty_database) == "0001"
    second.write_text(text.replace("    raise ZeroDivisionError\n", ""))
    await migrate("lamps", empty_database)
    assert migrations.head_revision("lamps") == await current_revision(empty_database) == "0002"
