"""Counts the uses of API keys, as gateways tell of them: many uses in one number, and many keys in one transaction."""

from collections.abc import Mapping, Sequence

from refract.kernel.clock import Clock
from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from refract.runtime.together import Together

COUNT_USES = Statement(
    "count_uses",
    "Adds uses to a key, and when the last of them was told.",
    """
    UPDATE api_keys SET usage_count = usage_count + :uses,
        last_used_at = CASE WHEN last_used_at IS NULL OR last_used_at < :now THEN :now ELSE last_used_at END
    WHERE id = :id
    """,
)


class KeyUses:
    """What keys were used for, in numbers. A gateway tells of a key once a minute, however often it was used."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._line = Together("key uses", self._write, writers=1)

    async def count(self, uses: Mapping[int, int]) -> None:
        """Count them; when it returns they are kept. Keys that there are not are passed over."""
        if any(uses.values()):
            await self._line.add(uses)

    async def _write(self, told: Sequence[Mapping[int, int]]) -> Sequence[None]:
        totals: dict[int, int] = {}
        for uses in told:
            for key_id, number in uses.items():
                totals[key_id] = totals.get(key_id, 0) + number
        now = self._clock.now()
        # In one order, so that no two processes wait for each other.
        rows = [{"id": key_id, "uses": totals[key_id], "now": now} for key_id in sorted(totals) if totals[key_id]]
        async with self._database.transaction() as tx:
            await tx.execute_many(COUNT_USES, rows)
        return [None] * len(told)
