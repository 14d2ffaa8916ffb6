"""Clicks on their way to the database: those that came together, those that are made safe together, and their rows."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from refract.runtime.fast_path import HeldAnswer

logger = logging.getLogger("refract.clicks")

ROW_CLICKS = 1_000
ROW_BYTES = 512 * 1024


class Bundle(Protocol):
    """Clicks that came together, and the answers that wait for them."""

    @property
    def clicks(self) -> list[bytes]:
        """Each as JSON."""

    def release(self) -> None:
        """Let the answers go, in their order; one that fails does not hold up the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Clicks whose answers are made."""

    clicks: list[bytes]
    answers: Sequence[HeldAnswer]
    payloads: Sequence[bytes]

    def release(self) -> None:
        """Let the answers go."""
        for answer, payload in zip(self.answers, self.payloads, strict=True):
            try:
                answer.release(payload)
            except Exception:
                logger.exception("an answer could not be released")


class Source(Protocol):
    """Somebody who makes clicks only when they are about to be written."""

    def __len__(self) -> int:
        """How many there would be."""

    def take(self) -> Bundle | None:
        """Make them."""


class Batch:
    """Clicks that are made safe together, and the answers that wait for it."""

    __slots__ = ("began", "bundles", "clicks")

    def __init__(self, *bundles: Bundle) -> None:
        self.bundles = bundles
        self.clicks = bundles[0].clicks if len(bundles) == 1 else [click for each in bundles for click in each.clicks]
        self.began = 0.0

    def release(self) -> None:
        """Let the answers go."""
        for bundle in self.bundles:
            bundle.release()


def rows(clicks: Sequence[bytes]) -> Iterator[bytes]:
    """The bodies of as many rows as it takes, which is nearly always one."""
    body = row(clicks)
    if len(clicks) <= ROW_CLICKS and len(body) <= ROW_BYTES:
        yield body
    else:
        yield from map(row, parts(clicks))


def row(clicks: Sequence[bytes]) -> bytes:
    """Clicks as the body of one message."""
    return b"[%b]" % b",".join(clicks)


def parts(clicks: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The clicks, as many together as fit into a row, and at least one."""
    first, room = 0, ROW_BYTES - 1
    for number, click in enumerate(clicks):
        room -= len(click) + 1
        if number > first and (room < 0 or number - first == ROW_CLICKS):
            yield clicks[first:number]
            first, room = number, ROW_BYTES - len(click) - 2
    if clicks:
        yield clicks[first:]
