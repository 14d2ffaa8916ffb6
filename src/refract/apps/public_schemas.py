"""The records of all services side by side: each under a name of its own, and each that is the same only once."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from refract.apps.schema_words import Document, references_in, tidied

_PREFIX = "#/components/schemas/"

Names = Mapping[str, Mapping[str, str]]
"""For each service, what its records are called in public."""


def public_names(schemas: Mapping[str, Mapping[str, Document]]) -> Names:
    """A record keeps its name, unless another service has a different one of that name."""
    clashing = _clashing(schemas)
    names = {
        service: {name: service.capitalize() + name if name in clashing else name for name in records}
        for service, records in schemas.items()
    }
    twice = _taken_twice(names)
    assert not twice, f"records of different services would have one name: {twice}"
    return names


def public_schemas(schemas: Mapping[str, Mapping[str, Document]], names: Names) -> dict[str, Document]:
    """All records under their public names."""
    return {
        names[service][name]: renamed(schema, names[service])
        for service, records in schemas.items()
        for name, schema in records.items()
    }


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A part of a service's document as the public one has it: with these names, and nothing that says nothing."""
    if isinstance(value, list):
        return [renamed(inner, names) for inner in value]
    if not isinstance(value, Mapping):
        return value
    if isinstance(value.get("$ref"), str):
        return {**value, "$ref": _PREFIX + names[value["$ref"].removeprefix(_PREFIX)]}
    return {
        name: inner if name == "examples" else renamed(inner, names)
        for name, inner in tidied(value).items()
        if not _says_nothing(name, inner)
    }


def needed(schemas: Mapping[str, Document], *parts: Any) -> dict[str, Document]:
    """The records that these parts mention, and those that they mention in turn."""
    found: dict[str, Document] = {}
    waiting = list(references_in(list(parts)))
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = schemas[name]
            waiting += references_in(schemas[name])
    return dict(sorted(found.items()))


def _clashing(schemas: Mapping[str, Mapping[str, Document]]) -> set[str]:
    found: dict[str, list[Document]] = defaultdict(list)
    for records in schemas.values():
        for name, schema in records.items():
            found[name].append(schema)
    clashing = {name for name, same in found.items() if any(schema != same[0] for schema in same)}
    # Two that look the same are not where what they mention is not.
    while more := {
        name
        for name, same in found.items()
        if name not in clashing and len(same) > 1 and clashing & set(references_in(same[0]))
    }:
        clashing |= more
    return clashing


def _taken_twice(names: Names) -> list[str]:
    """Public names that stand for records of different names: one made of a service's name, and one that was there."""
    meant = Counter(public for _, public in {(name, public) for own in names.values() for name, public in own.items()})
    return sorted(name for name, times in meant.items() if times > 1)


def _says_nothing(name: str, value: Any) -> bool:
    return (name == "deprecated" and value is False) or (name in {"headers", "required"} and not value)
