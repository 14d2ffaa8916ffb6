"""Work in batches, on both databases: each is a transaction of its own, and the first that is not full is the last."""

from typing import Any

import pytest

from refract.runtime.ports import Database, Transaction
from refract.runtime.rounds import in_batches
from refract.runtime.statements import Statement
from tests.support.things import ADD, names

SIZE = 3
REMOVE_SOME = Statement(
    "remove_some",
    "Removes the first things.",
    "DELETE FROM things WHERE name IN (SELECT name FROM things ORDER BY name LIMIT :batch)",
)


async def fill(things: Database, count: int) -> None:
    async with things.transaction() as tx:
        await tx.execute_many(ADD, [{"name": f"{number:02}", "size": 1} for number in range(count)])


@pytest.mark.parametrize(("count", "batches"), [(0, [0]), (2, [2]), (3, [3, 0]), (8, [3, 3, 2]), (9, [3, 3, 3, 0])])
async def test_it_goes_on_until_a_batch_is_not_full(things: Database, count: int, batches: list[int]) -> None:
    await fill(things, count)
    done: list[Any] = []

    async def work(tx: Transaction) -> int:
        done.append(await tx.execute(REMOVE_SOME, batch=SIZE))
        return int(done[-1])

    async def rest() -> None:
        done.append("rest")

    assert await in_batches(things, SIZE, work, rest=rest) == count
    assert done == [step for batch in batches for step in ([batch, "rest"] if batch == SIZE else [batch])]
    assert await names(things) == []


async def test_what_is_done_when_a_batch_fails_stays_done(things: Database) -> None:
    await fill(things, 8)
    seen: list[int] = []

    async def work(tx: Transaction) -> int:
        seen.append(len(await names(things)))
        removed = await tx.execute(REMOVE_SOME, batch=SIZE)
        if len(seen) == 3:
            raise ValueError("a mistake in the third")
        return removed

    with pytest.raises(ValueError, match="in the third"):
        await in_batches(things, SIZE, work)
    assert seen == [8, 5, 2], "others see what is done so far"
    assert await names(things) == ["06", "07"]
