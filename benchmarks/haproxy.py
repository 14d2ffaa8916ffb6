"""The yardstick of the gateway: HAProxy that passes requests on to one service; private, never the system's."""

import re
import shutil
import socket
import subprocess
from signal import SIGTERM

from benchmarks.cores import pinned, server_core
from benchmarks.software import SEARCHED, ensure
from tests.support.servers.process import OwnedProcess
from tests.support.servers.server import Server

CONFIGURATION = """\
global
    nbthread 1
    maxconn 4096
defaults
    mode http
    option forwardfor
    http-reuse always
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend door
    bind 127.0.0.1:{port}
    default_backend service
backend service
    server service 127.0.0.1:{service}
"""


class HAProxy(Server):
    """One thread on the server's core, before the service at a port."""

    name = "haproxy"
    variable = ""
    package = "haproxy"
    last_signal = SIGTERM

    def __init__(self, service: int) -> None:
        super().__init__()
        self._service = service
        self._program = ensure(self.name, self.package)

    @classmethod
    def installed(cls) -> bool:
        return shutil.which(cls.name, path=SEARCHED) is not None

    @staticmethod
    def version_at(address: str) -> str:
        """It tells nobody over the wire: the program is asked, which is the one that runs."""
        said = subprocess.check_output([ensure("haproxy", "haproxy"), "-v"], text=True)
        found = re.search(r"version (\d+(?:\.\d+)+)", said)
        return address if found is None else found[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        settings = CONFIGURATION.format(port=self.port, service=self._service)
        (self.folder / "haproxy.cfg").write_text(settings)

    def _launch(self) -> OwnedProcess:
        command = [self._program, "-db", "-f", str(self.folder / "haproxy.cfg")]
        return OwnedProcess(
            pinned(server_core(), command), folder=self.folder, log=self.log, last_signal=self.last_signal
        )

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        except OSError:
            return False
