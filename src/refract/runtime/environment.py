"""Settings from the environment: read once, checked at once, and wrong in one line that says what would be right."""

import os
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit

from refract.kernel.errors import Misconfigured

_HIDDEN = re.compile(r"SECRET|(?:PASSWORD|PASS|TOKEN|SALT|KEY|DSN|RABBITMQ_URL|SMTP_URL)S?\Z")
_ADDRESS = re.compile(r"(?:\[([\w:.%-]+)\]|([\w.-]+)):([0-9]{1,5})")
_LONGEST_SHOWN = 200


def without_credentials(url: str) -> str:
    """A connection string fit for a log line: no user, no password, no query."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "<unparseable DSN>"
    # A password with a bare `/`, `?` or `#` ends the authority early, and then its rest and the `@` stand further back.
    misread = "@" in parts.path + parts.query + parts.fragment or "=" in parts.path
    if not parts.scheme or not host or misread or not url.isprintable():
        return "<unparseable DSN>"
    place = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{place}{'' if port is None else f':{port}'}{parts.path}"


class Environment:
    """Reads typed values out of a mapping of variables. Empty counts as absent, as in a compose file."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def has(self, name: str) -> bool:
        """Whether a variable is set to something."""
        return bool(self._variables.get(name, "").strip())

    def text(self, name: str, default: str | None = None) -> str:
        """Any text; without a default the variable is required."""
        value = self._variables.get(name, "").strip()
        if value:
            return value
        if default is None:
            raise Misconfigured(f'FATAL: required environment variable "{name}" is not set')
        return default

    def integer(self, name: str, default: int | None = None, *, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
        """A whole number within bounds."""
        if default is not None and not self.has(name):
            return default
        text = self.text(name)
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not minimum <= int(text) <= maximum:
            raise self.wrong(name, f"a whole number from {minimum} to {maximum}")
        return int(text)

    def number(self, name: str, default: float, *, minimum: float, maximum: float) -> float:
        """A decimal number within bounds."""
        if not self.has(name):
            return default
        text = self.text(name)
        if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) or not minimum <= float(text) <= maximum:
            raise self.wrong(name, f"a number from {minimum:g} to {maximum:g}")
        return float(text)

    def flag(self, name: str, *, default: bool) -> bool:
        """true or false."""
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def choice(self, name: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of a few words."""
        text = self.text(name, default)
        if text not in choices:
            raise self.wrong(name, " or ".join(f'"{choice}"' for choice in choices))
        return text

    def secret(self, name: str, *, minimum: int, default: str | None = None) -> str:
        """A text that is long enough to be a secret and never shown."""
        text = self.text(name, default)
        if len(os.fsencode(text)) < minimum:
            raise self.wrong(name, f"a secret of at least {minimum} bytes", hidden=True)
        return text

    def address(self, name: str, default: str | None = None) -> tuple[str, int]:
        """`host:port`."""
        text = self.text(name, default)
        match = _ADDRESS.fullmatch(text)
        if match is None or not 0 < int(match[3]) < 65536:
            raise self.wrong(name, '"host:port", such as "localhost:6379"')
        return match[1] or match[2], int(match[3])

    def url(self, name: str, schemes: tuple[str, ...], default: str | None = None) -> str:
        """An absolute URL of one of the schemes."""
        text = self.text(name, default)
        wanted = f'a URL such as "{schemes[0]}://host:port/…"'
        try:
            parts = urlsplit(text)
            reachable = parts.hostname is not None and (parts.port is None or parts.port > 0)
        except ValueError:
            raise self.wrong(name, wanted) from None
        if parts.scheme not in schemes or not reachable or " " in text or not text.isprintable():
            raise self.wrong(name, wanted)
        return text

    def networks(self, name: str) -> tuple[IPv4Network | IPv6Network, ...]:
        """Addresses and networks, separated by commas; none when absent."""
        text = self.text(name, "")
        try:
            return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())
        except ValueError:
            raise self.wrong(name, 'addresses or networks separated by commas, such as "10.0.0.0/8,::1"') from None

    def wrong(self, name: str, expected: str, *, hidden: bool = False) -> Misconfigured:
        """The error for a value that is there and does not fit; secrets are named and not shown."""
        value = self._variables.get(name, "").strip()
        # An `@` after a colon is what credentials in a connection string end with, whatever the variable is called.
        hidden = hidden or _HIDDEN.search(name) is not None or "@" in value.partition(":")[2]
        shown = f"a hidden value of {len(value)} characters" if hidden else f'"{_on_one_line(value)}"'
        return Misconfigured(f'FATAL: environment variable "{name}" is {shown}; expected {expected}')


def _on_one_line(value: str) -> str:
    escaped = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in value[:_LONGEST_SHOWN]
    )
    return escaped if len(value) <= _LONGEST_SHOWN else f"{escaped}…"
