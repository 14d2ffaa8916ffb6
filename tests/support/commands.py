"""The `refract` command as a process of its own: run to its end, or kept running while a test looks at it."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.support.stack import inherited

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
COMMAND = (sys.executable, "-m", "refract.apps.cli")
PATIENT = (sys.executable, "-m", "tests.support.patient_command")
"""The same for tests that count what is lost or let through while the machine may stand still for a while."""


def refract(
    *arguments: str, variables: Mapping[str, str] | None = None, timeout: float = 90, standard_input: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**inherited(), **(variables or {})},
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def logged_in(file: Path) -> list[dict[str, Any]]:
    """The lines of a log, but the last one if it is not whole: it may be on its way, or its process was killed."""
    return [msgspec.json.decode(line) for line in file.read_bytes().split(b"\n")[:-1]]


@dataclass
class Running:
    """A process that listens, with its output in two files."""

    process: subprocess.Popen[bytes]
    address: str
    folder: Path

    @property
    def said(self) -> str:
        """What it told the person who started it."""
        return (self.folder / "stderr").read_text()

    @property
    def log(self) -> list[dict[str, Any]]:
        """Its log, line by line."""
        return logged_in(self.folder / "stdout")

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Status and body of a request."""
        request = urllib.request.Request(f"{self.address}{path}", headers=dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def stop(self, number: signal.Signals = signal.SIGTERM, within: float = 40) -> int:
        """Send a signal and wait for the end; its exit status."""
        self.process.send_signal(number)
        return self.process.wait(within)


@contextmanager
def running(
    *arguments: str,
    address: str,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    command: Sequence[str] = COMMAND,
) -> Iterator[Running]:
    """Start a command that listens at an address, and wait until it answers there; one of ours may be of the tests."""
    folder.mkdir(parents=True, exist_ok=True)
    support = {} if command == COMMAND else {"PYTHONPATH": PYTHONPATH}
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [*command, *arguments],
            env={**inherited(), **support, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
        )
    started = Running(process, address, folder)
    try:
        _wait_until_it_answers(started)
        yield started
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_until_it_answers(started: Running, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            started.get("/health")
        except OSError:
            ended = started.process.poll()
            assert ended is None, f"ended with status {ended}: {started.said}"
            assert time.monotonic() < deadline, f"no answer within {seconds:g} s: {started.said}"
            time.sleep(0.02)
        else:
            return


def environment_without(variables: Mapping[str, str], name: str) -> dict[str, str]:
    """The same variables less one."""
    return {key: value for key, value in variables.items() if key != name}
