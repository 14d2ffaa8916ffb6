"""A private Redis."""

import shutil
import socket

from redis import Redis as Client
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.servers.process import OwnedProcess
from tests.support.servers.server import Server


class Redis(Server):
    """Redis in memory, or with an append-only file when its data is to outlive a kill."""

    name = "Redis"
    variable = "TEST_REDIS_ADDR"
    package = "redis-server"

    def __init__(self, *, append_only: bool = False) -> None:
        super().__init__()
        self._append_only = append_only

    @classmethod
    def installed(cls) -> bool:
        return shutil.which("redis-server") is not None

    @staticmethod
    def version_at(address: str) -> str:
        host, _, port = address.rpartition(":")
        with Client(host=host, port=int(port), socket_timeout=10, retry=Retry(NoBackoff(), 0)) as client:
            return str(client.info("server")["redis_version"])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        """Redis makes its own files."""

    def _launch(self) -> OwnedProcess:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "save": "",
            "appendonly": "yes" if self._append_only else "no",
        }
        command = ["redis-server"]
        for key, value in settings.items():
            command += [f"--{key}", value]
        return OwnedProcess(command, folder=self.folder, log=self.log, last_signal=self.last_signal)

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")  # while it loads its file it says -LOADING
        except OSError:
            return False
