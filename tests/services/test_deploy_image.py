"""The image: built from what is let in, run by nobody special, and probed for health."""

import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from tests.support.compose import DEPLOY

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    lines = re.sub(r"(?m)^#.*\n", "", (DEPLOY / "Dockerfile").read_text()).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def test_the_image_runs_as_nobody_special_and_has_no_build_tools() -> None:
    stages = [index for index, (word, _) in enumerate(instructions()) if word == "FROM"]
    final = dict(instructions()[stages[-1] :])
    assert len(stages) == 2
    assert final["USER"] == "refract"
    assert final["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(final["ENTRYPOINT"]) == ["refract"]
    assert json.loads(final["CMD"])[0] == "serve"
    assert json.loads(final["VOLUME"]) == ["/data"]
    run = " ".join(rest for word, rest in instructions()[stages[-1] :] if word == "RUN")
    assert not re.search(r"pip|apt-get|curl|wget", run)


def test_the_image_is_built_from_files_that_are_let_in() -> None:
    let_in = set(re.findall(r"(?m)^!(.+)$", (ROOT / ".dockerignore").read_text()))
    copied = {
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == let_in
    assert all((ROOT / source).exists() for source in copied)


@contextmanager
def answering(status: HTTPStatus) -> Iterator[int]:
    """A server that answers every GET with one status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else HTTPStatus.NOT_FOUND)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            """Stay silent."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "healthy"), [(HTTPStatus.OK, True), (HTTPStatus.SERVICE_UNAVAILABLE, False)])
def test_the_probe_of_the_image_asks_for_health(status: HTTPStatus, healthy: bool) -> None:
    program = json.loads(dict(instructions())["HEALTHCHECK"].partition(" CMD ")[2])
    assert program[0] == "python"
    with answering(status) as port:
        probe = [sys.executable, *program[1:]]
        # It has three seconds, which a busy machine may need for itself; Docker asks again as well.
        answers = (subprocess.run(probe, env={"PORT": str(port)}, check=False).returncode == 0 for _ in range(3))
        assert any(answers) is healthy
