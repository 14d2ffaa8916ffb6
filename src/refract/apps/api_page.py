"""The page about the API that a person reads, made from the services' OpenAPI documents."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from refract.apps.directory import SERVICES
from refract.apps.schema_words import Document, in_words, reference_of, references_in
from refract.services.gateway.api import ROUTES, Route

_INTRODUCTION = """\
# API

Generated from the code by `make api`; a test compares the two. [gateway.json](gateway.json) is all that the public can
reach, in one OpenAPI document: every instance serves it at `/docs/openapi.json`, and a page of it at `/docs`. Each
service also serves its own document at `/docs/openapi.json` of its port.

Paths are those of the gateway, where everybody enters; a service itself knows them without `/api` or `/api/auth`. A
token goes into the header `Authorization: Bearer <token>`, or a browser has it in a cookie. A program may come with an
API key in that header, or in `X-API-Key`, where the key's scopes are enough. Bodies are JSON, and every error is
`{"error": "<message>"}`.
"""
_METHODS = ("get", "post", "put", "patch", "delete")
_TOKENS = {
    "none": "no",
    "optional": "if you have one",
    "required": "yes",
    "administrator": "an administrator's",
}


class _Markdown:
    """How this page writes what stands out from its text."""

    def code(self, text: str) -> str:
        """A value or a name as a program has it."""
        return f"`{text}`"

    def record(self, name: str) -> str:
        """A link to where a record is described."""
        return f"[{name}](#{_anchor(name)})"


MARKDOWN = _Markdown()


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path of a service, and the rows of the gateway that lead to it."""

    methods: str
    path: str
    description: Document
    routes: tuple[Route, ...]

    @property
    def title(self) -> str:
        """Method and path, as the public writes them where it can."""
        return f"{self.methods} {self.routes[0].path if self.routes else self.path}"

    @property
    def paths(self) -> str:
        """All public paths."""
        return ", ".join(f"`{route.path}`" for route in self.routes) or f"`{self.path}` (inside only)"

    @property
    def bodies(self) -> list[Document]:
        """What may be sent, for each media type."""
        return list(self.description.get("requestBody", {}).get("content", {}).values())

    @property
    def token(self) -> str:
        """Whether a token is needed, and which key does instead."""
        if not self.routes:
            return ""
        route = self.routes[0]
        return f"{_TOKENS[route.token]}, or a key with `{route.scope}`" if route.scope else _TOKENS[route.token]


def render_page(documents: Mapping[str, Document]) -> str:
    """The whole page as Markdown."""
    blocks = [_INTRODUCTION]
    for name, document in sorted(documents.items()):
        operations = list(_operations(name, document))
        schemas = document.get("components", {}).get("schemas", {})
        blocks.append(f"## {name}\n\n`{SERVICES[name].wire_name}`, described by [{name}.json]({name}.json).\n")
        blocks.append(_overview(operations))
        blocks += [_section(operation, schemas) for operation in operations]
        shown = {reference_of(content["schema"]) for operation in operations for content in operation.bodies}
        shown -= set(references_in(schemas))  # a link from another record has to lead somewhere
        records = [(title, schema) for title, schema in sorted(schemas.items()) if title not in shown]
        if records:
            blocks.append(f"### Records of {name}\n")
            blocks += [_record(title, schema) for title, schema in records]
    return "\n".join(blocks)


def _operations(name: str, document: Document) -> Iterator[Operation]:
    for path, methods in sorted(document["paths"].items()):
        for method in _METHODS:
            if method in methods:
                shown = "GET, HEAD" if method == "get" and "head" in methods else method.upper()
                routes = tuple(
                    route
                    for route in ROUTES
                    if route.target == name and route.forward == path and method.upper() in route.methods
                )
                yield Operation(shown, path, methods[method], routes)


def _overview(operations: Iterable[Operation]) -> str:
    rows = [
        (each.methods, each.paths, each.token, f"[{each.description.get('summary', '')}](#{_anchor(each.title)})")
        for each in operations
    ]
    return _table(("method", "path", "token", "what it does"), rows)


def _section(operation: Operation, schemas: Mapping[str, Document]) -> str:
    description = operation.description
    lines = [
        f"### {operation.title}\n",
        f"{description.get('summary', '')}. {description.get('description', '')}".strip(),
    ]
    parts = ["\n".join(lines) + "\n"]
    parameters = [
        (
            f"`{each['name']}`",
            each["in"],
            in_words(each.get("schema", {}), MARKDOWN),
            "yes" if each.get("required") else "",
            _cell(each.get("description", "")),
        )
        for each in sorted(description.get("parameters") or (), key=lambda each: (each["in"] != "path", each["name"]))
    ]
    if parameters:
        parts.append(_table(("parameter", "in", "type", "required", ""), parameters))
    for content in operation.bodies:
        reference = reference_of(content["schema"])
        parts.append("The body:\n")
        parts.append(_fields(schemas[reference]) if reference else f"{in_words(content['schema'], MARKDOWN)}\n")
        parts += [_example(example) for example in content["schema"].get("examples", ())]
    answers = [
        (status, _answered(answer), _cell(answer.get("description", "")))
        for status, answer in sorted(description.get("responses", {}).items())
    ]
    parts.append(_table(("answer", "body", ""), answers))
    parts += [_example(example) for example in _good_examples(description)[:1]]
    return "\n".join(parts)


def _good_examples(description: Document) -> list[Any]:
    """Examples of answers to a request that succeeds."""
    return [
        example["value"]
        for status, answer in sorted(description.get("responses", {}).items())
        if status.startswith("2")
        for content in answer.get("content", {}).values()
        for example in content.get("examples", {}).values()
    ]


def _example(value: Any) -> str:
    return f"```json\n{json.dumps(value, indent=2, ensure_ascii=False)}\n```\n"


def _answered(answer: Document) -> str:
    kinds = []
    for media_type, content in sorted(answer.get("content", {}).items()):
        schema = content.get("schema", {})
        kinds.append(in_words(schema, MARKDOWN) if media_type == "application/json" else f"`{media_type}`")
    return " or ".join(kinds)


def _record(title: str, schema: Document) -> str:
    parts = [f"#### {title}\n"]
    if "description" in schema:
        parts.append(f"{schema['description']}\n")
    parts.append(_fields(schema) if schema.get("properties") else f"{in_words(schema, MARKDOWN)}\n")
    return "\n".join(parts)


def _fields(schema: Document) -> str:
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", in_words(field, MARKDOWN), "yes" if name in required else "", _cell(field.get("description", "")))
        for name, field in schema.get("properties", {}).items()
    ]
    return _table(("field", "type", "required", ""), rows)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _anchor(title: str) -> str:
    """What a heading is linked by."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
