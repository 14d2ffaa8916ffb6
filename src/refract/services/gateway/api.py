"""The public route table as data, how a path is found in it, and the words that no short code may be."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

NAME = "gateway"
WIRE_NAME = "gateway"
PORT = 8080

Token = Literal["none", "optional", "required", "administrator"]
"""Whether a route wants a token: not looked at; checked where one is sent; demanded; demanded of an administrator, or
as an API key with the scope for it (decision 17)."""

KeyScope = Literal["links:read", "links:write", "stats:read", "notifications:read", "sms:send"]
"""What an API key may be allowed to do."""

CountedBy = Literal["address", "user", "key"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate limit: its name, which is also its policy's, and by what requests are counted."""

    name: str
    by: CountedBy


SHORTEN = Limit("shorten", "address")
REDIRECT = Limit("redirect", "address")
BULK = Limit("bulk", "user")
"""Counted by links, URL by URL (decision 32): the gateway has no policy of this name."""
API_KEY = Limit("api_key", "key")
"""In the place of any row's own limit for a caller with an API key, which is not slowed down by its neighbours."""
NEW_KEY = Limit("new_key", "user")
REFUSED_KEY = Limit("refused_key", "address")
"""No row's: API keys that identity does not know are counted on any of them, each once."""


@dataclass(frozen=True, slots=True)
class Route:
    """One row: what the public sees, where it goes, its rate limit, and whether the target's breaker may refuse it.

    `scope` is what an API key needs here; without one no key is let in. `own_origin`: it signs somebody in, and so
    another site must not send a browser there. `streams`: its answer may last for hours, and is not counted among the
    requests in flight.
    """

    methods: tuple[str, ...]
    path: str
    target: str
    forward: str
    token: Token
    limit: Limit | None
    breaker: bool
    scope: KeyScope | None = None
    own_origin: bool = False
    streams: bool = False

    @property
    def makes_clicks(self) -> bool:
        """Whether a request of this row may be a click, which is one however often the service is asked for it."""
        return self.limit is REDIRECT


@dataclass(frozen=True, slots=True)
class Match:
    """A request that has a row, and the path by which the target knows it, as sent."""

    route: Route
    path: str


@dataclass(frozen=True, slots=True)
class WrongMethod:
    """A path that has rows, none of them for this method."""

    allow: tuple[str, ...]


GET = ("GET", "HEAD")

_PREFIXES = (("/api/auth/", "/"), ("/api/sms/", "/api/"), ("/api/", "/"), ("/r/", "/"))
"""What the public path begins with, and what the target's does instead: the first that fits."""


def _route(  # noqa: PLR0913  # a row has so many columns
    methods: tuple[str, ...] | str,
    path: str,
    target: str,
    token: Token = "required",  # noqa: S107 - a word of the table, not a secret
    *,
    scope: KeyScope | None = None,
    limit: Limit | None = None,
    breaker: bool = True,
    own_origin: bool = False,
    streams: bool = False,
) -> Route:
    public, inner = next(((old, new) for old, new in _PREFIXES if path.startswith(old)), ("", ""))
    forward = inner + path.removeprefix(public)
    allowed = (methods,) if isinstance(methods, str) else methods
    return Route(allowed, path, target, forward, token, limit, breaker, scope, own_origin, streams)


SESSION_COOKIE = "refract_session"
"""Carries a browser's token: identity sets it, and here it is taken for a bearer token."""

ROUTES: tuple[Route, ...] = (
    # Links. A short link has two addresses; /r/ is the specification's, the bare one is what people share.
    _route(GET, "/{code}", "links", "none", limit=REDIRECT),
    _route(GET, "/r/{code}", "links", "none", limit=REDIRECT),
    _route("POST", "/api/shorten", "links", scope="links:write", limit=SHORTEN),
    _route("POST", "/api/shorten/bulk", "links", scope="links:write", limit=BULK),
    _route(GET, "/api/urls", "links", scope="links:read"),
    _route(GET, "/api/urls/{code}", "links", scope="links:read"),
    _route(("PATCH", "DELETE"), "/api/urls/{code}", "links", scope="links:write"),
    _route(GET, "/api/urls/{code}/qr.svg", "links", scope="links:read"),
    _route(GET, "/api/urls/{code}/qr.png", "links", scope="links:read"),
    # Analytics. The first two are public, and the owner still reads them after a deletion (decision 12).
    _route(GET, "/api/stats/{code}", "analytics", "optional", scope="stats:read"),
    _route(GET, "/api/stats/{code}/timeline", "analytics", "optional", scope="stats:read"),
    _route(GET, "/api/stats/{code}/series", "analytics", scope="stats:read"),
    _route(GET, "/api/stats/{code}/breakdown", "analytics", scope="stats:read"),
    _route(GET, "/api/stats/{code}/visitors", "analytics", scope="stats:read"),
    _route(GET, "/api/stats/{code}/clicks", "analytics", scope="stats:read"),
    _route(GET, "/api/stats/{code}/export", "analytics", scope="stats:read", streams=True),
    _route(GET, "/api/stats/{code}/live", "analytics", scope="stats:read", streams=True),
    _route(GET, "/api/stats/summary", "analytics", scope="stats:read"),
    # Identity. Signing in has neither limit nor breaker here: failures are counted by identity itself (decision 14).
    # No key changes an account, nor makes another key: all of this takes a person.
    _route("POST", "/api/auth/register", "identity", "none", breaker=False),
    _route("POST", "/api/auth/login", "identity", "none", breaker=False, own_origin=True),
    _route("POST", "/api/auth/logout", "identity", breaker=False),
    _route("POST", "/api/auth/password", "identity", breaker=False),
    _route("DELETE", "/api/auth/me", "identity", breaker=False),
    _route("POST", "/api/auth/verify", "identity", "none", breaker=False),
    _route("POST", "/api/auth/reset", "identity", "none", breaker=False),
    _route("POST", "/api/auth/reset/confirm", "identity", "none", breaker=False),
    _route(GET, "/api/auth/oidc/start", "identity", "none", breaker=False),
    _route(GET, "/api/auth/oidc/callback", "identity", "none", breaker=False),
    _route(GET, "/api/me", "identity"),
    _route(GET, "/api/keys", "identity"),
    _route("POST", "/api/keys", "identity", limit=NEW_KEY),
    _route("DELETE", "/api/keys/{id}", "identity"),
    _route("POST", "/api/subscriptions", "identity"),
    _route((*GET, "PATCH", "DELETE"), "/api/subscriptions/current", "identity"),
    # Notifications.
    _route(GET, "/api/notifications", "notifications", scope="notifications:read"),
    _route("POST", "/api/notifications/{id}/read", "notifications"),
    _route((*GET, "PUT"), "/api/preferences", "notifications"),
    # Projects.
    _route((*GET, "POST"), "/api/projects", "projects"),
    _route(GET, "/api/projects/{id}", "projects"),
    _route(GET, "/api/projects/{id}/items", "projects"),
    _route(GET, "/api/projects/{id}/live", "projects", streams=True),
    _route("POST", "/api/projects/{id}/cancel", "projects"),
    _route("POST", "/api/projects/{id}/retry", "projects"),
    # The SMS gateway, which has an /api of its own.
    _route("POST", "/api/sms/config", "sms", "administrator"),
    _route("POST", "/api/sms/send", "sms", "administrator", scope="sms:send"),
    _route(GET, "/api/sms/audit", "sms", "administrator"),
    _route(GET, "/api/sms/audit/summary", "sms", "administrator"),
)

