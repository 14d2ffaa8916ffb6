"""QR codes as SVG and PNG: every module the same whole number of pixels, in a picture of exactly the size asked for."""

import re
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import segno

from refract.kernel.errors import Invalid

SIZES = (32, 2000)
"""Pixels of the picture's side, from and to."""
MARGINS = (0, 20)
"""Modules of quiet zone on each side, from and to; scanners expect the default of four."""

CODES_KEPT = 256
"""How many links' codes are remembered: finding the best of the eight masks is what costs, some 5 ms of Python."""

_DIGITS = re.compile(r"[0-9]{1,4}")
_COLOR = re.compile(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})")
_TRANSPARENT = "transparent"
_PALETTE, _ONE_BIT = 3, 1
_LIGHT, _DARK = "0", "1"
"""The two colours' places in the palette, as binary digits."""


@dataclass(frozen=True, slots=True)
class QrOptions:
    """How a code is to look. Colours are six hex digits; a background of None lets what is behind shine through."""

    size: int = 300
    margin: int = 4
    color: str = "000000"
    background: str | None = "ffffff"

    @classmethod
    def read(cls, size: str | None, margin: str | None, color: str | None, background: str | None) -> Self:
        """The options from a query's texts; raises Invalid, naming the parameter and what would be right."""
        usual = cls()
        options = cls(
            size=usual.size if size is None else _whole_number("size", size, SIZES),
            margin=usual.margin if margin is None else _whole_number("margin", margin, MARGINS),
            color=usual.color if color is None else _color("color", color, "a hex colour such as #1a2b3c"),
            background=usual.background if background is None else _background(background),
        )
        if options.color == options.background:
            raise Invalid("color and background must differ")
        return options


def render_svg(text: str, options: QrOptions) -> bytes:
    """The text as a picture that can be scaled; the margin is exactly the one asked for."""
    rows = _modules(text)
    side = len(rows) + 2 * options.margin
    bars = "".join(
        f"M{run.start() + options.margin} {line}h{run.end() - run.start()}v1h{run.start() - run.end()}z"
        for line, row in enumerate(rows, start=options.margin)
        for run in re.finditer(f"{_DARK}+", row)
    )
    behind = f'<path fill="#{options.background}" d="M0 0h{side}v{side}H0z"/>' if options.background else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{options.size}" height="{options.size}"'
        f' viewBox="0 0 {side} {side}" shape-rendering="crispEdges">'
        f'{behind}<path fill="#{options.color}" d="{bars}"/></svg>\n'
    ).encode()


def render_png(text: str, options: QrOptions) -> bytes:
    """The text as a picture of exactly `size` pixels; what whole modules leave over is added to the margin.

    Modules of unequal width would fill the picture, too, and be harder to scan. A size that has less than one pixel
    for each module is Invalid.
    """
    rows = _modules(text)
    modules = len(rows) + 2 * options.margin
    scale = options.size // modules
    if scale == 0:
        raise Invalid(f"size must be at least {modules} for a PNG of this link with a margin of {options.margin}")
    before = (options.size - len(rows) * scale) // 2
    after = options.size - len(rows) * scale - before
    empty = _packed(_LIGHT * options.size)
    lines = [empty * before]
    for row in rows:
        wide = "".join(module * scale for module in row)
        lines.append(_packed(_LIGHT * before + wide + _LIGHT * after) * scale)
    lines.append(empty * after)
    palette = bytes.fromhex((options.background or "ffffff") + options.color)
    chunks = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", options.size, options.size, _ONE_BIT, _PALETTE, 0, 0, 0)),
        _chunk(b"PLTE", palette),
        _chunk(b"tRNS", b"\x00") if options.background is None else b"",
        _chunk(b"IDAT", zlib.compress(b"".join(lines), level=1)),
        _chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@lru_cache(CODES_KEPT)
def _modules(text: str) -> tuple[str, ...]:
    """The code row by row: error level M, or a better one that needs no more room; never a micro code."""
    code = segno.make_qr(text, error="m")
    return tuple("".join(_DARK if module else _LIGHT for module in row) for row in code.matrix)


def _packed(digits: str) -> bytes:
    """One line of a PNG without a filter: eight pixels a byte, the last one filled up."""
    width = (len(digits) + 7) // 8
    return b"\x00" + int(digits.ljust(width * 8, "0"), 2).to_bytes(width, "big")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _whole_number(name: str, text: str, bounds: tuple[int, int]) -> int:
    lowest, highest = bounds
    if not _DIGITS.fullmatch(text) or not lowest <= int(text) <= highest:
        raise Invalid(f"{name} must be a whole number from {lowest} to {highest}")
    return int(text)


def _background(text: str) -> str | None:
    if text == _TRANSPARENT:
        return None
    return _color("background", text, f"a hex colour such as #ffffff, or {_TRANSPARENT}")


def _color(name: str, text: str, expected: str) -> str:
    match = _COLOR.fullmatch(text)
    if match is None:
        raise Invalid(f"{name} must be {expected}")
    digits = match[1].lower()
    return digits if len(digits) == 6 else "".join(digit * 2 for digit in digits)
