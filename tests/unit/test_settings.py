"""Settings that every process shares: what is read, what is required, and how a wrong value is said."""

from datetime import timedelta
from ipaddress import ip_network

import pytest

from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment
from refract.runtime.settings import SSL_MODES, EngineSettings, ProcessSettings, RedisSettings, check_service_name
from refract.services.gateway.settings import URL_VARIABLES, GatewaySettings

SECRET = "s" * 32
ENGINES = {
    "DATABASE_DSN": "postgres://user:password@db:5432/url_db?sslmode=disable",
    "RABBITMQ_URL": "amqp://user:password@rabbitmq:5672/",
    "REDIS_ADDR": "redis:6379",
}


def process(**variables: str) -> ProcessSettings:
    return ProcessSettings.from_environment(Environment({"PORT": "8081", "JWT_SECRET": SECRET} | variables))


def test_defaults() -> None:
    settings = process()
    assert (settings.host, settings.port, settings.log_level) == ("0.0.0.0", 8081, "info")
    assert settings.metrics is None
    assert settings.trusted_proxies == ()
    assert settings.jwt_secrets == (SECRET,)
    assert settings.outbox_retention == timedelta(days=7)


def test_everything_can_be_said() -> None:
    settings = process(
        HOST="127.0.0.1",
        LOG_LEVEL="debug",
        METRICS_ADDR="127.0.0.1:9464",
        TRUSTED_PROXIES="10.0.0.0/8, ::1",
        JWT_SECRET_PREVIOUS="p" * 40,
        OUTBOX_RETENTION_DAYS="30",
    )
    assert (settings.host, settings.log_level, settings.metrics) == ("127.0.0.1", "debug", ("127.0.0.1", 9464))
    assert settings.trusted_proxies == (ip_network("10.0.0.0/8"), ip_network("::1/128"))
    assert settings.jwt_secrets == (SECRET, "p" * 40)
    assert settings.outbox_retention == timedelta(days=30)


@pytest.mark.parametrize("variable", ["PORT", "JWT_SECRET"])
def test_a_missing_variable_ends_with_its_name(variable: str) -> None:
    variables = {"PORT": "8081", "JWT_SECRET": SECRET}
    del variables[variable]
    with pytest.raises(Misconfigured) as caught:
        ProcessSettings.from_environment(Environment(variables))
    assert str(caught.value) == f'FATAL: required environment variable "{variable}" is not set'


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("PORT", "eighty", 'is "eighty"; expected a whole number from 1 to 65535'),
        ("PORT", "0", 'is "0"; expected a whole number from 1 to 65535'),
        ("LOG_LEVEL", "loud", 'is "loud"; expected "debug" or "info" or "warn" or "error"'),
        ("HOST", "a..b", 'is "a..b"; expected a host name or an IP address, such as "127.0.0.1"'),
        ("METRICS_ADDR", "9464", 'is "9464"; expected "host:port", such as "127.0.0.1:9464"'),
        ("METRICS_ADDR", "a..b:99", 'is "a..b:99"; expected "host:port", such as "127.0.0.1:9464"'),
        ("TRUSTED_PROXIES", "everyone", 'is "everyone"; expected addresses or networks separated by commas'),
        ("OUTBOX_RETENTION_DAYS", "-1", 'is "-1"; expected a whole number from 1 to 3650'),
        ("JWT_SECRET", "short", "is a hidden value of 5 characters; expected a secret of at least 32 bytes"),
        ("JWT_SECRET", "\udcff" * 40, "is a hidden value of 40 characters; expected a secret in UTF-8"),
        ("JWT_SECRET_PREVIOUS", "old", "is a hidden value of 3 characters; expected a secret of at least 32 bytes"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(variable: str, value: str, expected: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        process(**{variable: value})
    assert str(caught.value).startswith(f'FATAL: environment variable "{variable}" {expected}')
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("variable", sorted(ENGINES))
def test_engines_that_a_service_needs_are_required(variable: str) -> None:
    variables = {name: value for name, value in ENGINES.items() if name != variable}
    with pytest.raises(Misconfigured, match=f'required environment variable "{variable}" is not set'):
        EngineSettings.from_environment(Environment(variables), {"database", "bus", "redis"})


def test_engines_that_a_service_does_not_need_are_not_asked_for() -> None:
    settings = EngineSettings.from_environment(Environment({"REDIS_ADDR": "redis:6379"}), {"redis"})
    assert settings.database_dsn is None
    assert settings.rabbitmq_url is None


def test_an_optional_bus_is_read_where_it_is_named() -> None:
    settings = EngineSettings.from_environment(Environment(ENGINES), {"redis"})
    assert settings.rabbitmq_url == ENGINES["RABBITMQ_URL"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DATABASE_DSN", "mysql://user:hunter2@db/url_db"),
        ("DATABASE_DSN", "hunter2"),
        ("DATABASE_DSN", "postgres://user:hunter2@a..b/url_db"),
        ("DATABASE_DSN", "postgres://user:hunter2@db/url_db?sslmode=bogus"),
        ("DATABASE_DSN", "postgres://user:hunter2@db/url_db?sslmode="),
        ("RABBITMQ_URL", "http://user:hunter2@rabbitmq"),
        ("RABBITMQ_URL", "amqp://user:hunter2@a..b/"),
        ("REDIS_ADDR", "a..b:6379"),
        ("REDIS_PASSWORD", "hunter2\udcff"),
    ],
)
def test_a_wrong_connection_string_is_named_and_not_shown(variable: str, value: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        EngineSettings.from_environment(Environment(ENGINES | {variable: value}), {"database", "bus", "redis"})
    assert f'"{variable}"' in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "bootstrap"),
    [
        ("kafka:9092", "kafka:9092"),
        ("one:9092, two:9093", "one:9092,two:9093"),
        ("[::1]:9092", "[::1]:9092"),
    ],
)
def test_kafka_is_one_broker_or_several(text: str, bootstrap: str) -> None:
    settings = EngineSettings.from_environment(Environment({"KAFKA_BOOTSTRAP": text}), {"kafka"})
    assert settings.kafka is not None
    assert (settings.kafka.bootstrap, settings.kafka.replication) == (bootstrap, 1)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"KAFKA_BOOTSTRAP": "kafka"},
        {"KAFKA_BOOTSTRAP": "kafka:9092,"},
        {"KAFKA_BOOTSTRAP": "kafka:9092;other:9092"},
        {"KAFKA_BOOTSTRAP": "kafka:0"},
        {"KAFKA_BOOTSTRAP": "kafka:9092", "KAFKA_REPLICATION": "0"},
        {"KAFKA_BOOTSTRAP": "kafka:9092", "KAFKA_REPLICATION": "many"},
    ],
)
def test_a_kafka_that_is_none_is_refused(variables: dict[str, str]) -> None:
    with pytest.raises(Misconfigured, match="KAFKA_"):
        EngineSettings.from_environment(Environment(variables), {"kafka"})


