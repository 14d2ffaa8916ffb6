"""The containers: they wait for what they need, keep what they store, publish what they should, and start."""

import json
import os
import re
import secrets
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from refract.apps.directory import SERVICES, ServiceEntry
from refract.apps.own_settings import Defaults, read_settings
from refract.runtime.environment import Environment
from refract.runtime.settings import EngineSettings, ProcessSettings, check_service_name
from refract.services.gateway.settings import GatewaySettings, LimitSettings
from tests.support.compose import DEVELOPMENT, FILES, PRODUCTION, Tree, compose, some_secrets

DEVELOPMENT_PORTS = {
    "gateway": ["8080:8080"],
    "url-service": ["8081:8081"],
    "analytics-service": ["8082:8082"],
    "user-service": ["8083:8083"],
    "notification-service": ["8084:8084"],
    "sms-gateway": ["8085:8085"],
    "project-service": ["8086:8086"],
    "url_db": ["5432:5432"],
    "analytics_db": ["5433:5432"],
    "user_db": ["5434:5432"],
    "notification_db": ["5435:5432"],
    "sms_db": ["5436:5432"],
    "project_db": ["5437:5432"],
    "rabbitmq": ["5672:5672", "15672:15672"],
    "redis": ["6379:6379"],
}
STATEFUL = {
    "postgres": "/var/lib/postgresql/data",
    "rabbitmq": "/var/lib/rabbitmq",
    "redis": "/data",
    "apache/kafka": "/var/lib/kafka/data",
}


@pytest.fixture(scope="module")
def development() -> Tree:
    return compose(DEVELOPMENT, some_secrets())


@pytest.fixture(scope="module")
def production() -> Tree:
    return compose(PRODUCTION, some_secrets())


def ours() -> list[Any]:
    return [pytest.param(entry, id=entry.wire_name) for entry in SERVICES.values()]


def test_the_containers_are_those_of_the_specification(development: Tree) -> None:
    wire_names = {entry.wire_name for entry in SERVICES.values()}
    assert set(development["services"]) == wire_names | set(DEVELOPMENT_PORTS) | {"kafka"}


@pytest.mark.parametrize("entry", ours())
def test_a_service_runs_under_its_own_name_and_port(development: Tree, entry: ServiceEntry) -> None:
    container = development["services"][entry.wire_name]
    assert container["command"] == ["run", entry.name]
    assert container["environment"]["SERVICE_NAME"] == entry.wire_name
    assert container["environment"]["PORT"] == str(entry.port)


@pytest.mark.parametrize("entry", ours())
@pytest.mark.parametrize("files", [DEVELOPMENT, PRODUCTION], ids=["development", "production"])
def test_a_service_accepts_its_environment(entry: ServiceEntry, files: tuple[Path, ...]) -> None:
    container = compose(files, some_secrets())["services"][entry.wire_name]
    environment = Environment(container["environment"])
    check_service_name(environment, entry.wire_name)
    ProcessSettings.from_environment(environment)
    EngineSettings.from_environment(environment, entry.needs)
    read_settings(entry.name, environment, Defaults())
    LimitSettings.from_environment(environment)


def test_the_gateway_finds_each_service_by_its_name(development: Tree) -> None:
    urls = GatewaySettings.from_environment(Environment(development["services"]["gateway"]["environment"])).urls
    assert urls == {
        entry.name: f"http://{entry.wire_name}:{entry.port}" for entry in SERVICES.values() if entry.url_variable
    }


def test_the_services_trust_the_network_of_the_gateway_alone(development: Tree) -> None:
    subnet = development["networks"]["backend"]["ipam"]["config"][0]["subnet"]
    for entry in SERVICES.values():
        environment = Environment(development["services"][entry.wire_name]["environment"])
        trusted = ProcessSettings.from_environment(environment).trusted_proxies
        assert trusted == (() if entry.name == "gateway" else (ip_network(subnet),))


def test_every_container_says_whether_it_is_healthy(development: Tree) -> None:
    for name, container in development["services"].items():
        check = container["healthcheck"]
        assert {"interval", "timeout", "retries", "start_period"} <= set(check), name
        assert ("test" in check) != ("build" in container), f"{name}: the probe of our own image is in the image"


def test_every_dependency_is_waited_for_until_it_is_healthy(development: Tree) -> None:
    for name, container in development["services"].items():
        waited = container.get("depends_on", {})
        assert all(gate == {"condition": "service_healthy"} for gate in waited.values()), name
        environment = container["environment"]
        named = {host for host in development["services"] if _mentions(host, environment)} - {name}
        assert named <= set(waited), f"{name} is given an address and does not wait for it"


