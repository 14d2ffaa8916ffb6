"""Correlation ids: what is accepted from outside, and where the current one is seen."""

import asyncio
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.correlation import accept_correlation_id, correlated, current_correlation_id


@given(st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True))
def test_a_harmless_id_is_kept(offered: str) -> None:
    assert accept_correlation_id(offered) == offered


@pytest.mark.parametrize(
    "offered",
    [None, "", " ", "a b", "a\n", "a\r\nX-Evil: 1", "x" * 129, "é", "a/b", 'a"b', "\x00", "a:b"],
)
def test_any_other_is_replaced_by_a_new_uuid(offered: str | None) -> None:
    accepted = accept_correlation_id(offered)
    assert str(uuid.UUID(accepted)) == accepted
    assert accepted != accept_correlation_id(offered)


def test_an_id_holds_inside_its_block_only() -> None:
    assert current_correlation_id() == ""
    with correlated("outer"):
        with correlated("inner"):
            assert current_correlation_id() == "inner"
        assert current_correlation_id() == "outer"
    assert current_correlation_id() == ""


def test_an_error_leaves_the_block_as_it_was() -> None:
    with pytest.raises(RuntimeError), correlated("failing"):
        raise RuntimeError
    assert current_correlation_id() == ""


async def test_tasks_at_the_same_time_do_not_see_each_other() -> None:
    both_inside = asyncio.Barrier(2)

    async def handle(correlation_id: str) -> str:
        with correlated(correlation_id):
            await both_inside.wait()
            return current_correlation_id()

    one, two = await asyncio.gather(handle("one"), handle("two"))
    assert (one, two) == ("one", "two")
