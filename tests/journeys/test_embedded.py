"""One process over SQLite files: the first start, the last word, and the second start."""

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from refract.kernel.clock import SystemClock
from refract.runtime.tokens import TokenSigner
from tests.support.commands import COMMAND, Running, refract, running
from tests.support.servers.places import free_port
from tests.support.waiting import eventually

HEALTHY = b'{"status":"ok","service":"gateway"}'


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def instance(tmp_path: Path, port: int) -> Iterator[Running]:
    data = str(tmp_path / "data")
    with running(
        "serve", "--data-dir", data, "--port", str(port), address=f"http://127.0.0.1:{port}", folder=tmp_path / "first"
    ) as started:
        yield started


async def test_it_answers_and_says_where_things_are(instance: Running, tmp_path: Path) -> None:
    assert instance.get("/health") == (200, HEALTHY)
    expected = [f"Refract listens on {instance.address}", f"Its data is in {tmp_path / 'data'}", "Ctrl-C stops it"]
    await eventually(lambda: instance.said.splitlines() == expected)  # said when it answers already


async def ready(instance: Running) -> bytes:
    """What is said of readiness, once all is well: a check has one second, which a busy disk may need."""

    def answered() -> bytes:
        status, body = instance.get("/ready")
        return body if status == 200 else b""

    return await eventually(answered)


async def test_it_is_ready_when_its_databases_answer(instance: Running) -> None:
    body = await ready(instance)
    assert b'"bus":"ok"' in body
    assert b'"database of links":"ok"' in body


def test_metrics_are_not_shown_to_the_public(instance: Running) -> None:
    assert instance.get("/metrics")[0] == 404


def test_it_describes_what_all_services_offer(instance: Running) -> None:
    status, body = instance.get("/docs/openapi.json")
    assert status == 200
    assert {"/api/shorten", "/api/stats/{code}", "/api/sms/send"} <= json.loads(body)["paths"].keys()
    status, body = instance.get("/docs")
    assert (status, b"POST /api/shorten" in body) == (200, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(instance: Running, number: signal.Signals) -> None:
    assert instance.stop(number) == 0
    assert [line["msg"] for line in instance.log if line["level"] == "error"] == []


@pytest.mark.parametrize("sample", ["0", "1"])
def test_redirects_are_logged_as_often_as_is_asked(tmp_path: Path, port: int, sample: str) -> None:
    address = f"http://127.0.0.1:{port}"
    variables = {"REDIRECT_LOG_SAMPLE": sample}
    # The second two leave the fast path, for what is escaped in them.
    asked = {"/absent": "/absent", "/r/absent": "/r/absent", "/%61way": "/away", "/r/%61way": "/r/away"}
    with running(
        "serve", "--data-dir", str(tmp_path), "--port", str(port), address=address, folder=tmp_path, variables=variables
    ) as instance:
        for path in asked:
            assert instance.get(path)[0] == 404
        assert instance.get("/api/urls")[0] == 401
        assert instance.stop() == 0
        told = {line["path"] for line in instance.log if line["msg"] == "request completed"} - {"/health"}
    told -= {"/revocations"}  # which the gateway asks by itself
    assert told == {"/api/urls", *(asked.values() if sample == "1" else ())}


def test_a_second_start_finds_the_data_again(instance: Running, tmp_path: Path, port: int) -> None:
    data = tmp_path / "data"
    secrets = (data / "secrets.json").read_bytes()
    assert list(dict.fromkeys(line["database"] for line in instance.log if line["msg"] == "migrated")) == [
        "links",
        "analytics",
        "identity",
        "notifications",
        "sms",
        "projects",
    ]
    assert instance.stop() == 0

    with running(
        "serve", "--data-dir", str(data), "--port", str(port), address=instance.address, folder=tmp_path / "second"
    ) as again:
        assert again.get("/health") == (200, HEALTHY)
        assert [line for line in again.log if line["msg"] == "migrated"] == []
        assert (data / "secrets.json").read_bytes() == secrets


async def test_a_killed_instance_starts_again(instance: Running, tmp_path: Path, port: int) -> None:
    instance.process.kill()
    instance.process.wait()
    data = str(tmp_path / "data")
    with running(
        "serve", "--data-dir", data, "--port", str(port), address=instance.address, folder=tmp_path / "second"
    ) as again:
        assert await ready(again)


def test_two_instances_cannot_share_a_directory(instance: Running, tmp_path: Path) -> None:
    second = refract("serve", "--data-dir", str(tmp_path / "data"), "--port", str(free_port()))
    assert second.returncode == 1
    assert second.stderr == f'FATAL: data directory "{tmp_path / "data"}" is in use by another refract serve\n'


def test_a_taken_port_is_said_in_one_line(instance: Running, tmp_path: Path, port: int) -> None:
    second = refract("serve", "--data-dir", str(tmp_path / "other"), "--port", str(port))
    assert second.returncode == 1
    assert second.stderr.startswith(f"FATAL: cannot listen on 127.0.0.1:{port}: ")
    assert second.stderr.endswith("; check --host and --port, or HOST and PORT\n")
    assert second.stderr.count("\n") == 1


def test_a_taken_port_for_metrics_is_said_in_one_line(instance: Running, tmp_path: Path, port: int) -> None:
    variables = {"METRICS_ADDR": f"127.0.0.1:{port}"}
    second = refract("serve", "--data-dir", str(tmp_path / "other"), "--port", str(free_port()), variables=variables)
    assert second.returncode == 1
    assert second.stderr.startswith(f"FATAL: cannot listen on 127.0.0.1:{port}: ")
    assert second.stderr.endswith("; check METRICS_ADDR\n")


def test_a_wrong_variable_is_said_in_one_line(tmp_path: Path) -> None:
    wrong = refract("serve", "--data-dir", str(tmp_path / "data"), variables={"LOG_LEVEL": "loud"})
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == (
        'FATAL: environment variable "LOG_LEVEL" is "loud"; expected "debug" or "info" or "warn" or "error"\n'
    )


@pytest.mark.parametrize("host", ["a..b", "a" * 80, "h\udcff", "999.1.1.1", "::zz"])
def test_a_host_that_is_none_is_said_in_one_line(tmp_path: Path, host: str) -> None:
    data = str(tmp_path / "data")
    by_variable = refract("serve", "--data-dir", data, variables={"HOST": host})
    by_option = refract("serve", "--data-dir", data, "--host", host, variables={"HOST": "127.0.0.1"})
    shown = host.encode(errors="backslashreplace").decode()
    expected = f'is "{shown}"; expected a host name or an IP address, such as "127.0.0.1"\n'
    assert (by_variable.returncode, by_variable.stderr) == (1, f'FATAL: environment variable "HOST" {expected}')
    assert (by_option.returncode, by_option.stderr) == (1, f'FATAL: option "--host" {expected}')


@pytest.mark.parametrize("name", ["refract.lock", "secrets.json", "migrating.lock", "bus.sqlite3", "links.sqlite3"])
def test_a_directory_in_the_place_of_a_file_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    refused = refract("serve", "--data-dir", str(tmp_path), "--port", str(free_port()))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("FATAL: ")
    assert name in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_database_of_random_bytes_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "links.sqlite3").write_bytes(secrets.token_bytes(5_000))
    refused = refract("serve", "--data-dir", str(tmp_path), "--port", str(free_port()))
    assert refused.returncode == 1
    assert refused.stderr == "FATAL: database is unavailable: links.sqlite3: file is not a database\n"


