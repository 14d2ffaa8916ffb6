"""Databases of before an upgrade, with the tables that earlier migrations made."""

import shutil
from pathlib import Path

import pytest

from refract.runtime import migrations
from tests.support.databases import Location


async def migrate_before(
    first: str, service: str, location: Location, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Migrate an empty database up to the revision before this one; the folder gets the older migrations."""
    before = folder / "before"
    shutil.copytree(migrations._folder(service), before, ignore=shutil.ignore_patterns("__pycache__"))
    for migration in before.glob("[0-9]*.py"):
        if migration.name >= first:
            migration.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "_folder", lambda _: before)
        await migrations.migrate(service, location)
