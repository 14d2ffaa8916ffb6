"""What every SQL statement of the house has to heed."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from refract.runtime.statements import Statement
from tests.architecture.importing import modules

SOURCE = Path(__file__).parents[2] / "src"
CHOSEN = re.compile(r"\bIN\s*\((?=\s*SELECT\b)", re.IGNORECASE)


def statements() -> Iterator[Statement]:
    for name in modules(SOURCE, "refract"):
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, Statement):
                yield value


def asked_again(sql: str) -> bool:
    """Whether rows are taken with `SKIP LOCKED` inside an `IN (SELECT …)`, which may be asked for more than once."""
    return any("SKIP LOCKED" in _inside(sql, match.end()) for match in CHOSEN.finditer(sql))


def _inside(sql: str, start: int) -> str:
    """The text up to the parenthesis that closes the one before it."""
    depth = 1
    for place in range(start, len(sql)):
        depth += {"(": 1, ")": -1}.get(sql[place], 0)
        if not depth:
            return sql[start:place]
    return sql[start:]


def test_rows_that_are_taken_are_chosen_once() -> None:
    found = list(statements())
    assert len(found) > 100
    assert sorted({one.name for one in found if asked_again(one.sql)}) == []


@pytest.mark.parametrize(
    ("sql", "wrong"),
    [
        ("DELETE FROM a WHERE id IN (SELECT id FROM a LIMIT 3 FOR UPDATE SKIP LOCKED)", True),
        ("DELETE FROM a WHERE id in ( select id FROM a WHERE b IN (1, 2) LIMIT 3 FOR UPDATE SKIP LOCKED)", True),
        ("DELETE FROM a WHERE id = ANY(ARRAY(SELECT id FROM a WHERE b IN (1) FOR UPDATE SKIP LOCKED))", False),
        ("SELECT id FROM a WHERE b IN (SELECT id FROM b) FOR UPDATE SKIP LOCKED", False),
    ],
)
def test_a_choice_that_may_be_made_again_is_found(sql: str, wrong: bool) -> None:
    assert asked_again(sql) is wrong
