"""Logs: one JSON object a line, M5's nine fields first, or readable lines on a terminal."""

import logging
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO

import msgspec

from refract.runtime.correlation import current_correlation_id

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
"""What LOG_LEVEL may be."""

_REQUEST_FIELDS = ("method", "path", "status", "duration_ms")
_NOT_EXTRA = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "service", "correlation_id", *_REQUEST_FIELDS}
)

_service: ContextVar[str] = ContextVar("service", default="")


@contextmanager
def serving(service: str) -> Iterator[None]:
    """Everything logged inside is this service's, also when several share the process."""
    token = _service.set(service)
    try:
        yield
    finally:
        _service.reset(token)


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object. `service` is the process's name, for lines outside of `serving`."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service
        self._encoder = msgspec.json.Encoder(enc_hook=str)

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        fields = log_fields(record, self._service)
        try:
            return self._encoder.encode(fields).decode()
        except (TypeError, ValueError):
            # Half a surrogate pair, or an object that cannot be shown: the line still has to appear.
            plain = {name: _plain(value) for name, value in fields.items()}
            return self._encoder.encode(plain).decode()


class TextFormatter(logging.Formatter):
    """Writes a record for a person's eyes."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback below it where there is one."""
        fields = log_fields(record, self._service)
        stack = fields.pop("stack", None)
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{moment} {fields.pop('level'):5} {fields.pop('service')}: {fields.pop('msg')}"
        del fields["time"]
        details = "".join(f" {name}={value}" for name, value in fields.items() if value not in {"", 0})
        # What a client sent must not steer the terminal, nor look like a line of its own.
        return "\n  ".join(map(_escaped, (f"{line}{details}", *(stack or "").split("\n")))).rstrip()


def log_fields(record: logging.LogRecord, service: str) -> dict[str, Any]:
    """What a line says, in its order: the nine fields, then the record's own, then its error."""
    given = vars(record)
    fields: dict[str, Any] = {
        "level": _level_name(record.levelno),
        "time": int(record.created * 1000),
        "service": given.get("service") or _service.get() or service,
        "correlation_id": given.get("correlation_id") or current_correlation_id(),
        "method": given.get("method", ""),
        "path": given.get("path", ""),
        "status": given.get("status", 0),
        "duration_ms": given.get("duration_ms", 0),
        "msg": record.getMessage(),
    }
    if given.keys() - _NOT_EXTRA:
        fields.update((name, value) for name, value in given.items() if name not in _NOT_EXTRA)
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        fields["error"] = f"{type(error).__name__}: {error}"
        fields["stack"] = "".join(traceback.format_exception(error))
    return fields


def configure_logging(service: str, level: str, stream: TextIO) -> None:
    """Send every log line of the process to the stream: ours from `level` on, those of libraries from warn on.

    A reader of the stream that stops reading stops the process at its next line, as with any program that writes to a
    pipe: whoever collects the logs has to read them.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter(service) if stream.isatty() else JsonFormatter(service))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, LEVELS[level]))
    logging.getLogger("refract").setLevel(LEVELS[level])
    # No format of ours shows them, and looking them up is a good part of what a line costs.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _level_name(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


def _escaped(text: str) -> str:
    """Whatever does not show, or turns around what stands beside it, as its number."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _number(character) for character in text)


def _number(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _plain(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    return str(value).encode(errors="backslashreplace").decode()
