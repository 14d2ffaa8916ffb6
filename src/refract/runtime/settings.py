"""The settings that every process shares; what only one service needs is read by its own settings module."""

import hmac
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from typing import Literal, Self
from urllib.parse import parse_qs, urlsplit

from refract.runtime.environment import Environment

LOG_LEVELS = ("debug", "info", "warn", "error")
SECRET_BYTES = 32
MAX_WORKERS = 64
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
"""What libpq takes for `sslmode`."""

Engine = Literal["database", "bus", "redis", "kafka"]


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Where a process listens and how it speaks."""

    host: str
    port: int
    log_level: str
    metrics: tuple[str, int] | None
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    jwt_secrets: tuple[str, ...] = field(repr=False)
    outbox_retention: timedelta
    workers: int = 1
    """How many processes answer, in distributed mode."""

    @classmethod
    def from_environment(
        cls,
        environment: Environment,
        *,
        host: str | None = None,
        port: int | None = None,
        jwt_secret: str | None = None,
    ) -> Self:
        """Read what is set; the arguments are embedded mode's defaults, and distributed mode has none for secrets."""
        return cls(
            host=environment.host("HOST", host or "0.0.0.0"),  # noqa: S104 - a container listens to its network
            port=environment.integer("PORT", port, minimum=1, maximum=65535),
            log_level=environment.choice("LOG_LEVEL", LOG_LEVELS, "info"),
            metrics=(
                environment.address("METRICS_ADDR", example="127.0.0.1:9464")
                if environment.has("METRICS_ADDR")
                else None
            ),
            trusted_proxies=environment.networks("TRUSTED_PROXIES"),
            jwt_secrets=_jwt_secrets(environment, jwt_secret),
            outbox_retention=timedelta(days=environment.integer("OUTBOX_RETENTION_DAYS", 7, minimum=1, maximum=3650)),
            workers=environment.integer("WORKERS", 1, minimum=1, maximum=MAX_WORKERS),
        )


def _jwt_secrets(environment: Environment, default: str | None) -> tuple[str, ...]:
    current = environment.secret("JWT_SECRET", minimum=SECRET_BYTES, default=default)
    if not environment.has("JWT_SECRET_PREVIOUS"):
        return (current,)
    return current, environment.secret("JWT_SECRET_PREVIOUS", minimum=SECRET_BYTES)


def derived_secret(secret: str, purpose: str) -> str:
    """A secret for another purpose, the same in every process that shares the first one, which it does not reveal."""
    return hmac.new(secret.encode(), purpose.encode(), "sha256").hexdigest()


def check_service_name(environment: Environment, wire_name: str) -> None:
    """SERVICE_NAME must name the service that is started: it catches a container with another one's environment."""
    environment.choice("SERVICE_NAME", (wire_name,))


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Where Redis is; cache and limits use database 0, progress its own (document 002)."""

    host: str
    port: int
    password: str | None = field(repr=False)
    state_db: int

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """REDIS_ADDR, or document 002's pair of names for the same (decision 27)."""
        if not environment.has("REDIS_ADDR") and environment.has("REDIS_HOST"):
            host = environment.host("REDIS_HOST")
            port = environment.integer("REDIS_PORT", 6379, minimum=1, maximum=65535)
        else:
            host, port = environment.address("REDIS_ADDR", example="localhost:6379")
        return cls(
            host=host,
            port=port,
            password=environment.secret("REDIS_PASSWORD", minimum=1) if environment.has("REDIS_PASSWORD") else None,
            state_db=environment.integer("REDIS_STATE_DB", 1, maximum=15),
        )


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where Kafka is, and on how many brokers a topic that we create is kept."""

    bootstrap: str
    replication: int

    @classmethod
    def from_environment(cls, environment: Environment) -> Self:
        """KAFKA_BOOTSTRAP: one broker, or a few of them, of whom one must answer."""
        addresses = environment.addresses("KAFKA_BOOTSTRAP", example="kafka:9092")
        return cls(
            bootstrap=",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses),
            replication=environment.integer("KAFKA_REPLICATION", 1, minimum=1, maximum=15),
        )


def database_dsn(environment: Environment) -> str:
    """DATABASE_DSN, with an `sslmode` that the driver knows if it has one."""
    dsn = environment.url("DATABASE_DSN", ("postgres", "postgresql"))
    if not set(parse_qs(urlsplit(dsn).query, keep_blank_values=True).get("sslmode", [])) <= set(SSL_MODES):
        raise environment.wrong("DATABASE_DSN", f"sslmode to be one of {', '.join(SSL_MODES)}")
    return dsn


def rabbitmq_url(environment: Environment) -> str:
    """RABBITMQ_URL."""
    return environment.url("RABBITMQ_URL", ("amqp", "amqps"))


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Where the servers are that a service in distributed mode depends on."""

    database_dsn: str | None = field(repr=False)
    rabbitmq_url: str | None = field(repr=False)
    redis: RedisSettings | None
    kafka: KafkaSettings | None = None

    @classmethod
    def from_environment(cls, environment: Environment, needs: Collection[Engine]) -> Self:
        """Read what the service needs; each of those is required. The bus is read where it is optional, too."""
        wants_bus = "bus" in needs or environment.has("RABBITMQ_URL")
        return cls(
            database_dsn=database_dsn(environment) if "database" in needs else None,
            rabbitmq_url=rabbitmq_url(environment) if wants_bus else None,
            redis=RedisSettings.from_environment(environment) if "redis" in needs else None,
            kafka=KafkaSettings.from_environment(environment) if "kafka" in needs else None,
        )
