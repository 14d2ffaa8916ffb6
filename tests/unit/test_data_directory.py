"""The data directory of an embedded instance."""

import json
import os
import stat
from pathlib import Path

import pytest

from refract.apps.data_directory import DataDirectory
from refract.kernel.errors import Misconfigured

SURROGATES = r'{"JWT_SECRET": "' + r"\ud800" * 40 + '"}'


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
    (directory.path / "secrets.json").write_text(json.dumps({"JWT_SECRET": "k" * 32}))
    assert directory.secrets()["JWT_SECRET"] == "k" * 32
    assert json.loads((directory.path / "secrets.json").read_text())["CLICK_SALT"]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"JWT_SECRET": 5}', "\x00\xff", '{"JWT_SECRET": "short"}', SURROGATES, "[" * 100_000]
)
def test_broken_secrets_are_said_and_not_replaced(directory: DataDirectory, content: str) -> None:
    file = directory.path / "secrets.json"
    file.write_text(content)
    with pytest.raises(Misconfigured, match="restore it from a backup or remove it"):
        directory.secrets()
    assert file.read_text() == content


def test_a_short_secret_is_blamed_on_the_file(directory: DataDirectory) -> None:
    file = directory.path / "secrets.json"
    file.write_text('{"CLICK_SALT": "short"}')
    with pytest.raises(Misconfigured, match=f'FATAL: "{file}" has a CLICK_SALT that is no text of at least 32 bytes'):
        directory.secrets()


def test_secrets_that_cannot_be_read_are_said_in_one_line(directory: DataDirectory) -> None:
    file = directory.path / "secrets.json"
    file.mkdir()
    with pytest.raises(Misconfigured, match=f'FATAL: "{file}" cannot be read: Is a directory'):
        directory.secrets()
    file.rmdir()
    file.symlink_to(file)
    with pytest.raises(Misconfigured, match=f'FATAL: "{file}" cannot be read: Too many levels of symbolic links'):
        directory.secrets()


def test_secrets_that_cannot_be_written_are_said_in_one_line(directory: DataDirectory) -> None:
    (directory.path / "secrets.new").mkdir()
    with pytest.raises(Misconfigured, match=r"FATAL: .* cannot be written: Is a directory"):
        directory.secrets()


def test_kept_secrets_can_be_looked_at_without_making_any(directory: DataDirectory) -> None:
    assert directory.kept_secrets() == {}
    assert list(directory.path.iterdir()) == []
    made = directory.secrets()
    assert directory.kept_secrets() == made


def test_only_one_process_at_a_time(directory: DataDirectory) -> None:
    directory.lock()
    second = DataDirectory(directory.path)
    with pytest.raises(Misconfigured, match="is in use by another refract serve"):
        second.lock()
    directory.unlock()
    second.lock()
    second.unlock()


def test_a_lock_can_be_looked_at_without_taking_it(directory: DataDirectory) -> None:
    assert not directory.is_locked()
    assert list(directory.path.iterdir()) == []
    directory.lock()
    assert DataDirectory(directory.path).is_locked()
    directory.unlock()
    assert not directory.is_locked()


def test_a_lock_of_another_kind_is_said_in_one_line(directory: DataDirectory) -> None:
    file = directory.path / "refract.lock"
    file.mkdir()
    for attempt in (directory.lock, directory.is_locked):
        with pytest.raises(Misconfigured, match=f'FATAL: "{file}" cannot be locked: Is a directory'):
            attempt()


def test_a_place_that_cannot_be_used_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match=r'FATAL: data directory ".*" cannot be used: Not a directory'):
        DataDirectory(tmp_path / "file" / "data").prepare()
    with pytest.raises(Misconfigured, match=r'FATAL: data directory ".*" cannot be used: Not a directory'):
        DataDirectory(tmp_path / "file").prepare()


def test_a_relative_place_in_a_removed_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(Misconfigured, match='FATAL: data directory "data" cannot be used: No such file or directory'):
        DataDirectory(Path("data"))


def test_a_relative_place_is_remembered_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = DataDirectory(Path("data"))
    monkeypatch.chdir(os.sep)
    assert directory.database("links") == tmp_path / "data" / "links.sqlite3"
