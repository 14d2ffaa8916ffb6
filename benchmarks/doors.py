"""The gateway as a process of its own on the server's core, before services of our choice, and identity behind it."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.cores import server_core
from benchmarks.instances import Instance, answering, databases
from benchmarks.links import EMAIL, OWNER
from benchmarks.workshop import BASE_URL, LIMITS, Workshop
from refract.kernel.clock import SystemClock
from refract.runtime.tokens import Role, TokenSigner
from refract.services.gateway.api import WIRE_NAME
from refract.services.gateway.settings import URL_VARIABLES
from refract.services.identity.api import WIRE_NAME as IDENTITY
from tests.support.servers import PostgreSQL, RabbitMQ, Redis
from tests.support.servers.places import free_port

NOWHERE = 1
"""A port at which nobody listens."""


@dataclass(frozen=True)
class Process:
    """A process that answers, and the secret by which it knows tokens."""

    instance: Instance
    secret: str = field(repr=False)
    database: str = ""

    @property
    def port(self) -> int:
        """Where it answers."""
        return self.instance.port

    @property
    def pid(self) -> int:
        """Its number."""
        return self.instance.process.pid

    def token(self, role: Role = "user") -> str:
        """What somebody shows here."""
        return signed(self.secret, role)


def signed(secret: str, role: Role = "user") -> str:
    """A token by that secret."""
    return TokenSigner(secret, SystemClock()).sign(OWNER, EMAIL, role=role).token


@contextmanager
def door(
    workshop: Workshop,
    targets: Mapping[str, int],
    environment: Mapping[str, str] | None = None,
    *,
    secret: str | None = None,
) -> Iterator[Process]:
    """A `refract run gateway` before the services at these ports; those that are not named cannot be reached."""
    secret = secret or secrets.token_urlsafe(48)
    urls = {variable: f"http://127.0.0.1:{targets.get(target, NOWHERE)}" for target, variable in URL_VARIABLES.items()}
    values = {**_shared(workshop, secret), **LIMITS, **urls, "SERVICE_NAME": WIRE_NAME, **(environment or {})}
    with _running(workshop, "gateway", values, server_core()) as instance:
        yield Process(instance, secret)


@contextmanager
def identity(
    workshop: Workshop, secret: str, *, core: int | None, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """A `refract run identity` on that core, or on all of them, with a database of its own."""
    with databases(workshop.servers[PostgreSQL.variable]) as dsns:
        dsn = dsns["identity"]
        own = {"SERVICE_NAME": IDENTITY, "DATABASE_DSN": dsn, "BASE_URL": BASE_URL, "TRUSTED_PROXIES": "127.0.0.1"}
        values = {**_shared(workshop, secret), **own, **(environment or {})}
        with _running(workshop, "identity", values, core) as instance:
            yield Process(instance, secret, dsn)


def _shared(workshop: Workshop, secret: str) -> dict[str, str]:
    return {
        "HOST": "127.0.0.1",
        "REDIS_ADDR": workshop.servers[Redis.variable],
        "RABBITMQ_URL": workshop.servers[RabbitMQ.variable],
        "JWT_SECRET": secret,
    }


@contextmanager
def _running(workshop: Workshop, name: str, values: Mapping[str, str], core: int | None) -> Iterator[Instance]:
    port = free_port()
    errors = workshop.folder / f"{name}-{secrets.token_hex(4)}.log"
    with answering(Instance(("run", name), port, errors, {**values, "PORT": str(port)}, core=core)) as instance:
        yield instance
