"""What the gateway itself asks and answers on a row of its table, as OpenAPI says it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from refract.apps.schema_words import Document
from refract.kernel.errors import Forbidden, RefractError, Unauthenticated
from refract.runtime.web import STATUSES
from refract.services.gateway.api import BULK, SESSION_COOKIE, Route
from refract.services.gateway.domain.callers import KEY_BEGINNING, SAFE_METHODS, CrossOrigin
from refract.services.gateway.domain.headers import UpstreamFailed
from refract.services.gateway.domain.keys import KeyRefused, NotForKeys, ScopeLacking, TwoProofs
from refract.services.gateway.http.refusing import Busy, TooMany

ERROR = "ErrorAnswer"
RECORDS: Mapping[str, Document] = {
    ERROR: {"type": "object", "title": ERROR, "properties": {"error": {"type": "string"}}, "required": ["error"]}
}
"""What every error is in JSON, here as in the services."""

_KEY = KEY_BEGINNING.decode()

SECURITY_SCHEMES: Document = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "The token that `POST /api/auth/login` answers with, good for 24 hours.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "The same token as browsers have it, after a sign-in with `session`. What changes something is "
        "then taken from this site's own pages only.",
    },
    "key": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": f"An API key, which begins with `{_KEY}`, where it has the scope that is named.",
    },
    "key_as_token": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": f"{_KEY}…",
        "description": "The same API key in the place of a token.",
    },
}

_RETRY_AFTER = {"Retry-After": {"description": "Seconds until it is worth another try.", "schema": {"type": "integer"}}}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One way in which the gateway says no."""

    error: type[RefractError]
    description: str

    @property
    def status(self) -> str:
        """As OpenAPI writes it."""
        return str(STATUSES[self.error.kind])

    @property
    def example(self) -> Document:
        """The body."""
        return {"summary": self.description, "value": {"error": self.error.message}}


def security_of(route: Route) -> list[dict[str, list[str]]]:
    """The ways to show who calls, any one of which will do. The words in a list are roles, and the scopes of keys."""
    if route.token == "none":  # noqa: S105  # a word of the table
        return []
    roles = ["administrator"] if route.token == "administrator" else []  # noqa: S105
    ways: list[dict[str, list[str]]] = [{"token": roles}, {"session": roles}]
    if route.scope is not None:
        ways += [{"key": [route.scope]}, {"key_as_token": [route.scope]}]
    return [{}, *ways] if route.token == "optional" else ways  # noqa: S105


def refusals(route: Route, method: str) -> Iterator[Refusal]:
    """How a request of this row may end at the door."""
    if route.token != "none":  # noqa: S105
        yield Refusal(TwoProofs, "More than one API key was sent, or a key and something else.")
        yield Refusal(Unauthenticated, "There is no good token.")
        if route.scope is None:
            yield Refusal(NotForKeys, "No API key may do this.")
        else:
            yield Refusal(KeyRefused, "The API key is not known, or not any more.")
            yield Refusal(ScopeLacking, f"The API key has not got the scope `{route.scope}`.")
    if route.token == "administrator":  # noqa: S105
        yield Refusal(Forbidden, "The token is not an administrator's.")
    if route.own_origin or (route.token != "none" and method not in SAFE_METHODS):  # noqa: S105
        yield Refusal(CrossOrigin, "A page of another site has sent the browser here.")
    if limited := _limits(route):
        yield Refusal(TooMany, limited)
    yield Refusal(UpstreamFailed, "The service gave no answer.")
    yield Refusal(Busy, "The service is away or has too much to do.")


def with_refusals(answers: Mapping[str, Document], route: Route, method: str) -> dict[str, Document]:
    """A service's answers, and those of the gateway before it, in the order of their statuses."""
    by_status: dict[str, list[Refusal]] = defaultdict(list)
    for refusal in refusals(route, method):
        by_status[refusal.status].append(refusal)
    merged = {**answers}
    for status, ours in by_status.items():
        merged[status] = _joined(merged.get(status, {}), ours)
    for status in merged.keys() & {"429", "503"}:
        merged[status] = {**merged[status], "headers": _RETRY_AFTER}
    return dict(sorted(merged.items()))


def _limits(route: Route) -> str:
    """Who is counted here. Bulk is not: its service counts rows of it, and says so itself."""
    words = []
    if route.limit is not None and route.limit is not BULK:
        words.append(f"Too many from this {route.limit.by}.")
    if route.scope is not None:
        words.append("Too many with this API key, or too many unknown keys from this address.")
    return " ".join(words)


def _joined(answer: Document, ours: list[Refusal]) -> Document:
    """One answer of a service and of the gateway. What both would say of it stands there once."""
    said = answer.get("description", "")
    added = [refusal.description for refusal in ours if refusal.description.rstrip(".") not in said]
    content = {**answer.get("content", {})}
    body: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{ERROR}"}, **content.get("application/json", {})}
    examples = {**body.get("examples", {})}
    known = [example["value"] for example in examples.values()]
    for refusal in ours:
        if refusal.example["value"] not in known:
            examples[f"gateway-{refusal.error.__name__}"] = refusal.example
    body["examples"] = examples
    return {**answer, "description": " ".join([said, *added]).strip(), "content": {**content, "application/json": body}}
