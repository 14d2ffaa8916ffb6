"""Large bodies are packed before they go into a file: a row of clicks says nearly the same of each.

Every click is written four times on its way through one process: to the log and the file of the outbox, and to those of
the bus. Packed, that is an eighth of the bytes, and the disk and the kernel have that much less to do; lz4 takes a
tenth of a microsecond for a click, and what it saves is dozens of times that.
"""

import lz4.block  # type: ignore[import-untyped]

WORTH_PACKING = 1024
"""Bytes. What is shorter would take as many pages of a file as before."""

_PACKED = b"\0lz4"
"""Before what is packed. No JSON begins with it; a body that does is packed, however short it is."""
_SIZE_BYTES = 4


def packed(body: bytes) -> bytes:
    """A body as it is stored."""
    if len(body) < WORTH_PACKING and not body.startswith(_PACKED):
        return body
    return _PACKED + bytes(lz4.block.compress(body))


def unpacked(stored: bytes) -> bytes:
    """The body again. What a disk has spoilt stays as it is: whoever reads it buries it, and the others pass."""
    if not stored.startswith(_PACKED):
        return stored
    try:
        body: bytes = lz4.block.decompress(memoryview(stored)[len(_PACKED) :])
    except (lz4.block.LZ4BlockError, ValueError, MemoryError):
        return stored
    return body


def unpacked_size(stored: bytes) -> int:
    """How long the body is, which stands in front of it."""
    if not stored.startswith(_PACKED):
        return len(stored)
    return int.from_bytes(stored[len(_PACKED) : len(_PACKED) + _SIZE_BYTES], "little")
