"""Clients who stand in the line of a server that stops: they have been told that they are connected, and are served."""

import asyncio
import socket
import sys

import pytest

from refract.runtime.server import HttpServer
from refract.runtime.waiting_line import admit_again, admit_nobody, let_in
from tests.support.applications import echo
from tests.support.http import fetch, head, running


def call(port: int) -> socket.socket:
    """Connect and ask, without a turn of the event loop: the server has not noticed yet."""
    caller = socket.create_connection(("127.0.0.1", port), timeout=30)
    caller.sendall(head("GET", "/"))
    return caller


def read(caller: socket.socket) -> bytes:
    """All that comes until the server closes."""
    with caller:
        return b"".join(iter(lambda: caller.recv(65_536), b""))


async def test_whoever_stands_in_line_when_it_stops_is_answered() -> None:
    async with running(echo) as server:
        callers = [call(server.port) for _ in range(20)]
        assert server.connections == 0
        answers = [asyncio.to_thread(read, caller) for caller in callers]
        _, *read_back = await asyncio.gather(server.stop(), *answers)
    assert [answer[:12] for answer in read_back if answer] == [b"HTTP/1.1 200"] * 20


@pytest.mark.skipif(sys.platform != "linux", reason="it is the kernel of Linux that is asked")
def test_nobody_new_comes_into_the_line_and_whoever_stands_there_is_let_in() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        with socket.create_connection(address) as first:
            first.sendall(b"first")
            admit_nobody(listening.fileno())
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.2)
            [accepted] = let_in(listening.fileno(), 10)
            with accepted:
                assert accepted.recv(10) == b"first"
        assert let_in(listening.fileno(), 10) == []
        admit_again(listening.fileno())
        socket.create_connection(address, timeout=30).close()


async def test_the_next_worker_on_the_same_socket_admits_clients_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for _ in range(2):
            server = HttpServer(echo, sockets=[listening.dup()])
            await server.start()
            async with asyncio.timeout(30):
                assert (await fetch(server.port, "/")).status == 200
            await server.stop(grace=1)
