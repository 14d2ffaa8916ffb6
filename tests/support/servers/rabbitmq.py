"""A private RabbitMQ: a node with its own name, cookie, ports and epmd, apart from any that the system runs."""

import asyncio
import os
import secrets
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL

import aio_pika

from tests.support.servers.places import free_port
from tests.support.servers.process import OwnedProcess
from tests.support.servers.server import SECONDS_TO_STOP, Server

GREETING = b"AMQP\x00\x00\x09\x01"
# The packaged script itself: the one on the search path changes to the system's user and folders.
PACKAGED_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
ERLANG_FLAGS = (
    "-kernel inet_dist_use_interface {127,0,0,1}",
    "-start_epmd false",  # ours is running; should it die, none must appear that nobody stops
)


def script() -> str | None:
    """The program that becomes the broker."""
    return str(PACKAGED_SCRIPT) if PACKAGED_SCRIPT.exists() else shutil.which("rabbitmq-server")


async def _server_version(address: str) -> str:
    connection = await aio_pika.connect(address, timeout=10)
    try:
        transport = connection.transport
        assert transport is not None
        return str(transport.connection.server_properties["version"])
    finally:
        await connection.close()


class RabbitMQ(Server):
    """RabbitMQ as packaged, without plugins, on loopback only."""

    name = "RabbitMQ"
    variable = "TEST_RABBITMQ_URL"
    package = "rabbitmq-server"

    def __init__(self) -> None:
        super().__init__()
        self._distribution_port = free_port()
        self._epmd_port = free_port()
        self._node = f"refract-{secrets.token_hex(4)}@localhost"
        self._epmd: OwnedProcess | None = None

    @classmethod
    def installed(cls) -> bool:
        return script() is not None and shutil.which("epmd") is not None

    @staticmethod
    def version_at(address: str) -> str:
        return asyncio.run(_server_version(address))

    @property
    def address(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def stop(self) -> None:
        """Stop the broker, and its epmd after it."""
        super().stop()
        if self._epmd is not None:
            self._epmd.signal(SIGKILL)
            self._epmd.wait(SECONDS_TO_STOP)

    def close(self) -> None:
        """End broker and epmd at once and remove the data."""
        if self._process is not None:
            self._process.release()
        if self._epmd is not None:
            self._epmd.release()
        self._epmd = None
        super().close()

    def _prepare(self) -> None:
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (self.folder / "enabled_plugins").write_text("[].\n")
        (self.folder / "environment").touch()

    def _environment(self) -> Mapping[str, str]:
        folder = self.folder
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),  # where Erlang looks for the cookie
            "LANG": "C.UTF-8",
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the broker instead of a shell that waits for it
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment"),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            # Names a file that is not there: to translate one takes the broker half a second.
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
            "RABBITMQ_SCHEMA_DIR": str(folder / "schema"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join(ERLANG_FLAGS),
        }

    def _launch(self) -> OwnedProcess:
        if self._epmd is None or not self._epmd.alive:
            self._epmd = self._own(["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"])
        return self._own([script() or "rabbitmq-server"])

    def _own(self, command: list[str]) -> OwnedProcess:
        return OwnedProcess(
            command,
            folder=self.folder,
            log=self.log,
            last_signal=self.last_signal,
            environment=self._environment(),
        )

    def _ready(self) -> bool:
        """The broker opens its port late in its start, and then greets whoever greets it."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(GREETING)
                return bool(connection.recv(1))
        except OSError:
            return False
