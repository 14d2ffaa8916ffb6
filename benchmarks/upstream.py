"""A service that costs next to nothing, so that whoever stands before it is what is measured: nginx, one answer."""

from benchmarks.cores import load_core, pinned
from benchmarks.nginx import Nginx
from tests.support.servers.process import OwnedProcess

BODY = (
    '{"short_code":"aB3xK9q","original_url":"https://example.com/articles/7?utm_source=newsletter",'
    '"status":"active","created_at":"2026-01-01T00:00:00Z","expires_at":null,"total_clicks":12}'
)
CONFIGURATION = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/server.log crit;
events {{
    worker_connections 4096;
}}
http {{
    access_log off;
    keepalive_requests 1000000000;
    default_type application/json;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        return 200 '{body}';
    }}
}}
"""


class Upstream(Nginx):
    """Answers every request with the same JSON, on the core of the load."""

    def __init__(self) -> None:
        super().__init__(())

    def _prepare(self) -> None:
        settings = CONFIGURATION.format(folder=self.folder, port=self.port, body=BODY)
        (self.folder / "nginx.conf").write_text(settings)

    def _launch(self) -> OwnedProcess:
        command = [self._program, "-e", str(self.log), "-c", str(self.folder / "nginx.conf")]
        return OwnedProcess(
            pinned(load_core(), command), folder=self.folder, log=self.log, last_signal=self.last_signal
        )
