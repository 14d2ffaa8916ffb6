"""Where a click came from: the host of the page that its browser names."""

import can_ada

LONGEST_NAME = 253
"""No name in the world is longer."""

_SCHEMES = frozenset({"http:", "https:", "android-app:"})
"""Pages, and the apps of a telephone that name themselves as one."""


def host_of(referer: str) -> str:
    """The host in lower case and ASCII, without its port; nothing for what names no place. The text is bounded."""
    if not referer:
        return ""
    try:
        parsed = can_ada.parse(referer)
    except ValueError:
        return ""
    if parsed.protocol not in _SCHEMES:
        return ""
    host = str(parsed.hostname).rstrip(".").lower()
    return host if len(host) <= LONGEST_NAME else ""
