"""Sends prepared requests at a constant rate and prints how long each took, as a program of its own.

A request counts from when it was due, also where it had to wait because every connection was busy.

steady.py PORT CONNECTIONS RATE SECONDS FILE    FILE as requests.lua reads it; RATE 0 sends as fast as it is answered

prints {"rate": …, "answers": …, "p50": …, "p99": …, "p999": …, "max": …, "late_p99": …, "busy": …}: milliseconds;
`answers` are all, with those of the warm-up, `late` is by how much the program itself sent too late, `busy` the share
of the time in which it computed. At high rates it looks at its sockets in ticks, so that an answer may count for up to
TICK longer than it took. Where it may, it comes before everybody else on its core: what it is late by would be counted
as the server's.
"""

import ctypes
import gc
import json
import os
import select
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from math import ceil, inf
from pathlib import Path

WARM_SECONDS = 0.5
PATIENCE = 10.0
TIMER_SLACK = 29
LONGEST = 65536

TICK = 0.0002
"""Seconds between two looks at the sockets, where more than one request is due in them: to be woken for every answer
takes half as much again of a core that servers may have to share."""


class Connection:
    """One keep-alive connection with at most one request on its way."""

    __slots__ = ("due", "rest", "sock")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(0.0)
        self.due = 0.0
        self.rest = b""


class Steady:
    """The load and what was seen of it."""

    def __init__(self, port: int, connections: int, requests: list[bytes]) -> None:
        self._poll = select.epoll()
        self._by_number = {}
        for _ in range(connections):
            connection = Connection(port)
            self._by_number[connection.sock.fileno()] = connection
            self._poll.register(connection.sock.fileno(), select.EPOLLIN)
        self._free = deque(self._by_number.values())
        self._requests = requests
        self._sent = 0
        self.latencies: list[float] = []
        self.lateness: list[float] = []

    def run(self, rate: float, seconds: float) -> float:
        """Send for so long and wait for the last answer; the answers in a second."""
        self.latencies, self.lateness = [], []
        clock, step = time.perf_counter, 1 / rate if rate else 0.0
        begin = due = tick = clock()
        end, waited, ticks = begin + seconds, False, 0 < step < TICK
        while True:
            now = clock()
            if not step:
                due = now
            while due <= now and due < end and self._free:
                # Late by our own fault is only what was sent late although a connection was free before.
                self._send(self._free.popleft(), due)
                self.lateness.append(0.0 if waited else now - due)
                due += step
            waited = not self._free
            if due >= end and len(self._free) == len(self._by_number):
                return len(self.latencies) / (clock() - begin)
            if clock() > end + PATIENCE:
                raise RuntimeError("no answer for too long")
            if ticks:
                tick = max(tick + TICK, clock())
                self._receive(self._after(tick))
            else:
                # After the last request nothing is due. To look again and again would keep the server from the core.
                self._receive(self._poll.poll(0) or self._woken(due if due < end else inf))

    def _send(self, connection: Connection, due: float) -> None:
        request = self._requests[self._sent % len(self._requests)]
        self._sent += 1
        connection.due = due
        if connection.sock.send(request) != len(request):
            raise RuntimeError("the server does not read")

    def _after(self, tick: float) -> list[tuple[int, int]]:
        """The connections that have something at the next tick."""
        time.sleep(max(0.0, tick - time.perf_counter()))
        return self._poll.poll(0)

    def _woken(self, due: float) -> list[tuple[int, int]]:
        """Sleep until a connection has something or the next request is due."""
        pause = due - time.perf_counter() if self._free else 0.05
        if pause <= 0 and self._free:
            return []
        # An epoll descriptor in select: the one that sleeps for less than a millisecond.
        select.select([self._poll.fileno()], [], [], min(max(pause, 0.0), 0.05))
        return self._poll.poll(0)

    def _receive(self, ready: list[tuple[int, int]]) -> None:
        """Take what has come."""
        for number, _ in ready:
            connection = self._by_number[number]
            answer = connection.rest + connection.sock.recv(LONGEST)
            if is_whole(answer):
                self.latencies.append(time.perf_counter() - connection.due)
                connection.rest = b""
                self._free.append(connection)
            else:
                connection.rest = answer


def is_whole(answer: bytes) -> bool:
    """Whether an answer has all its bytes; one that is refused ends the program."""
    if not answer.startswith((b"HTTP/1.1 2", b"HTTP/1.1 3")):
        raise RuntimeError(f"refused, or cut off: {answer[:200]!r}")
    head_end = answer.find(b"\r\n\r\n")
    if head_end < 0:
        return False
    head = answer[:head_end].lower()
    found = head.find(b"content-length:")
    if found < 0:
        raise RuntimeError(f"an answer without a length: {answer[:200]!r}")
    line_end = head.find(b"\r\n", found)
    length = int(head[found + 15 : line_end if line_end >= 0 else None])
    return len(answer) >= head_end + 4 + length


def read_requests(file: Path) -> list[bytes]:
    """The requests of a file."""
    text, position, requests = file.read_bytes(), 0, []
    while position < len(text):
        line_end = text.index(b"\n", position)
        begin = line_end + 1
        position = begin + int(text[position:line_end])
        requests.append(text[begin:position])
    return requests


def share(ordered: list[float], part: float) -> float:
    """The smallest value that so large a part does not exceed, in milliseconds."""
    return 1000 * ordered[max(0, ceil(part * len(ordered)) - 1)]


def come_first() -> None:
    """Be woken when something is due, also where servers share the core; only root may ask for that."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def main(port: int, connections: int, rate: float, seconds: float, file: Path) -> None:
    """Send for a moment to warm up, then for the figures."""
    gc.disable()
    if rate:
        come_first()
    ctypes.CDLL(None).prctl(TIMER_SLACK, 1, 0, 0, 0)
    steady = Steady(port, connections, read_requests(file))
    steady.run(rate, WARM_SECONDS)
    answers = len(steady.latencies)
    used, begun = time.process_time(), time.perf_counter()
    reached = steady.run(rate, seconds)
    busy = (time.process_time() - used) / (time.perf_counter() - begun)
    latencies, lateness = sorted(steady.latencies), sorted(steady.lateness)
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    figures = {name: share(latencies, part) for name, part in shares.items()}
    answers += len(latencies)
    print(json.dumps({"rate": reached, "answers": answers, **figures, "late_p99": share(lateness, 0.99), "busy": busy}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