def test_its_files_are_for_its_owner_alone_in_whatever_directory(tmp_path: Path, port: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    with running(
        "serve", "--data-dir", str(data), "--port", str(port), address=f"http://127.0.0.1:{port}", folder=tmp_path / "p"
    ):
        modes = {}
        for file in data.iterdir():
            with suppress(FileNotFoundError):  # a journal, which comes and goes
                modes[file.name] = file.stat().st_mode & 0o077
    assert modes["links.sqlite3"] == modes["bus.sqlite3-wal"] == modes["refract.lock"] == 0
    assert set(modes.values()) == {0}


@contextmanager
def started(script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a shell prepares; `"$@"` in the script is the command."""
    command = ["sh", "-c", script, "sh", *COMMAND, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def standard_files(pid: int) -> list[str]:
    return [str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (0, 1, 2)]


@pytest.mark.parametrize("script", ['exec "$@"', 'exec "$@" 2>&1'])
async def test_it_goes_on_when_nobody_reads_its_log(tmp_path: Path, port: int, script: str) -> None:
    with started(script, "serve", "--data-dir", str(tmp_path / "data"), "--port", str(port)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"migrated" in process.stdout.readline()
        process.stdout.close()
        instance = Running(process, f"http://127.0.0.1:{port}", tmp_path)
        await eventually(lambda: instance.get("/health") == (200, HEALTHY), timeout=60)
        for _ in range(3):
            assert instance.get("/r/absent")[0] == 404  # each is a line in the log
        assert instance.stop() == 0
        said = process.stderr.read().decode().splitlines()
    assert [line.split()[0] for line in said] == ([] if "2>&1" in script else ["Refract", "Its", "Ctrl-C"])


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
async def test_it_starts_with_closed_descriptors(tmp_path: Path, port: int, closed: str) -> None:
    script = f'exec "$@" {closed}'
    with started(script, "serve", "--data-dir", str(tmp_path / "data"), "--port", str(port)) as process:
        instance = Running(process, f"http://127.0.0.1:{port}", tmp_path)
        await eventually(lambda: instance.get("/health") == (200, HEALTHY), timeout=60)
        assert all(kind.startswith(("/dev/", "pipe:")) for kind in standard_files(process.pid))
        assert instance.stop() == 0


def test_an_interrupt_while_it_imports_is_quiet() -> None:
    # A run that a shell has put into the background ignores interrupts, and so would what it starts.
    command = ["env", "--default-signal=INT", sys.executable, "-X", "importtime", *COMMAND[1:], "doctor"]
    # Through so narrow a pipe it cannot get on with its imports unless we read of them.
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pipesize=4096
    ) as process:
        assert process.stderr is not None
        assert any("typer" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(60) == 130
    assert "Traceback" not in said


async def test_metrics_have_an_address_of_their_own(tmp_path: Path, port: int) -> None:
    inside = free_port()
    with running(
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        str(port),
        address=f"http://127.0.0.1:{port}",
        folder=tmp_path / "process",
        variables={"METRICS_ADDR": f"127.0.0.1:{inside}"},
    ) as instance:
        assert instance.get("/api/urls")[0] == 401
        assert instance.get("/r/absent")[0] == 404
        assert instance.get("/", {"X-Large": "a" * 20_000})[0] == 431
        scraped = Running(instance.process, f"http://127.0.0.1:{inside}", instance.folder)
        expected = (
            b'{method="GET",route="/api/urls",service="gateway",status="401"} 1.0',
            b'{method="GET",route="/{code}",service="url-service",status="404"} 1.0',
            b'{method="other",route="refused",service="gateway",status="431"} 1.0',
        )
        # The hot paths count together what comes within a few milliseconds.
        await eventually(lambda: all(b"http_requests_total" + each in scraped.get("/metrics")[1] for each in expected))


def test_every_log_line_has_the_nine_fields(instance: Running, tmp_path: Path) -> None:
    secret = json.loads((tmp_path / "data" / "secrets.json").read_bytes())["JWT_SECRET"]
    token = TokenSigner(secret, SystemClock()).sign("5c0f1a52-6a0e-4d0b-9a5e-8f0c7d1f3b26", "ann@example.org").token
    bearer = {"Authorization": f"Bearer {token}"}
    assert instance.get("/api/urls", {"X-Correlation-ID": "journey-1", **bearer})[0] == 200
    instance.get("/r/absent", {"X-Correlation-ID": "journey-2"})
    assert instance.stop() == 0
    nine = ["level", "time", "service", "correlation_id", "method", "path", "status", "duration_ms", "msg"]
    assert all(list(line)[:9] == nine for line in instance.log)
    hops = [line["service"] for line in instance.log if line["correlation_id"] == "journey-1"]
    assert hops == ["url-service", "gateway"]
    [redirect] = [line for line in instance.log if line["correlation_id"] == "journey-2"]
    assert (redirect["path"], redirect["status"], redirect["service"]) == ("/r/absent", 404, "url-service")


async def test_the_doctor_sees_a_running_instance(instance: Running, tmp_path: Path, port: int) -> None:
    def looked(*arguments: str, **variables: str) -> str:
        seen = refract("doctor", "--data-dir", str(tmp_path / "data"), *arguments, variables=variables)
        return seen.stdout if seen.returncode == 0 else ""

    for look in (partial(looked, PORT=str(port)), partial(looked, "--port", str(port))):
        seen = await eventually(look)  # it has few seconds for an answer, and may ask again
        assert f"{instance.address} answers as gateway" in seen
    lost = refract("doctor", "--data-dir", str(tmp_path / "data"), "--port", str(free_port()))
    assert lost.returncode == 1
    assert "instance " in lost.stdout.splitlines()[-1]


async def test_a_first_start_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    """Whatever moment a Ctrl-C hits, the next start works."""
    data = str(tmp_path / "data")
    for delay in (0.2, 0.5, 0.8):
        with pytest.raises(subprocess.TimeoutExpired):
            refract("serve", "--data-dir", data, "--port", str(free_port()), timeout=delay)
    port = free_port()
    with running(
        "serve", "--data-dir", data, "--port", str(port), address=f"http://127.0.0.1:{port}", folder=tmp_path / "last"
    ) as instance:
        assert await ready(instance)
