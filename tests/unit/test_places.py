"""Where the servers of tests live: in memory if there is enough of it, and gone afterwards."""

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.servers import places


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "MEMORY", tmp_path)
    monkeypatch.setattr(places, "ENOUGH", 0)
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_everything_temporary_is_in_memory_and_gone_afterwards(memory: Path) -> None:
    with places.temporary_files_in_memory():
        assert Path(tempfile.gettempdir()).parent == memory == Path(os.environ["TMPDIR"]).parent
        assert Path(tempfile.mkdtemp()).is_relative_to(memory)
    assert "TMPDIR" not in os.environ
    assert not Path(tempfile.gettempdir()).is_relative_to(memory)
    assert list(memory.iterdir()) == []


def test_where_there_is_too_little_memory_the_disk_has_to_do(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ENOUGH", 2**63)
    with places.temporary_files_in_memory():
        assert "TMPDIR" not in os.environ


def test_whoever_names_a_place_gets_it(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    with places.temporary_files_in_memory():
        assert os.environ["TMPDIR"] == "/elsewhere"
    assert os.environ["TMPDIR"] == "/elsewhere"


def test_what_a_killed_run_left_is_removed_and_nothing_else(memory: Path) -> None:
    dead, alive = memory / "refract-tests-999999999", memory / f"refract-tests-{os.getppid()}"
    others = memory / "refract-tests-of-somebody"
    for folder in (dead, alive, others):
        folder.mkdir()
    with places.temporary_files_in_memory():
        assert not dead.exists()
    assert alive.exists()
    assert others.exists()
