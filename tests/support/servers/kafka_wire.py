"""The one question that is asked of a broker in its own words: which versions it speaks."""

import socket
import struct

SECONDS = 5.0
_API_VERSIONS, _VERSION = 18, 3
_RELEASES = {17: "3.6", 18: "3.6", 19: "3.7", 20: "3.8", 21: "3.9", 25: "4.0", 26: "4.1", 27: "4.1"}
"""Which release a level of the feature `metadata.version` belongs to."""


def release_at(address: str) -> str:
    """The release whose format the broker's metadata has; raises OSError when nobody answers."""
    level = _metadata_level(_ask(address))
    if level is None:
        return "without metadata of its own (no real Kafka)"
    return _RELEASES.get(level, f"with metadata of level {level}")


def _ask(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    name = b"\x08refract"  # a compact string: its length and one
    header = struct.pack(">hhih", _API_VERSIONS, _VERSION, 1, 7) + b"refract" + b"\x00"
    request = header + name + b"\x021" + b"\x00"
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        size = struct.unpack(">i", _read(connection, 4))[0]
        return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        chunk = connection.recv(size - len(found))
        if not chunk:
            raise ConnectionError("the broker hung up")
        found += chunk
    return found


def _metadata_level(answer: bytes) -> int | None:
    """The highest level of `metadata.version` that is named: its name as a compact string, then two small numbers."""
    name = b"\x11metadata.version"
    place = answer.rfind(name)  # those in use stand behind those that are possible
    if place < 0:
        return None
    return int(struct.unpack_from(">h", answer, place + len(name))[0])
