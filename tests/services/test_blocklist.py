"""The operator's list of destinations that nobody should be sent to, in a file that changes."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from refract.kernel.errors import Misconfigured, Unavailable
from refract.services.links.adapters import blocklist
from refract.services.links.adapters.blocklist import REASON, Blocklist
from tests.support.clocks import ManualClock

HARMLESS = "https://harmless.example/secret-path"


class Listed:
    """A list in a file, and a clock that says when it is looked at again."""

    def __init__(self, file: Path, text: str | None = None) -> None:
        self.file = file
        self.clock = ManualClock()
        if text is not None:
            self.write(text)
        self.blocklist = Blocklist(file, self.clock)

    def write(self, text: str) -> None:
        self.file.write_text(text)

    async def blocks(self, *urls: str) -> list[bool]:
        found = await self.blocklist.find_threats(urls)
        assert set(found.values()) <= {REASON}
        return [url in found for url in urls]

    async def later(self) -> None:
        self.clock.advance(1)
        await self.blocklist.find_threats([HARMLESS])


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("evil.example", "http://evil.example"),
        ("evil.example", "https://evil.example:8443/any?thing"),
        ("evil.example", "https://deep.down.evil.example/"),
        ("evil.example", "https://EVIL.example./"),
        ("EVIL.Example.", "https://evil.example/"),
        ("*.evil.example", "https://www.evil.example/"),
        ("  evil.example   # since March", "https://evil.example/"),
        ("bücher.example", "https://xn--bcher-kva.example/"),
        ("xn--bcher-kva.example", "https://bücher.example/"),
        ("192.0.2.7", "http://192.0.2.7/x"),
        ("192.0.2.7", "http://0xC0000207/x"),
        ("[2001:db8::7]", "http://[2001:DB8:0::7]/x"),
        ("[2001:db8::7]", "http://[2001:db8::7]:8080/x"),
        ("[2001:db8::7]:8080", "http://[2001:db8::7]:8080/x"),
        ("https://shared.example/~evil", "https://shared.example/~evil/page"),
        ("https://shared.example/~evil", "HTTPS://Shared.Example:443/%7Eevil"),
        ("https://shared.example/~evil", "https://shared.example./good/../~evil"),
        ("https://shared.example", "https://shared.example/any"),
        ("https://shared.example/#frag", "https://shared.example/#fragment"),
        ("shared.example/evil", "http://shared.example/evil"),
        ("shared.example/evil", "https://shared.example/evil"),
        ("shared.example:8080", "http://shared.example:8080/x"),
        ("shared.example:443", "https://shared.example/x"),
        ("shared.example/evil", "http://shared.example/%65vil/%zz"),
        ("shared.example/evil", "http://shared.example/ev%69l%"),
        ("shared.example/evil", "http://shared.example/%/../ev%69l/100%"),
        ("shared.example/?evil", "http://shared.example/?%65vil&100%"),
        ("shared.example/#evil", "http://shared.example/#%65vil%"),
        ("shared.example/100%/%65vil", "http://shared.example/100%25/evil"),
        ("shared.example/100%25/evil", "http://shared.example/100%/ev%69l"),
        ("shared.example/go?to=https://evil.example/", "http://shared.example/go?to=https://evil.example/x"),
        ("shared.example/go?to=https://evil.example/", "https://shared.example/go?to=https://evil.example/x"),
        ("HTTPS://shared.example/evil", "https://shared.example/evil"),
    ],
)
async def test_what_a_line_blocks(tmp_path: Path, line: str, url: str) -> None:
    assert await Listed(tmp_path / "list", f"# a list\n\n{line}\nother.example\n").blocks(url) == [True]


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("evil.example", "https://notevil.example/"),
        ("evil.example", "https://evil.example.org/"),
        ("evil.example", "https://example/evil.example"),
        ("www.evil.example", "https://evil.example/"),
        ("# evil.example", "https://evil.example/"),
        ("https://shared.example/~evil", "https://shared.example/~good"),
        ("https://shared.example/~evil", "https://shared.example/~EVIL"),
        ("https://shared.example/~evil", "http://shared.example/~evil"),
        ("https://shared.example/~evil", "https://www.shared.example/~evil"),
        ("https://shared.example", "https://shared.example.org/"),
        ("shared.example:8080", "http://shared.example/x"),
        ("shared.example/a", "http://shared.example/%%36%31"),  # which is %61 in letters
        ("shared.example/evil", "http://shared.example/good%/evil"),
        ("[2001:db8::7]:8080", "http://[2001:db8::7]/x"),
        ("evil.example", "no URL at all"),
    ],
)
async def test_what_a_line_leaves_alone(tmp_path: Path, line: str, url: str) -> None:
    assert await Listed(tmp_path / "list", f"{line}\n").blocks(url) == [False]


async def test_a_changed_list_holds_within_a_second(tmp_path: Path) -> None:
    listed = Listed(tmp_path / "list", "first.example\n")
    urls = ("https://first.example/", "https://second.example/")
    assert await listed.blocks(*urls) == [True, False]
    listed.write("second.example\n# and no more\n")
    listed.clock.advance(0.99)
    assert await listed.blocks(*urls) == [True, False]
    listed.clock.advance(0.01)
    assert await listed.blocks(*urls) == [False, True]


async def test_a_list_is_read_again_only_if_its_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Listed(tmp_path / "list", "first.example\n")
    reads = []
    read = Path.read_text

    def counted(path: Path, **options: str) -> str:
        reads.append(path)
        return read(path, **options)

    monkeypatch.setattr(Path, "read_text", counted)
    for _ in range(3):
        await listed.later()
    assert len(reads) == 1
    status = listed.file.stat()
    os.utime(listed.file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    await asyncio.gather(listed.later(), listed.later(), listed.later())
    assert len(reads) == 2
    become_a_page(listed.file)
    for _ in range(3):
        await listed.later()
    assert len(reads) == 3


async def test_the_file_is_looked_at_once_for_all_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Listed(tmp_path / "list", "evil.example\n")
    looks = []
    look = blocklist._stamp_of

    def counted(path: Path) -> blocklist.Stamp:
        looks.append(path)
        return look(path)

    monkeypatch.setattr(blocklist, "_stamp_of", counted)
    answers = await asyncio.gather(*(listed.blocks("https://evil.example/") for _ in range(5)))
    assert answers == [[True]] * 5
    assert len(looks) == 1


async def test_a_list_of_the_same_age_and_size_in_another_file_is_read(tmp_path: Path) -> None:
    listed = Listed(tmp_path / "list", "first.example\n")
    assert await listed.blocks("https://other.example/") == [False]
    status = listed.file.stat()
    other = tmp_path / "other"
    other.write_text("other.example\n")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(listed.file)
    await listed.later()
    assert await listed.blocks("https://other.example/") == [True]


def vanish(file: Path) -> None:
    file.unlink()


def become_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def become_a_page(file: Path) -> None:
    file.write_text("<html><body>503 Service Unavailable</body></html>")


def become_binary(file: Path) -> None:
    file.write_bytes(b"good.example\n\xff\xfe\n")


@pytest.mark.parametrize("damage", [vanish, become_a_folder, become_a_page, become_binary])
async def test_a_damaged_list_leaves_the_last_good_one_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    caplog.set_level(logging.INFO)

    def said() -> list[str]:
        return [record.message for record in caplog.records if record.name.startswith("refract")]

    listed = Listed(tmp_path / "list", "evil.example\n")
    await listed.later()
    damage(listed.file)
    for _ in range(3):
        await listed.later()
        assert await listed.blocks("https://evil.example/") == [True]
    assert said() == ["blocklist cannot be read; the last good one stays in force"]
    if listed.file.is_dir():
        listed.file.rmdir()
    listed.write("worse.example\n")
    await listed.later()
    assert await listed.blocks("https://evil.example/", "https://worse.example/") == [False, True]
    assert said()[1:] == ["blocklist can be read again"]
    damage(listed.file)
    await listed.later()
    assert len(said()) == 3


async def test_a_list_that_comes_back_unchanged_is_no_trouble_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    listed = Listed(tmp_path / "list", "evil.example\n")
    await listed.later()
    listed.file.rename(tmp_path / "aside")
    await listed.later()
    (tmp_path / "aside").rename(listed.file)
    await listed.later()
    assert caplog.records[-1].message == "blocklist can be read again"
    assert await listed.blocks("https://evil.example/") == [True]


async def test_an_empty_list_blocks_nothing(tmp_path: Path) -> None:
    listed = Listed(tmp_path / "list", "evil.example\n")
    await listed.later()
    listed.write("# none at present\n")
    await listed.later()
    assert await listed.blocks("https://evil.example/") == [False]


@pytest.mark.parametrize("text", [None, "good.example\nnot a host\n"])
async def test_without_any_good_list_the_check_is_unavailable(tmp_path: Path, text: str | None) -> None:
    listed = Listed(tmp_path / "list", text)
    with pytest.raises(Unavailable):
        await listed.blocks(HARMLESS)
    listed.write("evil.example\n")
    listed.clock.advance(1)
    assert await listed.blocks("https://evil.example/") == [True]


async def test_a_list_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    await Listed(tmp_path / "list", "evil.example\n").blocklist.load()
    with pytest.raises(
        Misconfigured, match=r'FATAL: blocklist ".*/none" cannot be used: No such file.*SAFETY_BLOCKLIST'
    ):
        await Listed(tmp_path / "none").blocklist.load()
    pasted = "good.example\nhttps://user:password@secret.example/\n"
    with pytest.raises(Misconfigured, match="line 2 is neither a host nor a URL") as caught:
        await Listed(tmp_path / "wrong", pasted).blocklist.load()
    assert "secret" not in str(caught.value)
