"""A private PostgreSQL; as root it runs as the `postgres` user, because it refuses to be root."""

import asyncio
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from signal import SIGINT, SIGQUIT
from typing import ClassVar

import asyncpg

from tests.support.servers.process import OwnedProcess
from tests.support.servers.server import SECONDS_TO_STOP, Server, ServerError

ROLE = "refract"


def _major(folder: Path) -> int:
    found = re.search(r"/(\d+)/bin$", str(folder))
    return int(found[1]) if found else 0


@cache
def programs() -> Path | None:
    """The folder with the newest server's programs, Debian's before the search path's."""
    debian = [folder for folder in Path("/usr/lib/postgresql").glob("*/bin") if (folder / "initdb").exists()]
    if debian:
        return max(debian, key=_major)
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


async def _server_version(address: str) -> str:
    connection = await asyncpg.connect(address, timeout=10)
    try:
        return str(await connection.fetchval("SHOW server_version"))
    finally:
        await connection.close()


def _attached(segment: str) -> bool:
    """Whether a process uses this segment of shared memory."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    return any(row[1] == segment and row[6] != "0" for row in rows)


class PostgreSQL(Server):
    """PostgreSQL with its durability as shipped: fsync stays on."""

    name = "PostgreSQL"
    variable = "TEST_POSTGRES_DSN"
    package = "postgresql"
    stop_signal = SIGINT  # fast shutdown: clients are cut off, transactions rolled back
    last_signal = SIGQUIT  # immediate shutdown: its children go with it
    settings: ClassVar[Mapping[str, str]] = {}
    """Beside those that it cannot do without."""

    def __init__(self) -> None:
        super().__init__()
        self._password = secrets.token_hex(8)

    @classmethod
    def installed(cls) -> bool:
        programs.cache_clear()
        return programs() is not None

    @staticmethod
    def version_at(address: str) -> str:
        return asyncio.run(_server_version(address)).split()[0]

    @property
    def address(self) -> str:
        return f"postgresql://{ROLE}:{self._password}@127.0.0.1:{self.port}/postgres"

    def _user(self) -> str:
        return "postgres" if os.geteuid() == 0 else ""

    def _program(self, name: str) -> str:
        folder = programs()
        if folder is None:
            raise ServerError("PostgreSQL is not installed")
        return str(folder / name)

    def _prepare(self) -> None:
        user = self._user() or None
        password = self.folder / "password"
        password.write_text(self._password)
        password.chmod(0o600)
        if user:
            shutil.chown(password, user, user)
        command = [
            self._program("initdb"),
            f"--pgdata={self.folder / 'data'}",
            f"--username={ROLE}",
            f"--pwfile={password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--lc-ctype=C.UTF-8",  # the order stays that of bytes, but lower() knows every letter
            "--no-sync",
            "--no-instructions",
        ]
        made = subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=user,
            group=user,
            extra_groups=[] if user else None,
        )
        self.log.write_text(made.stdout)
        if made.returncode != 0:
            raise self._failure("could not make its data folder")

    def _launch(self) -> OwnedProcess:
        self._wait_for_orphans()
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "max_connections": 200,
            **self.settings,
        }
        command = [self._program("postgres"), "-D", str(self.folder / "data")]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        return OwnedProcess(command, folder=self.folder, log=self.log, last_signal=self.last_signal, user=self._user())

    def kill(self) -> None:
        """SIGKILL the server's process and wait until it is gone, and nobody whom it left answers a client any more."""
        super().kill()
        self._wait_for_orphans()

    def _wait_for_orphans(self) -> None:
        """After a kill the server's children live until they notice it, which is when they have nothing to do; until
        then they go on with what they are told. While one of them lives no server starts."""
        try:
            _, segment = (self.folder / "data" / "postmaster.pid").read_text().splitlines()[6].split()
        except (FileNotFoundError, IndexError, ValueError):
            return
        deadline = time.monotonic() + SECONDS_TO_STOP
        while _attached(segment) and time.monotonic() < deadline:
            time.sleep(0.02)

    def _ready(self) -> bool:
        question = [self._program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(question, check=False, stderr=subprocess.DEVNULL).returncode == 0
