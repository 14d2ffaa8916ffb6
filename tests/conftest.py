"""Fixtures for all tests: where the real servers are, and a corner of each that no other test uses."""

import secrets
from collections.abc import Iterator

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.support.databases import fresh_database, unmade_database
from tests.support.lending import drop_idle
from tests.support.ordering import in_order
from tests.support.servers import Kafka, PostgreSQL, RabbitMQ, Redis, Server
from tests.support.servers.selection import configured

__all__ = ["fresh_database", "unmade_database"]

pytest_plugins = ["tests.support.orphans", "tests.support.stuck"]

# A busy machine makes examples slow, and no property of ours is about time.
settings.register_profile("refract", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("refract")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whoever runs the tests in one process has them in the order of their files."""
    if hasattr(config, "workerinput"):
        items[:] = in_order(items)


def _address(server: type[Server]) -> str:
    address = configured(server)
    if address is None:
        pytest.fail(
            f"no {server.name}: run `make test`, or `make servers` first, or set {server.variable}", pytrace=False
        )
    return address


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """The DSN of a PostgreSQL on which this run may create and drop databases."""
    dsn = _address(PostgreSQL)
    yield dsn
    uvloop.run(drop_idle(dsn))


@pytest.fixture(scope="session")
def redis_address() -> str:
    """A Redis as `host:port`."""
    return _address(Redis)


@pytest.fixture(scope="session")
def rabbitmq_url() -> str:
    """A RabbitMQ as an AMQP URL."""
    return _address(RabbitMQ)


@pytest.fixture(scope="session")
def kafka_bootstrap() -> str:
    """A Kafka as `host:port`."""
    return _address(Kafka)


@pytest.fixture
def rabbitmq_namespace() -> str:
    """A prefix for the names of queues and exchanges that this test alone uses."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def kafka_namespace() -> str:
    """A prefix for the names of topics and groups that this test alone uses."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def redis_namespace() -> str:
    """A prefix for the keys that this test alone uses."""
    return f"test:{secrets.token_hex(6)}:"