def _mentions(host: str, environment: Mapping[str, str]) -> bool:
    return any(re.search(rf"(?<![\w-]){re.escape(host)}:\d", value) for value in environment.values())


def test_every_container_comes_back_and_has_time_to_stop(development: Tree) -> None:
    for name, container in development["services"].items():
        assert container["restart"] == "unless-stopped", name
        assert container["networks"] == ["backend"], name
        assert int(container["stop_grace_period"].removesuffix("s")) >= 15, name


def test_what_is_stored_is_stored_in_a_named_volume(development: Tree) -> None:
    used = []
    for name, container in development["services"].items():
        volumes = [volume for volume in container.get("volumes", ()) if volume != FILES]
        if "build" in container and not volumes:
            continue
        [(volume, path)] = [volume.split(":") for volume in volumes]
        expected = "/data" if "build" in container else STATEFUL[container["image"].partition(":")[0]]
        assert path == expected, name
        used.append(volume)
    assert sorted(used) == sorted(development["volumes"]), "each volume is declared, and used once"
    # The spool of clicks is the only thing that a service of ours keeps outside its database.
    spool = development["services"]["url-service"]
    assert spool["environment"]["CLICK_SPOOL_DIR"].startswith("/data/")
    assert spool["volumes"] == ["url_spool:/data", FILES]
    assert "--appendonly" in development["services"]["redis"]["command"]


def test_no_two_services_share_a_database(development: Tree) -> None:
    places = []
    for entry in SERVICES.values():
        environment = development["services"][entry.wire_name]["environment"]
        assert ("DATABASE_DSN" in environment) == entry.has_database
        if not entry.has_database:
            continue
        dsn = urlsplit(environment["DATABASE_DSN"])
        database = development["services"][dsn.hostname]["environment"]
        assert database["POSTGRES_DB"] == dsn.path.removeprefix("/")
        assert (database["POSTGRES_USER"], database["POSTGRES_PASSWORD"]) == (dsn.username, dsn.password)
        places.append(dsn.hostname)
    databases = {name for name, container in development["services"].items() if "postgres" in container["image"]}
    assert sorted(places) == sorted(databases)


def test_development_publishes_on_loopback_the_ports_of_the_specification(development: Tree) -> None:
    published = {
        name: container["ports"] for name, container in development["services"].items() if "ports" in container
    }
    assert published == {name: [f"127.0.0.1:{port}" for port in ports] for name, ports in DEVELOPMENT_PORTS.items()}


def test_production_publishes_the_gateway_alone(production: Tree) -> None:
    published = {name: container.get("ports") for name, container in production["services"].items()}
    assert {name: ports for name, ports in published.items() if ports} == {"gateway": ["0.0.0.0:8080:8080"]}


def test_production_bounds_memory_and_logs(production: Tree, development: Tree) -> None:
    assert set(production["services"]) == set(development["services"])
    for name, container in production["services"].items():
        assert set(container["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert set(container["logging"]["options"]) == {"max-size", "max-file"}, name


def test_production_starts_only_what_was_built(production: Tree) -> None:
    for entry in SERVICES.values():
        container = production["services"][entry.wire_name]
        assert (container["image"], container["pull_policy"]) == ("refract:test", "never")


def test_no_address_means_this_machine(development: Tree) -> None:
    for name, container in development["services"].items():
        for variable, value in container["environment"].items():
            if variable != "BASE_URL":  # what people's browsers are told, and no place that a container calls
                assert not re.search(r"localhost|127\.0\.0\.1|::1", value), f"{name}: {variable}"


# Docker itself


def succeeds(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def docker_compose(files: tuple[Path, ...]) -> list[str]:
    return ["docker", "compose", *(f"--file={file}" for file in files)]


@pytest.mark.timeout(1200)
def test_the_stack_starts_and_answers() -> None:
    environment = os.environ | some_secrets()
    if succeeds("docker", "compose", "version"):
        for files in (DEVELOPMENT, PRODUCTION):
            subprocess.run([*docker_compose(files), "config", "--quiet"], env=environment, check=True)
    if not succeeds("docker", "info"):
        pytest.skip("no Docker engine answers")
    command = [*docker_compose(DEVELOPMENT), "--project-name", f"refract-test-{secrets.token_hex(4)}"]
    try:
        subprocess.run([*command, "up", "--build", "--wait"], env=environment, check=True, timeout=1000)
        for entry in SERVICES.values():
            with urllib.request.urlopen(f"http://127.0.0.1:{entry.port}/health", timeout=5) as answer:
                assert json.load(answer) == {"status": "ok", "service": entry.wire_name}
    finally:
        subprocess.run([*command, "down", "--volumes", "--rmi", "local"], env=environment, check=False, timeout=120)
