"""Clicks as files: lines of CSV or JSON, in pieces that a slow reader takes one by one."""

import csv
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from io import StringIO
from typing import Any

import msgspec

from refract.runtime.ports import Row
from refract.services.analytics.queries.statements import CLICK_COLUMNS

PIECE_BYTES = 32 * 1024
"""Not more at once: our server cuts off whoever does not take a piece in some seconds."""

_NAMES = ("id", *CLICK_COLUMNS[1:])
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for the beginning of a formula, in the widths in which East Asia writes it, too."""

_encoder = msgspec.json.Encoder()


class Format(StrEnum):
    """The forms of a file."""

    CSV = "csv"
    JSONL = "jsonl"

    @property
    def media_type(self) -> str:
        """What it is called in an answer."""
        return "text/csv" if self is Format.CSV else "application/jsonl"


async def write_file(pages: AsyncIterator[Sequence[Row]], form: Format) -> AsyncIterator[bytes]:
    """The file of all these clicks, piece by piece."""
    if form is Format.CSV:
        yield ",".join(_NAMES).encode() + b"\r\n"
    write = _csv if form is Format.CSV else _jsonl
    async for rows in pages:
        for piece in _pieces(write(rows)):
            yield piece


def _pieces(written: bytes) -> Iterator[bytes]:
    for start in range(0, len(written), PIECE_BYTES):
        yield written[start : start + PIECE_BYTES]


def _csv(rows: Sequence[Row]) -> bytes:
    written = StringIO()
    csv.writer(written).writerows([_cell(row[name]) for name in CLICK_COLUMNS] for row in rows)
    return written.getvalue().encode()


def _cell(value: Any) -> str:
    """A value as a spreadsheet may open it: a text that would be a formula there is marked as a text."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return "" if value is None else str(value)


def _jsonl(rows: Sequence[Row]) -> bytes:
    return _encoder.encode_lines([dict(zip(_NAMES, map(row.__getitem__, CLICK_COLUMNS), strict=True)) for row in rows])
