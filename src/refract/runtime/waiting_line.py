"""The end of a listening socket: nobody new comes into its line, and whoever stands there is let in."""

import ctypes
import os
import socket
import struct
from contextlib import suppress

_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""Options of Linux which Python does not name."""

# Of a packet, the flags of its TCP header; one with SYN is dropped, and every other is kept.
_DROP_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))


def admit_nobody(listening: int) -> None:
    """Have the kernel leave new clients without an answer. They ask again after a second, and find whoever listens
    then, or nobody. Where this cannot be had, they are admitted as before."""
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _DROP_SYN))
    option = struct.pack("HP", len(_DROP_SYN), ctypes.addressof(program))
    with socket.socket(fileno=os.dup(listening)) as line, suppress(OSError):
        line.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, option)


def admit_again(listening: int) -> None:
    """Undo it: a worker listens on the socket of the one before, which is the parent's, and lives on."""
    with socket.socket(fileno=os.dup(listening)) as line, suppress(OSError):  # usually there is nothing to undo
        line.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


def let_in(listening: int, at_most: int) -> list[socket.socket]:
    """Those who stand in the line: the kernel has told them that they are connected, and they may have sent a request.
    If the socket were closed now, it would cut them off."""
    waiting: list[socket.socket] = []
    with socket.socket(fileno=os.dup(listening)) as line, suppress(OSError):  # the line is empty
        line.setblocking(False)  # noqa: FBT003
        while len(waiting) < at_most:
            waiting.append(line.accept()[0])
    return waiting
