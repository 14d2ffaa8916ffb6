"""The data directory of an embedded instance."""

import json
import os
import stat
from pathlib import Path

import pytest

from refract.apps.data_directory import DataDirectory
from refract.kernel.errors import Misconfigured


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    directory = DataDirectory(tmp_path / "data")
    directory.prepare()
    return directory


def test_it_is_made_for_its_owner_alone(directory: DataDirectory) -> None:
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert list(directory.path.iterdir()) == []


def test_secrets_are_made_once_and_kept(directory: DataDirectory) -> None:
    first = directory.secrets()
    again = DataDirectory(directory.path).secrets()
    assert first == again
    assert set(first) == {"JWT_SECRET", "CLICK_SALT"}
    assert all(len(secret) >= 32 for secret in first.values())
    assert stat.S_IMODE((directory.path / "secrets.json").stat().st_mode) == 0o600


def test_a_secret_that_came_later_is_added_to_those_kept(directory: DataDirectory) -> None:
    (directory.path / "secrets.json").write_text('{"JWT_SECRET": "kept"}')
    assert directory.secrets()["JWT_SECRET"] == "kept"
    assert json.loads((directory.path / "secrets.json").read_text())["CLICK_SALT"]


@pytest.mark.parametrize("content", ["{", "[]", '{"JWT_SECRET": 5}', "\x00\xff"])
def test_broken_secrets_are_said_and_not_replaced(directory: DataDirectory, content: str) -> None:
    file = directory.path / "secrets.json"
    file.write_text(content)
    with pytest.raises(Misconfigured, match="restore it from a backup or remove it"):
        directory.secrets()
    assert file.read_text() == content


def test_only_one_process_at_a_time(directory: DataDirectory) -> None:
    directory.lock()
    second = DataDirectory(directory.path)
    with pytest.raises(Misconfigured, match="is in use by another refract serve"):
        second.lock()
    directory.unlock()
    second.lock()
    second.unlock()


def test_a_place_that_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match=r'FATAL: data directory ".*" cannot be used: Not a directory'):
        DataDirectory(tmp_path / "file" / "data").prepare()


def test_a_relative_place_is_remembered_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = DataDirectory(Path("data"))
    monkeypatch.chdir(os.sep)
    assert directory.database("links") == tmp_path / "data" / "links.sqlite3"