INNER = ("/api/keys/resolve", "/api/keys/uses")
"""Where rows with a parameter would lead to what services have for us alone: nothing is there, by any method."""

OWN_PATHS = ("/health", "/ready", "/metrics", "/docs")
"""What every service serves itself, the gateway too: never forwarded, and no short code."""

TARGETS: tuple[str, ...] = tuple(dict.fromkeys(route.target for route in ROUTES))


def reserved_words(own_paths: Iterable[str] = ()) -> frozenset[str]:
    """The segments that mean something where a code could stand: here, in the services, and in one service's own."""
    public = [route.path for route in ROUTES]
    inner = [route.forward for route in ROUTES]
    templates = [tuple(path.split("/")[1:]) for path in (*public, *inner, *OWN_PATHS, *own_paths)]
    before_a_code = {template[: template.index("{code}")] for template in templates if "{code}" in template}
    first = {()} | before_a_code
    return frozenset(
        template[len(prefix)]
        for prefix in first
        for template in templates
        if len(template) > len(prefix) and template[: len(prefix)] == prefix
        if not template[len(prefix)].startswith("{")
    )


def resolve(method: str, path: str) -> Match | WrongMethod | None:
    """The row of a request, given the path as it was sent, still percent-encoded; None where there is nothing."""
    if not path.startswith("/"):
        return None
    node = _TREE
    values: dict[str, str] = {}
    for segment in path.split("/")[1:]:
        # A word of the table wins for good: nothing is lost by that, since no parameter may be such a word.
        child = node.words.get(segment)
        if child is None:
            child = node.parameter
            if child is None or not _may_be_a_value(segment) or unquote(segment) in node.words:
                return None
            values[child.name] = segment
        node = child
    if not node.routes:
        return None
    route = node.routes.get(method)
    if route is None:
        return WrongMethod(tuple(node.routes))
    return Match(route, route.forward.format_map(values))


_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]+")
_VALUE = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+")


def _may_be_a_value(segment: str) -> bool:
    """Whether a segment can be put into the target's path and stay one segment there, and one that is not a word.

    The target decodes it once. `%2F`, `..`, `%2e%2e`, a second layer of encoding and control characters could lead out
    of the template; `/r/metrics` or `/%75rls` would reach a route of the target that this table never meant to open.
    """
    if _UNRESERVED.fullmatch(segment) is not None:  # nearly all of them
        return segment not in _NO_VALUES
    if _VALUE.fullmatch(segment) is None:
        return False
    try:
        value = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return False
    if value in _NO_VALUES:
        return False
    return value.isprintable() and not any(character in "/\\%" for character in value)


class _Node:
    """One place in the tree of segments."""

    __slots__ = ("name", "parameter", "routes", "words")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.words: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, Route] = {}

    def child(self, segment: str) -> "_Node":
        """The node of a template's next segment, made if need be."""
        if not segment.startswith("{"):
            return self.words.setdefault(segment, _Node())
        if self.parameter is None:
            self.parameter = _Node(segment.strip("{}"))
        return self.parameter


def _grow(routes: Iterable[Route], inner: Iterable[str]) -> _Node:
    root = _Node()
    for route in routes:
        _leaf(root, route.path).routes |= dict.fromkeys(route.methods, route)
    for path in inner:
        _leaf(root, path)
    return root


def _leaf(node: _Node, path: str) -> _Node:
    for segment in path.split("/")[1:]:
        node = node.child(segment)
    return node


_TREE = _grow(ROUTES, INNER)
_NO_VALUES = reserved_words() | {".", ".."}
