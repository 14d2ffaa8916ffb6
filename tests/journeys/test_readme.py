"""The README's walk-through, run as it stands: every command works, and prints what it is said to print."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.commands import COMMAND, running
from tests.support.servers.places import free_port
from tests.support.stack import inherited

README = Path(__file__).parents[2] / "README.md"
PROGRAM = ".venv/bin/refract"
ADDRESS = "http://127.0.0.1:8080"
MARK = "--- step ---"
PATIENCE = 30.0
SECONDS_FOR_A_COMMAND = 60.0
HEADINGS = ("## Five minutes with curl", "### API keys", "### Text messages")


@dataclass(frozen=True)
class Step:
    """A command, and the lines that its output has, in this order; `…` stands for anything."""

    command: str
    expected: tuple[str, ...]


def steps(heading: str) -> list[Step]:
    """The commands below a heading. A comment before the first command of a paragraph is prose."""
    text = README.read_text().partition(f"{heading}\n")[2]
    block = text.partition("```sh\n")[2].partition("```")[0]
    found = []
    for paragraph in block.strip().split("\n\n"):
        lines = paragraph.replace("\\\n", " ").splitlines()
        while lines[0].startswith("#"):
            lines.pop(0)
        expected = tuple(line.removeprefix("# ") for line in lines if line.startswith("# "))
        found.append(Step("\n".join(line for line in lines if not line.startswith("#")), expected))
    return found


class Shell:
    """One shell for all commands, because later ones use what earlier ones found."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def prints(self, command: str) -> str:
        """Run a command; what it prints. One that does not end is the end of the shell."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(SECONDS_FOR_A_COMMAND, os.killpg, (self._process.pid, signal.SIGKILL))
        timer.start()
        try:
            self._process.stdin.write(f"{{\n{command}\n}} </dev/null\necho; echo '{MARK}'\n")
            self._process.stdin.flush()
            printed = ""
            for line in self._process.stdout:
                if line == f"{MARK}\n":
                    return printed
                printed += line
        finally:
            timer.cancel()
        raise AssertionError(f"{command}\nfails after\n{printed}\nwith\n{self._errors.read_text()}")


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    """A shell that ends at the first command that fails."""
    path = shutil.which("bash")
    assert path is not None
    errors = folder / "errors"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [path, "-eu"],
            cwd=folder,
            env=inherited(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,  # so that it can be ended with all that it has started
        ) as process,
    ):
        yield Shell(process, errors)


def pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split("…")))


def missing(step: Step, output: str) -> str:
    """The first of the expected lines that is not there."""
    rest = output
    for line in step.expected:
        found = re.search(rf"^{pattern(line)}$", rest, re.MULTILINE)
        if not found:
            return line
        rest = rest[found.end() :]
    return ""


def follow(step: Step, prints: Callable[[], str]) -> None:
    """Do as the text says. Where it says to wait for a moment, a slow machine may need a longer one."""
    deadline = time.monotonic() + PATIENCE
    while line := missing(step, output := prints()):
        again = step.command.startswith("sleep ") and time.monotonic() < deadline
        assert again, f"{step.command}\nprints\n{output}\nwithout\n{line}"


def test_a_command_that_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shell(tmp_path) as bash:
        assert bash.prints("echo one") == "one\n\n"
        monkeypatch.setattr(f"{__name__}.SECONDS_FOR_A_COMMAND", 0.5)
        with pytest.raises(AssertionError, match=r"(?s)sleep 100.*fails after.*two"):
            bash.prints("echo two; sleep 100")


def test_the_walk_through_does_what_it_says(tmp_path: Path) -> None:
    walk = [step for heading in HEADINGS for step in steps(heading)]
    assert len(walk) >= 20, "the blocks were found"
    port = free_port()
    address, data = f"http://127.0.0.1:{port}", tmp_path / "data"
    serve = ("serve", "--data-dir", str(data), "--port", str(port))
    with running(*serve, address=address, folder=tmp_path / "logs"), shell(tmp_path) as bash:

        def prints(command: str) -> str:
            own = command.replace(ADDRESS, address).replace(PROGRAM, " ".join(COMMAND))
            return bash.prints(own).replace("\r", "").replace(address, ADDRESS)

        for step in walk:
            follow(step, partial(prints, step.command))
    assert (tmp_path / "spring.svg").read_text().startswith("<")
