"""The yardstick: nginx that answers 301 from a map in memory and stores nothing; private, never the system's."""

import shutil
import socket
from collections.abc import Sequence
from signal import SIGTERM

from benchmarks.cores import pinned, server_core
from benchmarks.links import SeedLink
from benchmarks.software import SEARCHED, ensure
from tests.support.servers.process import OwnedProcess
from tests.support.servers.server import Server

CONFIGURATION = """\
daemon off;
worker_processes 1;
worker_rlimit_nofile 8192;
pid {folder}/nginx.pid;
error_log {folder}/server.log crit;
events {{
    worker_connections 4096;
}}
http {{
    access_log off;
    keepalive_requests 1000000000;
    map_hash_max_size {slots};
    map_hash_bucket_size 256;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $uri $destination {{
        include {folder}/links.map;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        return 301 $destination;
    }}
}}
"""


class Nginx(Server):
    """One worker on the server's core."""

    name = "nginx"
    variable = ""
    package = "nginx-light"
    last_signal = SIGTERM  # its worker goes with it, which a SIGKILL of the master would leave behind

    def __init__(self, links: Sequence[SeedLink]) -> None:
        super().__init__()
        self._links = links
        self._program = ensure(self.name, self.package)

    @classmethod
    def installed(cls) -> bool:
        return shutil.which(cls.name, path=SEARCHED) is not None

    @staticmethod
    def version_at(address: str) -> str:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=5) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return connection.recv(1024).decode().partition("nginx/")[2].split()[0]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        lines = (f'/{link.short_code} "{link.original_url}";\n' for link in self._links)
        (self.folder / "links.map").write_text("".join(lines))
        settings = {"folder": self.folder, "port": self.port, "slots": max(2048, 4 * len(self._links))}
        (self.folder / "nginx.conf").write_text(CONFIGURATION.format(**settings))

    def _launch(self) -> OwnedProcess:
        command = [self._program, "-e", str(self.log), "-c", str(self.folder / "nginx.conf")]
        return OwnedProcess(
            pinned(server_core(), command), folder=self.folder, log=self.log, last_signal=self.last_signal
        )

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        except OSError:
            return False
