"""A pytest plugin: what tests have started ends with them, when one takes too long or their process is killed, too.

No process group will do for that, as some need a session of their own, and no PR_SET_PDEATHSIG either: it counts for
the thread that started a process, and threads of an event loop end with its test.
"""

import os
import secrets
import sys

from tests.support import warden
from tests.support.warden import VARIABLE, without_mark


def pytest_configure() -> None:
    """Have somebody wait for our end."""
    value = secrets.token_hex(16)
    command = [sys.executable, "-I", "-S", warden.__file__, str(os.getpid()), VARIABLE, value]
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
    # Nobody waits for it: it ends after us.
    os.posix_spawn(sys.executable, command, without_mark(os.environ), file_actions=quiet, setsid=True)
    os.environ[VARIABLE] = value
