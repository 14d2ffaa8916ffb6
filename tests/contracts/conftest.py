"""Fixtures of the ports' twins, and patience: what is asked here is what they do, and never how soon."""

import pytest

from refract.runtime.distributed.kafka_producer import KafkaProducer
from tests.support.databases import database, database_location, empty_location
from tests.support.things import things
from tests.support.worlds import reader, world

__all__ = ["database", "database_location", "empty_location", "reader", "things", "world"]

PATIENCE = 30.0
EMBEDDED, DISTRIBUTED = "refract.runtime.embedded", "refract.runtime.distributed"
WAITS = (
    f"{EMBEDDED}.database.ACQUIRE_TIMEOUT",
    f"{EMBEDDED}.event_bus.PUBLISH_TIMEOUT",
    f"{EMBEDDED}.record_log.PUBLISH_TIMEOUT",
    f"{EMBEDDED}.record_log.SECONDS_TO_DRAIN",
    f"{EMBEDDED}.sqlite_thread.CLOSE_SECONDS",
    f"{DISTRIBUTED}.pool.ACQUIRE_TIMEOUT",
    f"{DISTRIBUTED}.pool.TIDY_TIMEOUT",
    f"{DISTRIBUTED}.postgresql.ACQUIRE_TIMEOUT",
    f"{DISTRIBUTED}.postgresql.CONNECT_TIMEOUT",
    f"{DISTRIBUTED}.rabbit_connection.CLOSE_SECONDS",
    f"{DISTRIBUTED}.rabbit_connection.CONNECT_SECONDS",
    f"{DISTRIBUTED}.rabbit_connection.FIRST_ATTEMPT_SECONDS",
    f"{DISTRIBUTED}.rabbit_connection.STEP_SECONDS",
    f"{DISTRIBUTED}.rabbit_publisher.PUBLISH_TIMEOUT",
    f"{DISTRIBUTED}.rabbit_reader.CLOSE_SECONDS",
    f"{DISTRIBUTED}.rabbit_reader.STEP_SECONDS",
    f"{DISTRIBUTED}.kafka_producer.PUBLISH_TIMEOUT",
    f"{DISTRIBUTED}.kafka_producer.SECONDS_UNTIL_SUSPICION",
    f"{DISTRIBUTED}.kafka_reader.SECONDS_TO_CLOSE",
    f"{DISTRIBUTED}.record_log.SECONDS_OF_PING",
    f"{DISTRIBUTED}.record_log.SECONDS_TO_DECLARE",
    f"{DISTRIBUTED}.record_log.SECONDS_TO_DRAIN",
    f"{DISTRIBUTED}.redis_connection.DIAL_TIMEOUT",
    f"{DISTRIBUTED}.redis_subscription.QUIET_SECONDS",
)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk or a server that takes seconds for an answer is slow here, and not away."""
    for name in WAITS:
        monkeypatch.setattr(name, PATIENCE)
    for module in ("sqlite_connections", "sqlite_thread"):
        monkeypatch.setattr(f"{EMBEDDED}.{module}.BUSY_MILLISECONDS", round(PATIENCE * 1_000))
    monkeypatch.setattr(KafkaProducer.probe, "__defaults__", (PATIENCE,))
