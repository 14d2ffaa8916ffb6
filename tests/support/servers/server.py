"""What all private servers share: start and wait until ready, stop, kill, start again on the same port and data."""

import shutil
import time
from abc import ABC, abstractmethod
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from types import TracebackType
from typing import ClassVar, Self

from tests.support.servers.places import free_port, new_folder
from tests.support.servers.process import OwnedProcess

SECONDS_TO_START = 90.0
SECONDS_TO_STOP = 30.0
LOG_LINES_SHOWN = 30


class ServerError(Exception):
    """A private server did not do as it was told; the message ends with its log."""


class Server(ABC):
    """One real server on a loopback port of its own, with its data in a folder of its own.

    All calls block. `start` after `stop` or `kill` finds the same port and the same data; `close` ends the server
    and removes the data. As a context manager it is started on entry and closed on exit.
    """

    name: ClassVar[str]
    variable: ClassVar[str]
    """The environment variable that names such a server to the tests."""
    package: ClassVar[str]
    """The Debian package that brings it."""
    stop_signal: ClassVar[Signals] = SIGTERM
    last_signal: ClassVar[Signals] = SIGKILL
    """Ends it at once, when its data is not wanted any more."""

    def __init__(self) -> None:
        self.port = free_port()
        self._folder: Path | None = None
        self._process: OwnedProcess | None = None

    @classmethod
    @abstractmethod
    def installed(cls) -> bool:
        """Whether this machine has the server's programs."""

    @staticmethod
    @abstractmethod
    def version_at(address: str) -> str:
        """Ask the server at the address for its version."""

    @property
    @abstractmethod
    def address(self) -> str:
        """What to put into the environment variable."""

    @property
    def pid(self) -> int:
        """The real server process."""
        return self._running().pid

    @property
    def folder(self) -> Path:
        """Where its data and log are; known once it has been started."""
        if self._folder is None:
            raise ServerError(f"{self.name} has not been started")
        return self._folder

    @property
    def log(self) -> Path:
        """Everything the server has said."""
        return self.folder / "server.log"

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.alive

    def version(self) -> str:
        """The version the running server gives; not to be called on a running event loop."""
        return self.version_at(self.address)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        if self.alive:
            return
        try:
            if self._folder is None:
                self._folder = new_folder(self.package, self._user())
                self._prepare()
            self._process = self._launch()
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Stop the server in its orderly way; the data stays."""
        if self._process is None:
            return
        self._process.signal(self.stop_signal)
        if not self._process.wait(SECONDS_TO_STOP):
            self.kill()

    def kill(self) -> None:
        """SIGKILL the server's process and wait until it is gone; the data stays."""
        process = self._running()
        process.signal(SIGKILL)
        process.wait(SECONDS_TO_STOP)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server at once and remove its data."""
        if self._process is not None:
            self._process.release()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process = self._folder = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _prepare(self) -> None:
        """Fill the new folder before the first start."""

    @abstractmethod
    def _launch(self) -> OwnedProcess:
        """Start the process."""

    @abstractmethod
    def _ready(self) -> bool:
        """Whether the server answers."""

    def _user(self) -> str:
        """Whom it runs as; empty for the one who runs the tests."""
        return ""

    def _running(self) -> OwnedProcess:
        if self._process is None:
            raise ServerError(f"{self.name} has not been started")
        return self._process

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + SECONDS_TO_START
        while not self._ready():
            if not self.alive:
                raise self._failure("ended while starting")
            if time.monotonic() > deadline:
                raise self._failure(f"did not answer within {SECONDS_TO_START:g} s")
            time.sleep(0.02)

    def _failure(self, what: str) -> ServerError:
        return ServerError("\n".join([f"{self.name} on port {self.port} {what}; its log ends with:", *self._tail()]))

    def _tail(self) -> list[str]:
        if not self.log.exists():
            return ["(no log)"]
        return self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
