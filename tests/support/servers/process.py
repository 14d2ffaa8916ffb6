"""The owner's side of a keeper: a process that ends when the one that started it does, however that one ended."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals

from tests.support.warden import without_mark

KEEPER = Path(__file__).with_name("keeper.py")


class OwnedProcess:
    """One process under a keeper; signals go through the keeper, its parent."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        log: Path,
        last_signal: Signals,
        user: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        keeper = [sys.executable, "-I", "-S", str(KEEPER), str(int(last_signal)), user, str(folder), *command]
        with log.open("ab") as output:
            # A session of its own: Ctrl-C in a terminal is for the tests, and the servers stop after them.
            self._keeper = subprocess.Popen(
                keeper,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                # It sees itself that we are gone, and has a folder to tidy.
                env=without_mark(os.environ if environment is None else environment),
                start_new_session=True,
            )
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._wishes = self._keeper.stdin
        with self._keeper.stdout as first_words:
            # Empty when the command could not be run at all; the log says why, and `alive` soon turns false.
            self.pid = int(first_words.readline() or 0)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._keeper.poll() is None

    def signal(self, number: Signals) -> None:
        """Pass a signal on to the process; one that has ended hears nothing."""
        try:
            self._wishes.write(b"%d\n" % number)
            self._wishes.flush()
        except BrokenPipeError:
            return

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process; False when it has not come in time."""
        try:
            self._keeper.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._close()
        return True

    def release(self) -> None:
        """Let go: the keeper ends the process at once and removes its folder."""
        self._close()
        self._keeper.wait()

    def _close(self) -> None:
        try:
            self._wishes.close()
        except BrokenPipeError:
            return
