"""The correlation id of what is being done now: set at the edge, found by logs and announced events."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from refract.kernel.ids import new_correlation_id

_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_current: ContextVar[str] = ContextVar("correlation_id", default="")


def current_correlation_id() -> str:
    """The id of the request or event being handled, or an empty text outside of both."""
    return _current.get()


def accept_correlation_id(offered: str | None) -> str:
    """The id a caller sent if it is harmless, else a new one: an id ends up in logs, headers and events."""
    if offered is not None and _ACCEPTED.match(offered):
        return offered
    return new_correlation_id()


@contextmanager
def correlated(correlation_id: str) -> Iterator[None]:
    """Everything inside belongs to this correlation id."""
    token = _current.set(correlation_id)
    try:
        yield
    finally:
        _current.reset(token)
