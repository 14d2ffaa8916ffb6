"""Google Safe Browsing, by its lookup of URLs (v4): what it says is remembered for as long as it allows."""

import asyncio
import hashlib
import logging
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import aiohttp
import msgspec

from refract import __version__
from refract.kernel.clock import Clock
from refract.kernel.errors import Invalid, Unavailable
from refract.services.links.domain.destinations import normalized

logger = logging.getLogger(__name__)

ENDPOINT = "https://safebrowsing.googleapis.com/v4/threatMatches:find"
URLS_PER_REQUEST = 500
TIMEOUT = 2.0
USUAL_MEMORY = 300.0
"""Seconds that an answer is remembered for which the service states no time; it never does for harmless URLs."""
LONGEST_MEMORY = 86_400.0
MAX_REMEMBERED = 20_000
PAUSE = 5.0
"""Seconds after a failure in which nothing is asked: an outage shall not cost every new link the whole timeout."""
MAX_ANSWER_BYTES = 4 * 1024 * 1024

THREATS = {
    "MALWARE": "malware",
    "SOCIAL_ENGINEERING": "social engineering",
    "UNWANTED_SOFTWARE": "unwanted software",
    "POTENTIALLY_HARMFUL_APPLICATION": "a potentially harmful application",
}

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")


class Unanswered(Unavailable):
    """The service did not answer for all of the URLs; `found` are threats that it, or our memory, had named by then."""

    def __init__(self, reason: str, found: Mapping[str, str]) -> None:
        super().__init__("safe browsing", reason)
        self.found = found


class SafeBrowsing:
    """Asks the service about URLs. Neither they nor the key are ever in a log line or an error.

    A client that it is given is closed with it; without one it makes its own when it is first needed.
    """

    def __init__(
        self, key: str, clock: Clock, *, endpoint: str = ENDPOINT, client: aiohttp.ClientSession | None = None
    ) -> None:
        self._key = key
        self._clock = clock
        self._endpoint = endpoint
        self._client = client
        # By the digest of a URL: the reason, empty if it is harmless, and until when that holds.
        self._remembered: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._away: str | None = None
        self._asks_again_at = -math.inf

    async def find_threats(self, urls: Sequence[str]) -> Mapping[str, str]:
        """Those of the URLs that the service warns of; raises Unanswered."""
        found: dict[str, str] = {}
        unknown = []
        for url in dict.fromkeys(urls):
            reason = self._recall(url)
            if reason is None:
                unknown.append(url)
            elif reason:
                found[url] = reason
        for start in range(0, len(unknown), URLS_PER_REQUEST):
            found |= await self._ask(unknown[start : start + URLS_PER_REQUEST], found)
        return found

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def _ask(self, urls: Sequence[str], found: Mapping[str, str]) -> dict[str, str]:
        if self._away is not None and self._clock.monotonic() < self._asks_again_at:
            raise Unanswered(self._away, found)
        try:
            async with asyncio.timeout(TIMEOUT):
                threats = _threats(await self._exchange(urls), urls)
        except _Refused as error:
            self._fail(str(error), found)
        except TimeoutError:
            self._fail(f"no answer within {TIMEOUT:g} s", found)
        except (aiohttp.ClientError, OSError) as error:
            self._fail(type(error).__name__, found)  # its words may have the URL that was asked, key and all
        except (msgspec.MsgspecError, ValueError):
            self._fail("an answer that cannot be read", found)
        if self._away is not None:
            self._away = None
            logger.info("safe browsing answers again")
        for url in urls:
            self._remember(url, threats.get(url, _HARMLESS))
        return {url: threat.reason for url, threat in threats.items()}

    async def _exchange(self, urls: Sequence[str]) -> "_Answer":
        if self._client is None:
            self._client = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        question = msgspec.json.encode(_question(urls))
        async with self._client.post(
            self._endpoint,
            params={"key": self._key},
            data=question,
            headers={"Content-Type": "application/json"},
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                raise _Refused(f"status {answer.status}")
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise _Refused("an answer that is too long")
        return msgspec.json.decode(body, type=_Answer)

    def _fail(self, reason: str, found: Mapping[str, str]) -> NoReturn:
        if self._away is None:
            message = "safe browsing unavailable; until it is back, SAFETY_FAIL decides about new destinations"
            logger.warning(message, extra={"reason": reason})
        self._away = reason
        self._asks_again_at = self._clock.monotonic() + PAUSE
        raise Unanswered(reason, found) from None

    def _recall(self, url: str) -> str | None:
        """Why the URL is dangerous, empty where it is not, None where that has to be asked."""
        reason, until = self._remembered.get(_digest(url), (None, math.inf))
        return reason if self._clock.monotonic() < until else None

    def _remember(self, url: str, verdict: "_Verdict") -> None:
        """Keep it for its time; the oldest makes room."""
        digest = _digest(url)
        self._remembered.pop(digest, None)
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        self._remembered[digest] = verdict.reason, self._clock.monotonic() + verdict.seconds


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Why a URL is dangerous, empty where it is not, and for how long that may be believed."""

    reason: str
    seconds: float


_HARMLESS = _Verdict("", USUAL_MEMORY)


class _Refused(Exception):
    """The service answered, and not what we asked."""


class _Threat(msgspec.Struct):
    url: str


class _Match(msgspec.Struct, rename="camel"):
    threat_type: str
    threat: _Threat
    cache_duration: str = ""


class _Answer(msgspec.Struct):
    matches: list[_Match] = []


def _question(urls: Sequence[str]) -> Mapping[str, object]:
    return {
        "client": {"clientId": "refract", "clientVersion": __version__},
        "threatInfo": {
            "threatTypes": list(THREATS),
            "platformTypes": ["ANY_PLATFORM"],
            "threatEntryTypes": ["URL"],
            "threatEntries": [{"url": url} for url in urls],
        },
    }


def _threats(answer: _Answer, urls: Sequence[str]) -> dict[str, _Verdict]:
    """What was said about which URL; one that nobody asked about means that we misunderstand the answer."""
    threats: dict[str, _Verdict] = {}
    if not answer.matches:
        return threats
    # Should the service repeat a URL in another spelling, that must not hide the threat.
    asked: dict[str, list[str]] = {}
    for url in urls:
        asked.setdefault(_spelt_normally(url), []).append(url)
    for match in answer.matches:
        found = asked.get(_spelt_normally(match.threat.url))
        if found is None:
            raise _Refused("an answer about something else")
        verdict = _Verdict(THREATS.get(match.threat_type, "a threat"), _seconds(match.cache_duration))
        for url in found:  # all of its spellings lead to it
            threats.setdefault(url, verdict)
    return threats


def _spelt_normally(url: str) -> str:
    try:
        return normalized(url, "rfc3986")
    except Invalid:
        return url


def _seconds(duration: str) -> float:
    """`300s` or `593.440s`, within reason."""
    match = _DURATION.fullmatch(duration)
    return min(float(match[1]), LONGEST_MEMORY) if match else USUAL_MEMORY


def _digest(url: str) -> bytes:
    """What a URL is remembered by: as a text it could be two thousand characters long."""
    return hashlib.sha256(url.encode()).digest()
