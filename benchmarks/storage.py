"""On what commits are measured: a file system that is a disk, under a PostgreSQL that waits for it."""

import asyncio
import subprocess
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from tests.support.servers.server import ServerError

IN_MEMORY = ("tmpfs", "ramfs")


def disk_under(folder: Path) -> str:
    """The file system under a folder; one in memory would make every commit free, and is refused."""
    command = ["findmnt", "--noheadings", "--output", "FSTYPE,SOURCE", "--target", str(folder)]
    kind, _, source = subprocess.check_output(command, text=True).strip().partition(" ")
    if kind in IN_MEMORY:
        raise ServerError(
            f"{folder} LIES IN MEMORY ({kind}), where commits cost nothing: nothing is measured. "
            "Name a folder on a disk in TMPDIR, and one that every user can enter, for PostgreSQL has a user of its own"
        )
    return f"{kind} on {source.strip()}"


@dataclass(frozen=True)
class Storage:
    """Where a PostgreSQL of this machine has its data, and what it does before it says that something is committed."""

    folder: Path
    """Of the server: its data is in a folder of this one."""
    disk: str
    synchronous_commit: str
    fsync: str

    @classmethod
    def of(cls, dsn: str) -> "Storage":
        """As the server itself tells it; one whose commits are free is refused."""
        told = asyncio.run(_told(dsn))
        data = Path(told["data_directory"])
        storage = cls(data.parent, disk_under(data), told["synchronous_commit"], told["fsync"])
        if "off" in (storage.synchronous_commit, storage.fsync):
            raise ServerError(f"COMMITS WAIT FOR NO DISK, and nothing is measured: {storage}")
        return storage

    def __str__(self) -> str:
        return f"PostgreSQL's data on {self.disk}, synchronous_commit {self.synchronous_commit}, fsync {self.fsync}"

    def as_json(self) -> dict[str, str]:
        """For the last line of a measurement."""
        return {"disk": self.disk, "synchronous_commit": self.synchronous_commit, "fsync": self.fsync}


async def _told(dsn: str) -> dict[str, str]:
    connection = await asyncpg.connect(dsn)
    try:
        return {
            name: await connection.fetchval(f"SHOW {name}")
            for name in ("data_directory", "synchronous_commit", "fsync")
        }
    finally:
        await connection.close()
