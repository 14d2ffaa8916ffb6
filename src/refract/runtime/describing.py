"""What the generated documentation says of routes beyond their types: good answers, errors, bodies, parameters."""

from collections.abc import Collection, Mapping
from typing import Any

from litestar.enums import RequestEncodingType
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import BodyKwarg, QueryParameter
from msgspec import Struct


class ErrorAnswer(Struct, frozen=True):
    """Every error is one message."""

    error: str


def answers(container: type[Struct] | None, description: str, *values: Any) -> ResponseSpec:
    """A good answer, with examples."""
    return ResponseSpec(container, description=description, generate_examples=False, examples=_examples(*values))


def error(description: str, message: str) -> ResponseSpec:
    """An error answer of one route, in the place of what others say with the same status."""
    return answers(ErrorAnswer, description, {"error": message})


class Errors:
    """The error answers of a service: for each status what it means, and a message that comes with it."""

    def __init__(self, meanings: Mapping[int, tuple[str, str]], *, everywhere: Collection[int]) -> None:
        self._meanings = meanings
        self._everywhere = everywhere

    def __call__(self, *statuses: int) -> dict[int, ResponseSpec]:
        """Those of one route, beside the ones that every route may give."""
        return {
            status: error(*meaning)
            for status, meaning in self._meanings.items()
            if status in {*self._everywhere, *statuses}
        }


def body(*values: Any) -> BodyKwarg:
    """A JSON body, with examples."""
    return BodyKwarg(media_type=RequestEncodingType.JSON, examples=_examples(*values))


def query(description: str, *, name: str | None = None, **schema: Any) -> QueryParameter:
    """A parameter that we read ourselves, because the messages are ours."""
    extra = {"type": "string", "one_of": None, **schema}
    return QueryParameter(name=name, description=description, schema_extra=extra)


def _examples(*values: Any) -> list[Example]:
    return [Example(value=value) for value in values]
