"""Who waits for rows of PostgreSQL, so that a test can bring several to the same place before it lets them go on."""

from refract.runtime.ports import Database
from refract.runtime.statements import Statement
from tests.support.waiting import eventually

WAITING = Statement(
    "waiting",
    "Counts who waits for a row.",
    "SELECT count(*) AS waiting FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
)


async def wait_for_waiting(database: Database, number: int = 1) -> None:
    """Return once so many wait. On SQLite at once: who writes there waits for the file, and holds nothing meanwhile."""

    async def wait() -> bool:
        row = await database.fetch_one(WAITING)
        return row is not None and row["waiting"] == number

    if database.dialect == "postgresql":
        await eventually(wait)