@pytest.mark.parametrize("mode", SSL_MODES)
def test_the_modes_of_ssl_are_libpqs(mode: str) -> None:
    dsn = f"postgres://user:password@db/url_db?sslmode={mode}"
    assert EngineSettings.from_environment(Environment({"DATABASE_DSN": dsn}), {"database"}).database_dsn == dsn


def test_another_mode_of_ssl_is_answered_with_them() -> None:
    variables = {"DATABASE_DSN": "postgres://user:password@db/url_db?sslmode=on"}
    with pytest.raises(Misconfigured, match="expected sslmode to be one of disable, allow, prefer, require, verify-ca"):
        EngineSettings.from_environment(Environment(variables), {"database"})


@pytest.mark.parametrize("value", ["http://a..b:80", "http://links?a=b", "http://links/#top", "http://u:p@links"])
def test_the_url_of_a_service_is_a_place_and_no_more(value: str) -> None:
    variables = dict.fromkeys(URL_VARIABLES.values(), "http://service:80")
    with pytest.raises(Misconfigured, match=r'environment variable "URL_SERVICE_URL" is .*; expected a URL such as'):
        GatewaySettings.from_environment(Environment(variables | {"URL_SERVICE_URL": value}))


def test_the_host_of_redis_is_a_host() -> None:
    with pytest.raises(Misconfigured, match=r'"REDIS_HOST" is "a\.\.b"; expected a host name'):
        RedisSettings.from_environment(Environment({"REDIS_HOST": "a..b"}))


def test_credentials_are_not_in_a_representation() -> None:
    settings = EngineSettings.from_environment(
        Environment(ENGINES | {"REDIS_PASSWORD": "hunter2"}), {"database", "bus", "redis"}
    )
    assert "password" not in repr(settings).replace("password=", "")
    assert "hunter2" not in repr(settings)
    assert SECRET not in repr(process())


def test_redis_by_document_002s_names() -> None:
    settings = RedisSettings.from_environment(
        Environment({"REDIS_HOST": "cache", "REDIS_PORT": "6380", "REDIS_PASSWORD": "p", "REDIS_STATE_DB": "2"})
    )
    assert (settings.host, settings.port, settings.password, settings.state_db) == ("cache", 6380, "p", 2)


def test_redis_addr_wins() -> None:
    settings = RedisSettings.from_environment(Environment({"REDIS_ADDR": "a:1", "REDIS_HOST": "b", "REDIS_PORT": "2"}))
    assert (settings.host, settings.port, settings.state_db) == ("a", 1, 1)


def test_the_service_name_must_be_that_of_the_service() -> None:
    check_service_name(Environment({"SERVICE_NAME": "url-service"}), "url-service")
    with pytest.raises(Misconfigured, match='"SERVICE_NAME" is "user-service"; expected "url-service"'):
        check_service_name(Environment({"SERVICE_NAME": "user-service"}), "url-service")
