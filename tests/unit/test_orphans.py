"""What tests have started does not outlive them, however they end."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from tests.support import orphans, warden
from tests.support.stack import inherited

LEAVES = """
import subprocess
import sys
import threading
import time
from pathlib import Path

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
STARTS_ANOTHER = [sys.executable, "-c", f"import subprocess; subprocess.run({SLEEPS!r})"]

def test_that_leaves_them():
    subprocess.Popen(SLEEPS)
    subprocess.Popen(STARTS_ANOTHER, start_new_session=True)
    thread = threading.Thread(target=subprocess.Popen, args=[SLEEPS])
    thread.start()
    thread.join()
    Path(__file__).with_name("started").touch()
    time.sleep(0 if "ends" in __file__ else 600)
"""
LEFT = 4
TREE = Path(__file__).parents[2]


def those_of(folder: Path) -> set[int]:
    """The processes that work in this folder, as all of a run do that is started there, and its warden."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder:
                found.add(int(entry.name))
        except OSError:  # gone, or somebody else's, or only waiting for its parent to notice
            continue
    return found


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("processes", ["0", "1"], ids=["alone", "in a worker"])
@pytest.mark.parametrize("end", ["killed", "too slow", "ends"])
def test_what_a_test_has_left_ends_with_the_run(tmp_path: Path, end: str, processes: str) -> None:
    folder = tmp_path / end.replace(" ", "-")
    folder.mkdir()
    (folder / "test_leaving.py").write_text(LEAVES)
    (folder / "pytest.ini").write_text("[pytest]\ntimeout_method = thread\n")
    command = [sys.executable, "-m", "pytest", "-p", orphans.__name__, "--numprocesses", processes]
    timeout = ["--timeout", "3"] if end == "too slow" else []
    environment = inherited() | {"PYTHONPATH": str(TREE)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen([*command, *timeout], cwd=folder, env=environment, stdout=quiet, stderr=quiet) as run:
        wait_until((folder / "started").exists)
        if end == "killed":
            assert len(those_of(folder)) > LEFT
            run.send_signal(signal.SIGKILL)
        run.wait(60)
    wait_until(lambda: not those_of(folder))


def test_whoever_has_an_end_of_its_own_is_not_marked() -> None:
    marked = {warden.VARIABLE: "a", "PATH": "/bin"}
    assert warden.without_mark(marked) == {"PATH": "/bin"}
    own = Path("/proc/self/environ").read_bytes().split(b"\0")
    [ours] = islice((line for line in inherited().items() if line[0] == warden.VARIABLE), 1)
    assert "=".join(ours).encode() not in own, "we would end ourselves"
