"""Reading frames that foreign programs filled: what breaks a rule of the protocol must not break the connection.

The client library refuses such a frame by closing the connection, upon which the broker delivers it again, for ever.
"""

import struct
from datetime import UTC, datetime

from pamqp import common, decode

LARGEST_SECONDS = 0xFFFFFFFF


def tolerate_foreign_frames() -> None:
    """Let the client library of this process read any text, table and time; correct ones are read as before."""
    decode.METHODS.update(shortstr=_short_text, table=_table, timestamp=_timestamp)
    decode.TABLE_MAPPING.update({b"F": _table, b"T": _timestamp})


def _short_text(value: bytes) -> tuple[int, str]:
    end = 1 + _length_of_key(value, 0)
    return end, _text(value[1:end])


def _table(value: bytes) -> tuple[int, common.FieldTable]:
    """A table says how long it is, so what follows it can be read even if its fields cannot."""
    end = 4 + int(common.Struct.integer.unpack_from(value)[0])
    fields: common.FieldTable = {}
    offset = 4
    try:
        while offset < end:
            start = offset + 1
            offset = start + _length_of_key(value, offset)
            key = _text(value[start:offset])
            consumed, fields[key] = decode.embedded_value(value[offset:end])
            offset += consumed
    except (ValueError, struct.error, RecursionError):  # tables within tables may be thousands deep
        return end, {}
    return end, fields


def _timestamp(value: bytes) -> tuple[int, datetime]:
    """The protocol counts seconds, but some count thousandths, millionths or less: no time of today is ambiguous."""
    seconds = float(common.Struct.timestamp.unpack_from(value)[0])
    while seconds > LARGEST_SECONDS:
        seconds /= 1000
    return 8, datetime.fromtimestamp(seconds, UTC)


def _length_of_key(value: bytes, offset: int) -> int:
    try:
        return value[offset]
    except IndexError:
        raise ValueError("a text is cut off") from None


def _text(encoded: bytes) -> str:
    """Bytes that are not UTF-8 become their hexadecimal numbers, so that different ones stay different."""
    return encoded.decode(errors="backslashreplace")
