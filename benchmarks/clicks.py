"""Counts the clicks that an instance has stored or shed, so that a rate is never taken of clicks that were lost."""

import asyncio
import http.client
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from refract.runtime.embedded.packing import unpacked
from refract.services.links.redirect.spool import SUFFIX
from tests.support.servers.places import free_port

REST_SECONDS = 3.0
"""When nothing has changed for so long, nothing is on its way any more: a flush that hangs is given up after 2 s."""
LOOK_SECONDS = 0.25
PATIENCE = 60.0

# A row carries one click or an array of them (decision 7); in SQLite, long ones are packed.
IN_SQLITE = "SELECT CAST(payload AS BLOB) FROM outbox WHERE event_type = 'url.clicked'"
IN_POSTGRESQL = """
SELECT sum(CASE json_typeof(payload::json) WHEN 'array' THEN json_array_length(payload::json) ELSE 1 END)
FROM outbox WHERE event_type = 'url.clicked'
"""
_CLICK = b'"event_type":"url.clicked"'


@dataclass(frozen=True)
class Kept:
    """What has become of the clicks of an instance at rest, since it was started."""

    stored: int
    spooled: int
    """In its spool, and not in the outbox yet."""
    shed: int

    @property
    def safe(self) -> int:
        """Those that are not lost."""
        return self.stored + self.spooled


@dataclass(frozen=True)
class ClickWatch:
    """Where an instance shows what becomes of its clicks: its metrics, on a port of their own, and its spool."""

    spool: Path
    port: int = field(default_factory=free_port)

    def environment(self) -> dict[str, str]:
        """What the instance is told for it."""
        return {"METRICS_ADDR": f"127.0.0.1:{self.port}", "CLICK_SPOOL_DIR": str(self.spool)}

    def at_rest(self, database: str | Path) -> Kept:
        """What there is once no click waits and none moves any more; with `async`, many are answered before."""
        deadline = time.monotonic() + PATIENCE
        since, before = time.monotonic(), self._look()
        while time.monotonic() - since < REST_SECONDS:
            if time.monotonic() > deadline:
                raise RuntimeError(f"clicks still move {PATIENCE:g} s after the load: {before}")
            time.sleep(LOOK_SECONDS)
            now = self._look()
            if now != before or now["clicks_waiting"]:
                since, before = time.monotonic(), now
        return Kept(stored_clicks(database), int(before["spool"]), int(before["clicks_shed_total"]))

    def _look(self) -> dict[str, float]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        figures = dict(line.rsplit(" ", 1) for line in lines if line.startswith("clicks_"))
        names = ("clicks_waiting", "clicks_recorded_total", "clicks_spooled_total", "clicks_shed_total")
        files = self.spool.glob(f"*{SUFFIX}")
        return {**{name: float(figures[name]) for name in names}, "spool": sum(map(_clicks_of, files))}


def _clicks_of(file: Path) -> int:
    try:
        return file.read_bytes().count(_CLICK)
    except FileNotFoundError:  # brought into the outbox meanwhile
        return 0


def stored_clicks(database: str | Path) -> int:
    """How many clicks are in the outbox of a DSN or a file, sent on or not."""
    if isinstance(database, str):
        return asyncio.run(_in_postgresql(database))
    connection = sqlite3.connect(database)
    try:
        return sum(unpacked(payload).count(_CLICK) for (payload,) in connection.execute(IN_SQLITE))
    finally:
        connection.close()


async def _in_postgresql(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval(IN_POSTGRESQL) or 0)
    finally:
        await connection.close()
