"""A file of hosts and URLs that nobody shall be sent to, read again when it changes."""

import asyncio
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refract.kernel.clock import Clock
from refract.kernel.errors import Invalid, Misconfigured, Unavailable
from refract.services.links.domain.destinations import Destination, OwnDomains, read_destination, spelt_for_lists

logger = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds between two looks at the file."""
REASON = "on this service's blocklist"

_COMMENT = re.compile(r"(?:^|\s)#.*")
_HOST = re.compile(r"\[[^\]]*\]|[^\[\]:/?\\]+")
_ADDRESS = re.compile(r"(https?://)(?:\[[^\]]*\]|[^:/]*)(.*)", re.DOTALL)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_NONE = OwnDomains(frozenset())

Stamp = tuple[int, int, int]


class Blocklist:
    """Knows what the operator has listed.

    A line is a host, which blocks its subdomains, too; or a URL, which blocks everything that begins with it; or a URL
    without its scheme, for both schemes. `#` begins a comment. Spellings do not matter: both sides are normalised.

    A file that goes away or cannot be read leaves the last good list in force, and is mentioned once. Should there
    never have been a good one, the check is Unavailable.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._list: _List | None = None
        self._stamp: Stamp | None = None
        self._looked_at = -math.inf
        self._trouble: str | None = None
        self._reading = asyncio.Lock()

    async def load(self) -> None:
        """Read the list now, so that a wrong path or line stops the start instead of blocking nothing."""
        await self._refresh()
        if self._trouble is not None:
            raise Misconfigured(
                f'FATAL: blocklist "{self._path}" cannot be used: {self._trouble}; check SAFETY_BLOCKLIST'
            )

    async def find_threats(self, urls: Sequence[str]) -> Mapping[str, str]:
        """Those of the URLs that are listed; raises Unavailable."""
        await self._refresh()
        if self._list is None:
            raise Unavailable("blocklist", self._trouble or "not read yet")
        return {url: REASON for url in urls if self._list.has(url)}

    async def close(self) -> None:
        """There is nothing to give back: the file is open only while it is read."""

    async def _refresh(self) -> None:
        if self._clock.monotonic() - self._looked_at < PAUSE:
            return
        async with self._reading:
            if self._clock.monotonic() - self._looked_at >= PAUSE:  # nobody has looked while we waited
                await self._look()
                self._looked_at = self._clock.monotonic()

    async def _look(self) -> None:
        # The stamp is taken first: what is written after it has another one, and is read next time.
        try:
            stamp = _stamp_of(self._path)
            if stamp == self._stamp:
                return
            self._list = await asyncio.to_thread(_read, self._path)  # a long list takes a while
        except OSError as error:
            self._stamp = None
            self._mention(error.strerror or type(error).__name__)
        except _Unreadable as error:
            self._stamp = stamp
            self._mention(str(error))
        else:
            self._stamp = stamp
            if self._trouble is not None:
                self._trouble = None
                logger.info("blocklist can be read again", extra={"file": str(self._path)})

    def _mention(self, trouble: str) -> None:
        if self._trouble is None:
            in_force = "nothing is blocked by it" if self._list is None else "the last good one stays in force"
            extra = {"file": str(self._path), "reason": trouble}
            logger.warning("blocklist cannot be read; %s", in_force, extra=extra)
        self._trouble = trouble


@dataclass(frozen=True, slots=True)
class _List:
    """What a file says; prefixes are kept by their host, so that a long list costs a URL no more than a short one."""

    hosts: frozenset[str]
    prefixes: Mapping[str, tuple[str, ...]]

    def has(self, url: str) -> bool:
        try:
            destination = read_destination(url, _NONE)
        except Invalid:
            return False  # nobody can be sent there anyway
        if any(host in self.hosts for host in _with_parents(destination.host)):
            return True
        prefixes = self.prefixes.get(destination.host)
        return prefixes is not None and _spelt_normally(destination).startswith(prefixes)


class _Unreadable(Exception):
    """A file that is no list."""


def _stamp_of(path: Path) -> Stamp:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> _List:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise _Unreadable("it is not text in UTF-8") from None
    hosts: set[str] = set()
    prefixes: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        entry = _COMMENT.sub("", line).strip()
        if not entry:
            continue
        try:
            if _HOST.fullmatch(entry):
                hosts.add(_destination(f"http://{entry.removeprefix('*.')}").host)
            else:
                for destination in _destinations(entry):
                    prefixes.setdefault(destination.host, []).append(_spelt_normally(destination))
        except Invalid:
            # Its number only: what is on it may be what somebody pasted by mistake.
            raise _Unreadable(f"line {number} is neither a host nor a URL") from None
    return _List(frozenset(hosts), {host: tuple(each) for host, each in prefixes.items()})


def _destinations(entry: str) -> list[Destination]:
    if _SCHEME.match(entry):  # not `://` anywhere: a query may have a whole URL in it
        return [_destination(entry)]
    return [_destination(f"{scheme}://{entry}") for scheme in ("http", "https")]


def _destination(url: str) -> Destination:
    return read_destination(url, _NONE)


def _spelt_normally(destination: Destination) -> str:
    """The URL in the one spelling that both sides of a comparison use, also of its host."""
    text = spelt_for_lists(destination.url)
    return _ADDRESS.sub(lambda match: f"{match[1]}{destination.host}{match[2]}", text, count=1)


def _with_parents(host: str) -> Iterator[str]:
    """`a.b.c`, `b.c`, `c`."""
    yield host
    while "." in host:
        _, _, host = host.partition(".")
        yield host
