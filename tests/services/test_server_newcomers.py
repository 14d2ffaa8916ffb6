"""Clients that come at once are let in at once, however long a turn of the event loop is."""

import asyncio
import socket
import time
from contextlib import ExitStack

from tests.support.applications import echo
from tests.support.http import fetch, running

NEWCOMERS = 200
TURNS = 10


def knock(port: int, stack: ExitStack) -> None:
    """Connect and go on: the kernel lets them stand in the line while nobody else has a turn."""
    client = stack.enter_context(socket.socket())
    client.connect(("127.0.0.1", port))


async def test_all_who_stand_in_the_line_are_let_in_within_a_few_turns() -> None:
    async with running(echo) as server:
        with ExitStack() as stack:
            for _ in range(NEWCOMERS):
                knock(server.port, stack)
            time.sleep(0.2)  # noqa: ASYNC251  # a busy kernel may take a moment to put the last of them into the line
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert server.connections == NEWCOMERS
        assert (await fetch(server.port, "/after")).status == 200


async def test_who_was_let_in_just_before_the_end_is_seen_out() -> None:
    with ExitStack() as stack:
        async with running(echo) as server:
            for _ in range(NEWCOMERS):
                knock(server.port, stack)
            await asyncio.sleep(0)
        assert server.connections == 0
