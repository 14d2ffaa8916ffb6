"""A test that hangs says where."""

import asyncio
import subprocess
import sys
from itertools import dropwhile, islice
from pathlib import Path

import pytest

from tests.support import stuck
from tests.support.stack import inherited

HANGS = """
import asyncio

async def test_that_hangs():
    await wait_for_ever()

async def wait_for_ever():
    await asyncio.Event().wait()
"""
TREE = Path(__file__).parents[2]


async def test_a_task_is_told_with_the_lines_it_waits_at() -> None:
    async def outer() -> None:
        await inner()

    async def inner() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(outer(), name="who waits")
    await asyncio.sleep(0)
    try:
        [told] = [one for one in stuck.waits() if one.startswith("who waits: ")]
    finally:
        task.cancel()
    places = told.removeprefix("who waits: ").split(" > ")
    assert [place.split()[-1] for place in places] == ["outer", "inner", "wait"]
    assert all(f"{Path(__file__).name}:" in place for place in places[:2])


@pytest.mark.parametrize("processes", ["0", "1"], ids=["alone", "in a worker"])
def test_a_run_tells_it_before_the_time_is_over(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nasyncio_mode = auto\ntimeout = {stuck.BEFORE_THE_END + 0.5}\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.stuck", "--numprocesses", processes]
    environment = inherited() | {"PYTHONPATH": str(TREE)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        told = list(islice(dropwhile(lambda line: "takes too long" not in line, run.stderr), 2))
        run.terminate()
    assert "test_hanging.py::test_that_hangs" in told[0]
    assert "test_hanging.py:5 test_that_hangs > " in told[1]
    assert "test_hanging.py:8 wait_for_ever > " in told[1]
