"""Statements: named parameters become numbered ones for PostgreSQL, and nothing else changes."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.statements import Statement


def statement(sql: str, sqlite: str | None = None) -> Statement:
    return Statement("a_name", "A sentence.", sql, sqlite)


@pytest.mark.parametrize(
    ("sql", "numbered", "names"),
    [
        ("SELECT 1", "SELECT 1", ()),
        ("SELECT :code", "SELECT $1", ("code",)),
        ("SELECT :b, :a, :b", "SELECT $1, $2, $1", ("b", "a")),
        ("VALUES (:a,:b)", "VALUES ($1,$2)", ("a", "b")),
        ("SELECT :codes::text[]", "SELECT $1::text[]", ("codes",)),
        ("SELECT now()::date", "SELECT now()::date", ()),
        ("SELECT :code, :code_2, :code2", "SELECT $1, $2, $3", ("code", "code_2", "code2")),
        ("SELECT :userId", "SELECT $1", ("userId",)),
        ("SELECT ':not' || :a", "SELECT ':not' || $1", ("a",)),
        ("SELECT 'it''s :not' || :a", "SELECT 'it''s :not' || $1", ("a",)),
        ("SELECT 'a'':not'", "SELECT 'a'':not'", ()),
        ('SELECT ":not" FROM t WHERE x = :a', 'SELECT ":not" FROM t WHERE x = $1', ("a",)),
        ("SELECT :a -- it's :not\n, :b", "SELECT $1 -- it's :not\n, $2", ("a", "b")),
        ("SELECT /* it's\n:not */ :a", "SELECT /* it's\n:not */ $1", ("a",)),
        ("SELECT '12:30', a[1:2] FROM t", "SELECT '12:30', a[1:2] FROM t", ()),
    ],
)
def test_numbering(sql: str, numbered: str, names: tuple[str, ...]) -> None:
    assert statement(sql).for_postgresql() == (numbered, names)


@given(st.lists(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), max_size=30))
def test_every_number_points_at_its_name(names: list[str]) -> None:
    numbered, order = statement(" ".join(f":{name}" for name in names)).for_postgresql()
    assert [order[int(number.removeprefix("$")) - 1] for number in numbered.split()] == names
    assert len(set(order)) == len(order)


@given(st.text())
def test_quoted_text_never_holds_a_parameter(text: str) -> None:
    quoted = "'" + text.replace("'", "''") + "'"
    assert statement(f"SELECT {quoted}, :a").for_postgresql() == (f"SELECT {quoted}, $1", ("a",))


def test_sqlite_reads_the_same_text_by_name() -> None:
    sql = statement('SELECT :b, \':b\', ":b", :a -- it\'s :c\n FROM (SELECT 3 AS ":b")').for_sqlite()
    connection = sqlite3.connect(":memory:")
    try:
        assert connection.execute(sql, {"a": 1, "b": 2}).fetchone() == (2, ":b", 3, 1)
    finally:
        connection.close()


def test_a_dialect_replaces_the_text_for_sqlite_only() -> None:
    both = statement("SELECT now(), :a", "SELECT datetime('now'), :a")
    assert both.for_sqlite() == "SELECT datetime('now'), :a"
    assert both.for_postgresql() == ("SELECT now(), $1", ("a",))
