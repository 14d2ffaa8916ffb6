"""QR codes: options from a query, and pictures that are read back pixel by pixel and module by module."""

import re
import struct
import zlib
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
import segno

from refract.kernel.errors import Invalid
from refract.services.links.adapters.qr import QrOptions, render_png, render_svg

TEXT = "http://r.test/aZ09bcd"
"""Short enough for version 2, whose codewords are one block, so that a reader of forty lines understands it."""
LONG = "https://links.example.com/" + "a-Long-Alias-of-50-characters-"[:30] + "0123456789" * 2

Modules = list[list[bool]]

MASKS = (
    lambda row, column: (row + column) % 2,
    lambda row, _: row % 2,
    lambda _, column: column % 3,
    lambda row, column: (row + column) % 3,
    lambda row, column: (row // 2 + column // 3) % 2,
    lambda row, column: row * column % 2 + row * column % 3,
    lambda row, column: (row * column % 2 + row * column % 3) % 2,
    lambda row, column: ((row + column) % 2 + row * column % 3) % 2,
)
FORMAT_PLACES = [(8, column) for column in (0, 1, 2, 3, 4, 5, 7, 8)] + [(row, 8) for row in (7, 5, 4, 3, 2, 1, 0)]
LEVELS = {0b01: "L", 0b00: "M", 0b11: "Q", 0b10: "H"}


def read_format(modules: Modules) -> tuple[str, int]:
    """Error level and mask."""
    bits = int("".join(str(int(modules[row][column])) for row, column in FORMAT_PLACES), 2) ^ 0b101010000010010
    return LEVELS[bits >> 13], bits >> 10 & 0b111


def is_data(side: int, row: int, column: int) -> bool:
    """Whether a module of a version 2 code carries data."""
    corner = (row < 9 and column < 9) or (row < 9 and column >= side - 8) or (row >= side - 8 and column < 9)
    alignment = abs(row - (side - 7)) <= 2 and abs(column - (side - 7)) <= 2
    return not corner and not alignment and row != 6 and column != 6


def data_places(side: int) -> Iterator[tuple[int, int]]:
    upwards = True
    for right in [*range(side - 1, 6, -2), *range(5, 0, -2)]:
        for row in range(side - 1, -1, -1) if upwards else range(side):
            yield from ((row, column) for column in (right, right - 1) if is_data(side, row, column))
        upwards = not upwards


def decode(modules: Modules) -> str:
    """What a version 2 code says in byte mode, without any correction of errors."""
    side = len(modules)
    assert side == 25
    _, mask = read_format(modules)
    bits = "".join(
        str(int(modules[row][column] ^ (MASKS[mask](row, column) == 0))) for row, column in data_places(side)
    )
    assert bits[:4] == "0100"
    length = int(bits[4:12], 2)
    return bytes(int(bits[12 + 8 * i : 20 + 8 * i], 2) for i in range(length)).decode()


class Png:
    """A picture of one bit a pixel, unpacked; every check sum is checked."""

    def __init__(self, picture: bytes) -> None:
        assert picture[:8] == b"\x89PNG\r\n\x1a\n"
        chunks = dict(self._chunks(picture[8:]))
        self.order = list(chunks)
        self.width, self.height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
        assert rest == [1, 3, 0, 0, 0]  # one bit, a palette, and nothing unusual
        self.palette = chunks[b"PLTE"].hex()
        self.opacity = chunks.get(b"tRNS")
        lines = zlib.decompress(chunks[b"IDAT"])
        step = 1 + (self.width + 7) // 8
        assert len(lines) == step * self.height
        self.pixels: Modules = []
        for start in range(0, len(lines), step):
            assert lines[start] == 0
            digits = f"{int.from_bytes(lines[start + 1 : start + step], 'big'):0{(step - 1) * 8}b}"
            self.pixels.append([digit == "1" for digit in digits[: self.width]])

    @staticmethod
    def _chunks(rest: bytes) -> Iterator[tuple[bytes, bytes]]:
        while rest:
            (length,) = struct.unpack(">I", rest[:4])
            kind, content = rest[4:8], rest[8 : 8 + length]
            assert struct.unpack(">I", rest[8 + length : 12 + length]) == (zlib.crc32(kind + content),)
            yield kind, content
            rest = rest[12 + length :]

    def margins(self) -> tuple[int, int, int, int]:
        """Light pixels before and after the code: left, right, top, bottom."""
        columns = [any(line[x] for line in self.pixels) for x in range(self.width)]
        rows = [any(line) for line in self.pixels]
        return columns.index(True), columns[::-1].index(True), rows.index(True), rows[::-1].index(True)

    def modules(self, side: int) -> Modules:
        """The code in it, every pixel of every module being of one colour."""
        left, right, top, _ = self.margins()
        scale = (self.width - left - right) // side
        assert scale * side == self.width - left - right
        read = [[self.pixels[top + y * scale][left + x * scale] for x in range(side)] for y in range(side)]
        for y in range(side * scale):
            for x in range(side * scale):
                assert self.pixels[top + y][left + x] == read[y // scale][x // scale]
        return read


def drawn(picture: bytes) -> tuple[ET.Element, list[ET.Element]]:
    root = ET.fromstring(picture)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    paths = list(root)
    assert {path.tag for path in paths} == {"{http://www.w3.org/2000/svg}path"}
    return root, paths


def svg_modules(path: ET.Element, side: int, margin: int) -> Modules:
    modules = [[False] * side for _ in range(side)]
    bars = re.findall(r"M(\d+) (\d+)h(\d+)v1h-(\d+)z", path.attrib["d"])
    assert "".join(f"M{x} {y}h{width}v1h-{back}z" for x, y, width, back in bars) == path.attrib["d"]
    for x, y, width, back in bars:
        assert width == back
        for column in range(int(x) - margin, int(x) - margin + int(width)):
            assert not modules[int(y) - margin][column]
            modules[int(y) - margin][column] = True
    return modules


def expected(text: str) -> Modules:
    return [[bool(module) for module in row] for row in segno.make_qr(text, error="m").matrix]


def test_without_a_query_the_usual_options_hold() -> None:
    options = QrOptions.read(None, None, None, None)
    assert (options.size, options.margin, options.color, options.background) == (300, 4, "000000", "ffffff")
    assert options == QrOptions()


def test_reads_what_is_given() -> None:
    options = QrOptions.read("512", "0", "#1a2B3c", "transparent")
    assert (options.size, options.margin, options.color, options.background) == (512, 0, "1a2b3c", None)


@pytest.mark.parametrize("text", ["f0A", "#f0A", "ff00aa", "#Ff00Aa"])
def test_takes_every_spelling_of_a_colour(text: str) -> None:
    assert QrOptions.read(None, None, text, None).color == "ff00aa"
    assert QrOptions.read(None, None, None, text).background == "ff00aa"


@pytest.mark.parametrize("size", ["32", "2000", "0300"])
def test_takes_sizes_up_to_their_bounds(size: str) -> None:
    assert QrOptions.read(size, None, None, None).size == int(size)


@pytest.mark.parametrize("size", ["", "31", "2001", "-300", "+300", "3e2", "300px", " 300", "٣٠٠", "300\n", "1" * 5000])
def test_refuses_other_sizes(size: str) -> None:
    with pytest.raises(Invalid) as caught:
        QrOptions.read(size, None, None, None)
    assert caught.value.message == "size must be a whole number from 32 to 2000"


@pytest.mark.parametrize("margin", ["", "-1", "21", "4.5", "four"])
def test_refuses_other_margins(margin: str) -> None:
    with pytest.raises(Invalid) as caught:
        QrOptions.read(None, margin, None, None)
    assert caught.value.message == "margin must be a whole number from 0 to 20"
    assert [QrOptions.read(None, text, None, None).margin for text in ("0", "20")] == [0, 20]


@pytest.mark.parametrize(
    "color", ["", "#", "red", "#12", "#1234", "#12345678", "##fff", "#fff\n", '"/><script>', "٣٠٠"]
)
def test_refuses_other_colours(color: str) -> None:
    with pytest.raises(Invalid) as caught:
        QrOptions.read(None, None, color, None)
    assert caught.value.message == "color must be a hex colour such as #1a2b3c"
    with pytest.raises(Invalid) as caught:
        QrOptions.read(None, None, None, color)
    assert caught.value.message == "background must be a hex colour such as #ffffff, or transparent"


def test_only_the_background_can_be_transparent() -> None:
    with pytest.raises(Invalid, match="color must be"):
        QrOptions.read(None, None, "transparent", None)


@pytest.mark.parametrize(("color", "background"), [("#fff", None), (None, "000"), ("#abc", "AABBCC")])
def test_the_two_colours_differ(color: str | None, background: str | None) -> None:
    with pytest.raises(Invalid) as caught:
        QrOptions.read(None, None, color, background)
    assert caught.value.message == "color and background must differ"


@pytest.mark.parametrize("size", [33, 64, 300, 301, 777, 2000])
def test_a_png_says_the_text_in_exactly_its_size(size: int) -> None:
    png = Png(render_png(TEXT, QrOptions(size=size)))
    assert (png.width, png.height) == (size, size)
    modules = png.modules(25)
    assert modules == expected(TEXT)
    assert decode(modules) == TEXT


def test_an_svg_says_the_text() -> None:
    root, (behind, code) = drawn(render_svg(TEXT, QrOptions(size=512, margin=3)))
    assert (root.attrib["width"], root.attrib["height"], root.attrib["viewBox"]) == ("512", "512", "0 0 31 31")
    modules = svg_modules(code, 25, 3)
    assert modules == expected(TEXT)
    assert decode(modules) == TEXT
    assert behind.attrib["d"] == "M0 0h31v31H0z"


def test_both_pictures_show_the_same_code_of_a_long_link() -> None:
    side = len(expected(LONG))
    _, (_, code) = drawn(render_svg(LONG, QrOptions()))
    assert svg_modules(code, side, 4) == Png(render_png(LONG, QrOptions())).modules(side) == expected(LONG)


@pytest.mark.parametrize("text", [TEXT, "r.test/a", "http://localhost:8080/abc1234", LONG])
def test_at_least_fifteen_in_a_hundred_may_be_damaged(text: str) -> None:
    modules = Png(render_png(text, QrOptions())).modules(len(expected(text)))
    level, _ = read_format(modules)
    assert level in "MQH"
    assert len(modules) >= 21  # micro codes are smaller, and telephones do not read them


@pytest.mark.parametrize(("size", "margin"), [(300, 4), (300, 0), (777, 20), (100, 2), (25, 0)])
def test_a_png_has_the_margin_asked_for_and_less_than_a_module_more(size: int, margin: int) -> None:
    png = Png(render_png(TEXT, QrOptions(size=size, margin=margin)))
    scale = size // (25 + 2 * margin)
    left, right, top, bottom = png.margins()
    assert (left, right) == (top, bottom)
    assert 0 <= right - left <= 1  # in the middle
    assert left >= margin * scale
    assert left + right + 25 * scale == size
    assert left + right - 2 * margin * scale < 25 + 2 * margin


def test_a_png_without_a_pixel_for_each_module_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        render_png(TEXT, QrOptions(size=32, margin=4))
    assert caught.value.message == "size must be at least 33 for a PNG of this link with a margin of 4"
    assert Png(render_png(TEXT, QrOptions(size=33, margin=4))).modules(25) == expected(TEXT)
    assert render_svg(TEXT, QrOptions(size=32, margin=4))


def test_the_colours_are_in_the_pictures() -> None:
    options = QrOptions.read(None, None, "#0a0", "#ffee00")
    png = Png(render_png(TEXT, options))
    assert png.palette == "ffee00" + "00aa00"
    assert png.opacity is None
    assert png.order == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    _, paths = drawn(render_svg(TEXT, options))
    assert [path.attrib["fill"] for path in paths] == ["#ffee00", "#00aa00"]


def test_a_transparent_background_is_not_painted() -> None:
    options = QrOptions.read(None, None, "#123456", "transparent")
    png = Png(render_png(TEXT, options))
    assert png.opacity == b"\x00"  # of the first colour; the second is opaque, as are all that are not mentioned
    assert png.palette.endswith("123456")
    assert png.order == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    _, paths = drawn(render_svg(TEXT, options))
    assert [path.attrib["fill"] for path in paths] == ["#123456"]
