"""Private PostgreSQL, Redis, RabbitMQ and Kafka for tests, benchmarks and the local stack."""

from tests.support.servers.kafka import Kafka
from tests.support.servers.postgresql import PostgreSQL
from tests.support.servers.rabbitmq import RabbitMQ
from tests.support.servers.redis import Redis
from tests.support.servers.server import Server, ServerError

__all__ = ["Kafka", "PostgreSQL", "RabbitMQ", "Redis", "Server", "ServerError"]
