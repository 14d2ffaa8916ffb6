"""Reads the compose files as Docker Compose does, as far as they use it: tags, merging, placeholders."""

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
DEVELOPMENT = (DEPLOY / "compose.yaml",)
PRODUCTION = (*DEVELOPMENT, DEPLOY / "compose.production.yaml")
FILES = "./files:/files:ro"
"""What an operator gives to read, as a folder: of a mounted file a new edition in its place would not be seen."""
PLACEHOLDER = re.compile(r"\$\{([A-Z0-9_]+)(:[-?])?([^}]*)\}")

Tree = dict[str, Any]


class Replaced:
    """What stands under `!override` or `!reset`: put in place of the earlier value, and not merged with it."""

    def __init__(self, value: Any) -> None:
        self.value = value


class ComposeLoader(yaml.SafeLoader):
    """YAML with the two tags of Compose."""


def _replaced(loader: yaml.SafeLoader, node: yaml.Node) -> Replaced:
    assert isinstance(node, yaml.SequenceNode)
    return Replaced(loader.construct_sequence(node, deep=True) if node.tag == "!override" else [])


ComposeLoader.add_constructor("!override", _replaced)
ComposeLoader.add_constructor("!reset", _replaced)


def compose(files: tuple[Path, ...], variables: Mapping[str, str] | None = None) -> Tree:
    """What Compose makes of the files; with `variables`, placeholders are filled in as well."""
    model: Tree = {}
    for file in files:
        model = _merged(model, yaml.load(file.read_text(), ComposeLoader))
    filled: Tree = model if variables is None else _filled(model, variables)
    return filled


def _merged(old: Any, new: Any) -> Any:
    if isinstance(new, Replaced):
        return new.value
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: _merged(old.get(key), value) for key, value in new.items()}
    return old + new if isinstance(old, list) and isinstance(new, list) else new


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, variables) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, variables) for inner in value]
    if isinstance(value, str):
        return PLACEHOLDER.sub(lambda found: _resolved(found, variables), value)
    return value


def _resolved(found: re.Match[str], variables: Mapping[str, str]) -> str:
    name, operator, word = found.groups()
    value = variables.get(name, "")
    if value or operator is None:
        return value
    assert operator == ":-", f"{name}: {word}"
    return word


def required() -> set[str]:
    """The variables without which Compose starts nothing."""
    return {
        name
        for name, operator, _ in PLACEHOLDER.findall("".join(file.read_text() for file in PRODUCTION))
        if operator == ":?"
    }


def some_secrets() -> dict[str, str]:
    """Values for all of those."""
    return {name: secrets.token_hex(32) for name in required()} | {"REFRACT_VERSION": "test"}
