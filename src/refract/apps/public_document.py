"""One OpenAPI document of everything that the gateway offers: the services' own, as its table lets the public see them.

A row to which no service says anything is left out: there is nothing behind it yet.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from refract import __version__
from refract.apps.public_answers import RECORDS, SECURITY_SCHEMES, security_of, with_refusals
from refract.apps.public_schemas import needed, public_names, public_schemas, renamed
from refract.apps.schema_words import Document
from refract.services.gateway.api import NAME, ROUTES, WIRE_NAME, Route

_DESCRIPTION = """\
Bodies are JSON and errors `{"error": "<message>"}`, unless something else is named. Times are RFC 3339 in UTC. A list \
comes page by page: `next_cursor` of one page is `after` of the next, and is absent on the last. Where requests are \
counted, `RateLimit` and `X-RateLimit-Remaining` say how many are left. Every answer has the `X-Correlation-ID` by \
which the logs know it, the one of the request if that brought one."""

TAGS = {
    "redirect": "Short links, as people follow them.",
    "links": "Make short links, and keep house with them.",
    "stats": "Who followed them, counted.",
    "accounts": "Register, sign in and out, and everything about one's own account.",
    "keys": "API keys, for programs.",
    "notifications": "What users are told, and how they want to be told it.",
    "sms": "The SMS gateway, for administrators and for programs with a key to send.",
    "instance": "The gateway itself.",
}


def public_document(documents: Mapping[str, Document]) -> Document:
    """The document, from those of the services by their names."""
    own_schemas = {name: document.get("components", {}).get("schemas", {}) for name, document in documents.items()}
    own_schemas[NAME] = RECORDS
    names = public_names(own_schemas)
    paths: dict[str, dict[str, Any]] = {}
    for route, method, operation in _operations(documents):
        paths.setdefault(route.path, {})[method.lower()] = _public(operation, route, method, names[route.target])
    paths |= _own_paths()
    used = {tag for methods in paths.values() for operation in methods.values() for tag in operation["tags"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Refract",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items() if name in used],
        "paths": paths,
        "components": {
            "schemas": needed(public_schemas(own_schemas, names), paths),
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def _operations(documents: Mapping[str, Document]) -> Iterator[tuple[Route, str, Document]]:
    for route in ROUTES:
        methods = documents.get(route.target, {}).get("paths", {}).get(route.forward, {})
        for method in route.methods:
            if method.lower() in methods:
                yield route, method, methods[method.lower()]


def _public(operation: Document, route: Route, method: str, names: Mapping[str, str]) -> Document:
    shown = renamed(operation, names)
    for parameter in shown.get("parameters", ()):
        parameter.get("schema", {}).pop("description", None)  # the parameter has said it
    answers = {status: _without_empty_body(status, answer) for status, answer in shown["responses"].items()}
    answers = with_refusals(answers, route, method)
    if method == "HEAD":
        answers = {status: _without_body(answer) for status, answer in answers.items()}
    return {
        **shown,
        "operationId": _operation_id(method, route.path),
        "security": security_of(route),
        "responses": answers,
    }


def _operation_id(method: str, path: str) -> str:
    """A name that no other operation has: two rows may lead to one operation of a service."""
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def _without_empty_body(status: str, answer: Document) -> Document:
    return _without_body(answer) if status == "204" else answer


def _without_body(answer: Document) -> Document:
    return {name: value for name, value in answer.items() if name != "content"}


def _own_paths() -> dict[str, dict[str, Any]]:
    """What the gateway serves without asking anybody. Its metrics have their own door."""
    health = {"status": "ok", "service": WIRE_NAME}
    ready = {"status": "ready", "checks": {"redis": "ok"}}
    return {
        "/health": {"get": _own("get_health", "Whether it runs", {"200": _json("It does.", health)})},
        "/ready": {
            "get": _own(
                "get_ready",
                "Whether it can serve",
                {
                    "200": _json("It can.", ready),
                    "503": _json("It cannot, and `checks` says why.", {**ready, "status": "not ready"}),
                },
            )
        },
        "/docs": {
            "get": _own(
                "get_docs", "Read this as a page", {"200": {"description": "The page.", "content": {"text/html": {}}}}
            )
        },
        "/docs/openapi.json": {
            "get": _own("get_docs_openapi_json", "Read this document", {"200": _json("The document.")})
        },
    }


def _own(name: str, summary: str, answers: Document) -> Document:
    return {"operationId": name, "summary": summary, "tags": ["instance"], "security": [], "responses": answers}


def _json(description: str, *examples: Any) -> Document:
    content: dict[str, Any] = {"schema": {"type": "object"}}
    if examples:
        content["examples"] = {f"example-{number}": {"value": value} for number, value in enumerate(examples, 1)}
    return {"description": description, "content": {"application/json": content}}
