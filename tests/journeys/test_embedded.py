"""One process over SQLite files: the first start, the last word, and the second start."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Running, refract, running
from tests.support.servers.places import free_port

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


def test_it_answers_and_says_where_things_are(instance: Running, tmp_path: Path) -> None:
    assert instance.get("/health") == (200, HEALTHY)
    assert instance.said.splitlines() == [
        f"Refract listens on {instance.address}",
        f"Its data is in {tmp_path / 'data'}",
        "Ctrl-C stops it",
    ]


def test_it_is_ready_when_its_databases_answer(instance: Running) -> None:
    status, body = instance.get("/ready")
    assert status == 200
    assert b'"bus":"ok"' in body
    assert b'"database of links":"ok"' in body


def test_metrics_are_not_shown_to_the_public(instance: Running) -> None:
    assert instance.get("/metrics")[0] == 404


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(instance: Running, number: signal.Signals) -> None:
    assert instance.stop(number) == 0
    assert [line["msg"] for line in instance.log if line["level"] == "error"] == []


def test_a_second_start_finds_the_data_again(instance: Running, tmp_path: Path, port: int) -> None:
    data = tmp_path / "data"
    secrets = (data / "secrets.json").read_bytes()
    assert [line["database"] for line in instance.log if line["msg"] == "migrated"] == [
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


def test_a_killed_instance_starts_again(instance: Running, tmp_path: Path, port: int) -> None:
    instance.process.kill()
    instance.process.wait()
    data = str(tmp_path / "data")
    with running(
        "serve", "--data-dir", data, "--port", str(port), address=instance.address, folder=tmp_path / "second"
    ) as again:
        assert again.get("/ready")[0] == 200


def test_two_instances_cannot_share_a_directory(instance: Running, tmp_path: Path) -> None:
    second = refract("serve", "--data-dir", str(tmp_path / "data"), "--port", str(free_port()))
    assert second.returncode == 1
    assert second.stderr == f'FATAL: data directory "{tmp_path / "data"}" is in use by another refract serve\n'


def test_a_taken_port_is_said_in_one_line(instance: Running, tmp_path: Path, port: int) -> None:
    second = refract("serve", "--data-dir", str(tmp_path / "other"), "--port", str(port))
    assert second.returncode == 1
    assert second.stderr.startswith(f"FATAL: cannot listen on 127.0.0.1:{port}: ")
    assert second.stderr.count("\n") == 1


def test_a_wrong_variable_is_said_in_one_line(tmp_path: Path) -> None:
    wrong = refract("serve", "--data-dir", str(tmp_path / "data"), variables={"LOG_LEVEL": "loud"})
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == (
        'FATAL: environment variable "LOG_LEVEL" is "loud"; expected "debug" or "info" or "warn" or "error"\n'
    )


def test_metrics_have_an_address_of_their_own(tmp_path: Path, port: int) -> None:
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
        instance.get("/r/absent")
        scraped = Running(instance.process, f"http://127.0.0.1:{inside}", instance.folder).get("/metrics")[1].decode()
    assert 'http_requests_total{method="GET",route="/r/{code}",service="gateway",status="404"} 1.0' in scraped
    assert 'service="url-service"' in scraped


def test_every_log_line_has_the_nine_fields(instance: Running) -> None:
    instance.get("/r/absent", {"X-Correlation-ID": "journey-1"})
    assert instance.stop() == 0
    nine = ["level", "time", "service", "correlation_id", "method", "path", "status", "duration_ms", "msg"]
    assert all(list(line)[:9] == nine for line in instance.log)
    hops = [line["service"] for line in instance.log if line["correlation_id"] == "journey-1"]
    assert hops == ["url-service", "gateway"]


def test_the_doctor_sees_a_running_instance(instance: Running, tmp_path: Path, port: int) -> None:
    seen = refract("doctor", "--data-dir", str(tmp_path / "data"), variables={"PORT": str(port)})
    assert seen.returncode == 0, seen.stdout
    assert f"{instance.address} answers {HEALTHY.decode()}" in seen.stdout


def test_a_first_start_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    """Whatever moment a Ctrl-C hits, the next start works."""
    data = str(tmp_path / "data")
    for delay in (0.2, 0.5, 0.8):
        with pytest.raises(subprocess.TimeoutExpired):
            refract("serve", "--data-dir", data, "--port", str(free_port()), timeout=delay)
    port = free_port()
    with running(
        "serve", "--data-dir", data, "--port", str(port), address=f"http://127.0.0.1:{port}", folder=tmp_path / "last"
    ) as instance:
        assert instance.get("/ready")[0] == 200
