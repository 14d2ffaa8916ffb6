"""Threads whose work can wait: they give way to those that somebody waits for."""

import os
import sys
from contextlib import suppress


def step_back() -> None:
    """Let this thread run only while no other wants the processor."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it: a little slower for others, and no reason to fail
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
