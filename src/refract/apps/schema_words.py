"""A schema in a few words, for the pages about the API: Markdown and HTML differ only in how they write a name."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

Document = Mapping[str, Any]

_BOUNDS = (("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " of them"))


class Markup(Protocol):
    """How a page writes what stands out from its text."""

    def code(self, text: str) -> str:
        """A value or a name as a program has it."""
        ...

    def record(self, name: str) -> str:
        """A link to where a record is described."""
        ...


def reference_of(schema: Document) -> str | None:
    """The name of the record that a schema stands for."""
    (inner,) = schema["allOf"] if len(schema.get("allOf", ())) == 1 else (schema,)
    reference: str | None = inner.get("$ref")
    return reference and reference.rpartition("/")[2]


def references_in(value: Any) -> Iterator[str]:
    """The names of all records that a part of a document mentions."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].rpartition("/")[2]
        for inner in value.values():
            yield from references_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references_in(inner)


def tidied(schema: Document) -> Document:
    """The same schema, where the generator wraps a choice around one type, or around one and null."""
    choices = schema.get("oneOf", ())
    types = [choice["type"] for choice in choices if isinstance(choice.get("type"), str)]
    something = [choice for choice in choices if choice.get("type") != "null"]
    if len(something) != 1 or len(types) != len(choices):
        return schema
    rest = {name: value for name, value in schema.items() if name != "oneOf"}
    return {**something[0], **rest, "type": types[0] if len(types) == 1 else types}


def in_words(schema: Document, markup: Markup) -> str:
    """What may stand here: its type, its bounds and its default."""
    schema = tidied(schema)
    return _kind(schema, markup) + _bounds(schema, markup)


def _kind(schema: Document, markup: Markup) -> str:
    name = reference_of(schema)
    if name:
        return markup.record(name)
    if "enum" in schema:
        return ", ".join(markup.code(_written(value)) for value in schema["enum"])
    choices = schema.get("oneOf") or schema.get("anyOf")
    if choices:
        return _alternatives(in_words(choice, markup) for choice in choices)
    types = schema.get("type", "anything")
    return _alternatives(_named(kind, schema, markup) for kind in ([types] if isinstance(types, str) else types))


def _named(kind: str, schema: Document, markup: Markup) -> str:
    if kind == "array":
        inner = in_words(schema.get("items", {}), markup)
        return f"list of ({inner})" if ", " in inner or " or " in inner else f"list of {inner}"
    return f"{kind} ({schema['format']})" if "format" in schema and kind != "null" else kind


def _alternatives(words: Iterable[str]) -> str:
    return " or ".join(words)


def _bounds(schema: Document, markup: Markup) -> str:
    words = ""
    for low, high, unit in _BOUNDS:
        if low in schema and high in schema:
            words += f", {schema[low]} to {schema[high]}{unit}"
        elif low in schema:
            words += f", from {schema[low]}{unit}"
        elif high in schema:
            words += f", up to {schema[high]}{unit}"
    if "pattern" in schema:
        words += f", like {markup.code(schema['pattern'])}"
    default = schema.get("default")
    if default is not None and default != "":
        words += f"; {markup.code(_written(default))} by default"
    return words


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
