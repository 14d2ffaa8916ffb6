"""Settings from the environment: read once, checked at once, and wrong in one line that says what would be right."""

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

import idna

from refract.kernel.errors import Misconfigured

_HIDDEN = re.compile(r"SECRET|(?:PASSWORD|PASS|TOKEN|SALT|KEY|DSN|RABBITMQ_URL|SMTP_URL)S?\Z")
_ADDRESS = re.compile(r"(?:\[([^\[\]]*:[^\[\]]*)\]|([^\[\]:]+)):([0-9]{1,5})")
_IP_ADDRESS = re.compile(r"[0-9.]+|[\w.%-]*:[\w:.%-]*", re.ASCII)
_NAME = re.compile(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)
_LONGEST_NAME = 253
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


def is_host(text: str) -> bool:
    """Whether it is an IP address or a name that a resolver can be asked for."""
    try:
        name = text if text.isascii() else idna.encode(text, uts46=True).decode()
    except UnicodeError:
        return False
    if _IP_ADDRESS.fullmatch(name):
        return _is_ip_address(name)
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def _is_ip_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _parsed_address(text: str) -> tuple[str, int] | None:
    match = _ADDRESS.fullmatch(text)
    host = match and (match[1] or match[2])
    if not match or not host or not is_host(host) or not 0 < int(match[3]) < 65536:
        return None
    return host, int(match[3])


class Environment:
    """Reads typed values out of a mapping of variables. Empty counts as absent, as in a compose file.

    An option of the command line stands in for the variable of its name: `--port` for PORT.
    """

    def __init__(self, variables: Mapping[str, str], options: Mapping[str, str] | None = None) -> None:
        self._options = {name: value for name, value in (options or {}).items() if value.strip()}
        self._variables = {**variables, **self._options}

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
        try:
            length = len(text.encode())
        except UnicodeEncodeError:
            raise self.wrong(name, "a secret in UTF-8", hidden=True) from None
        if length < minimum:
            raise self.wrong(name, f"a secret of at least {minimum} bytes", hidden=True)
        return text

    def host(self, name: str, default: str | None = None) -> str:
        """A host name or an IP address."""
        text = self.text(name, default)
        if not is_host(text):
            raise self.wrong(name, 'a host name or an IP address, such as "127.0.0.1"')
        return text

    def address(self, name: str, default: str | None = None, *, example: str) -> tuple[str, int]:
        """`host:port`; the example is what a wrong one is answered with."""
        address = _parsed_address(self.text(name, default))
        if address is None:
            raise self.wrong(name, f'"host:port", such as "{example}"')
        return address

    def addresses(self, name: str, *, example: str) -> list[tuple[str, int]]:
        """One or more `host:port`, separated by commas."""
        found = [_parsed_address(part.strip()) for part in self.text(name).split(",")]
        addresses = [address for address in found if address is not None]
        if len(addresses) < len(found):
            raise self.wrong(name, f'"host:port", or several separated by commas, such as "{example}"')
        return addresses

    def url(self, name: str, schemes: tuple[str, ...], default: str | None = None) -> str:
        """An absolute URL of one of the schemes."""
        text = self.text(name, default)
        wanted = f'a URL such as "{schemes[0]}://host:port/…"'
        try:
            parts = urlsplit(text)
            reachable = is_host(parts.hostname or "") and (parts.port is None or parts.port > 0)
        except ValueError:
            raise self.wrong(name, wanted) from None
        if parts.scheme not in schemes or not reachable or " " in text or not text.isprintable():
            raise self.wrong(name, wanted)
        return text

    def endpoint(self, name: str) -> str:
        """The URL of a service of ours, to which paths are added."""
        text = self.url(name, ("http", "https"))
        if "?" in text or "#" in text or "@" in urlsplit(text).netloc:
            raise self.wrong(name, 'a URL such as "http://host:port", without query, fragment and credentials')
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
        shown = f"a hidden value of {len(value)} characters" if hidden else f'"{on_one_line(value)}"'
        source = f'option "--{name.lower()}"' if name in self._options else f'environment variable "{name}"'
        return Misconfigured(f"FATAL: {source} is {shown}; expected {expected}")


def on_one_line(value: str) -> str:
    """A text of unknown origin fit for a line: nothing that steers a terminal, and not too much of it."""
    escaped = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in value[:_LONGEST_SHOWN]
    )
    return escaped if len(value) <= _LONGEST_SHOWN else f"{escaped}…"
