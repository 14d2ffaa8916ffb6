"""What a user agent says of a visitor: the browser, the system, the kind of device, and whether it is a machine."""

import re
from operator import attrgetter
from typing import Protocol

from refract.services.analytics.domain.clicks import bounded

Agent = tuple[str, str, str, bool]
"""Browser, operating system, device and bot, in the order of a click."""

UNKNOWN: Agent = ("", "", "desktop", False)
"""Whoever says nothing is on no list of machines, and whatever is not known otherwise is a desk (004, 6.1)."""

_VERSION = re.compile(r"[0-9]{1,4}")
"""No browser has come further; what claims so shall not make a row of its own in every chart."""

_EXPRESSION = attrgetter("regex", "family", "major", "minor", "patch", "patch_minor")
_TELEVISION = re.compile(r"\bTV|TV\b|SmartTV|BRAVIA|\bAFT[A-Z]|Roku|Xbox|PlayStation|Nintendo|CrKey")
_TABLET = re.compile(r"iPad|Tablet|Kindle|\bSilk/|PlayBook|\bKF[A-Z]{2,}\b")
_MOBILE = re.compile(r"Mobi|iPhone|iPod|Opera Mini|Windows Phone|BlackBerry|webOS|KAIOS")
_BROWSER = re.compile(r"Mozilla/|Opera/")
"""How everything begins that a person looks at pages with."""

_POCKET = frozenset({"iOS", "Android", "Windows Phone", "BlackBerry OS", "KaiOS", "HarmonyOS"})


class _Found(Protocol):
    family: str
    major: str | None


class Agents:
    """The lists of browsers, systems and crawlers as their packages keep them, read when first needed.

    All three are matched by one engine in Rust that reads a text once, whatever stands in it: no user agent, however
    made, takes longer than its length allows. The devices of ua-parser, model by model, are left out: they would take
    more memory than all the rest, and no chart asks for them.
    """

    def __init__(self) -> None:
        # All together a fifth of a second and 15 MB, which nobody pays before there is a click.
        import crawleruseragents  # type: ignore[import-untyped]  # noqa: PLC0415
        from ua_parser.loaders import load_lazy_builtins  # noqa: PLC0415
        from ua_parser_rs import OSExtractor, UserAgentExtractor  # noqa: PLC0415

        browsers, systems, _ = load_lazy_builtins()
        crawlers = crawleruseragents.CRAWLER_USER_AGENTS_DATA
        self._browsers = UserAgentExtractor(map(_EXPRESSION, browsers))
        self._systems = OSExtractor(map(_EXPRESSION, systems))
        self._crawlers = UserAgentExtractor((it["pattern"], "crawler", None, None, None, None) for it in crawlers)

    def agent_of(self, text: str) -> Agent:
        """What is known of a user agent; the text is bounded already."""
        if not text:
            return UNKNOWN
        system = self._systems.extract(text)
        bot = self._crawlers.extract(text) is not None
        device = "bot" if bot else _device(text, "" if system is None else system.family)
        return _named(self._browsers.extract(text)), _system(system), device, bot


def _named(found: _Found | None) -> str:
    if found is None or not found.family or found.family == "Other":
        return ""
    known = found.major is not None and _VERSION.fullmatch(found.major)
    return bounded(f"{found.family} {found.major}" if known else found.family)


def _system(found: _Found | None) -> str:
    """Browsers have called every macOS 10 since it was 11, so that its number says nothing."""
    if found is not None and found.family == "Mac OS X":
        return "macOS"
    return _named(found)


def _device(text: str, system: str) -> str:
    """What is held in a hand says so; a television says that it is one, or it would be taken for a tablet."""
    if _TELEVISION.search(text):
        return "desktop"
    if _TABLET.search(text):
        return "tablet"
    if _MOBILE.search(text):
        return "mobile"
    if system == "Android" and _BROWSER.match(text):
        return "tablet"  # a telephone would have said Mobile
    return "mobile" if system in _POCKET else "desktop"
