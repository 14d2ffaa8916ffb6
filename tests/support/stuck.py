"""A pytest plugin: a test that has nearly used up its time says what it waits for. Afterwards its process just ends."""

import asyncio
import sys
from asyncio import AbstractEventLoop as Loop
from collections.abc import Callable, Iterator
from threading import Timer
from typing import Any
from weakref import WeakSet

import pytest
import uvloop

BEFORE_THE_END = 5.0
"""Seconds before its time is over."""

_loops: WeakSet[Loop] = WeakSet()


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Loop]]:
    """Tests run on the event loop that processes run on."""
    return {"uvloop": _watched_loop}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Have it told where a test hangs."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
    timer = Timer(seconds - BEFORE_THE_END, _tell, [item])
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()


def waits() -> list[str]:
    """Each task of the loops that run, with the lines it waits at, the outermost first."""
    tasks = [task for loop in list(_loops) if loop.is_running() for task in asyncio.all_tasks(loop)]
    return [f"{task.get_name()}: {' > '.join(_lines(task.get_coro()))}" for task in tasks]


def _watched_loop() -> Loop:
    loop = uvloop.new_event_loop()
    _loops.add(loop)
    return loop


def _lines(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        # A coroutine, or a generator that is used as one; what is awaited at last is neither.
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _tell(item: pytest.Item) -> None:
    capture = item.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{item.nodeid} takes too long; its tasks wait:", *waits(), sep="\n  ", file=sys.stderr, flush=True)
