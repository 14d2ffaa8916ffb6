"""Settings from the environment: what is read, and what is refused in one line that helps."""

from collections.abc import Callable
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment, is_host, without_credentials

Reader = Callable[[Environment], object]

READERS: dict[str, Reader] = {
    "text": lambda environment: environment.text("X"),
    "integer": lambda environment: environment.integer("X"),
    "choice": lambda environment: environment.choice("X", ("open", "local")),
    "secret": lambda environment: environment.secret("X", minimum=4),
    "host": lambda environment: environment.host("X"),
    "address": lambda environment: environment.address("X", example="localhost:6379"),
    "url": lambda environment: environment.url("X", ("http", "https")),
    "endpoint": lambda environment: environment.endpoint("X"),
}
OPTIONAL_READERS: dict[str, tuple[Reader, object]] = {
    "text": (lambda environment: environment.text("X", "usual"), "usual"),
    "an empty text": (lambda environment: environment.text("X", ""), ""),
    "integer": (lambda environment: environment.integer("X", 0), 0),
    "number": (lambda environment: environment.number("X", 1e-7, minimum=0, maximum=1), 1e-7),
    "flag": (lambda environment: environment.flag("X", default=True), True),
    "choice": (lambda environment: environment.choice("X", ("a", "b"), "b"), "b"),
    "secret": (lambda environment: environment.secret("X", minimum=1, default="made"), "made"),
    "address": (lambda environment: environment.address("X", "localhost:1", example=""), ("localhost", 1)),
    "host": (lambda environment: environment.host("X", "127.0.0.1"), "127.0.0.1"),
    "url": (lambda environment: environment.url("X", ("http",), "http://localhost:1"), "http://localhost:1"),
    "networks": (lambda environment: environment.networks("X"), ()),
}
PLAIN = 'a URL such as "http://host:port", without query, fragment and credentials'


def refusal(read: Reader, value: str, name: str = "X") -> str:
    with pytest.raises(Misconfigured) as caught:
        read(Environment({name: value}))
    line = str(caught.value)
    assert line.startswith(f'FATAL: environment variable "{name}" is ')
    assert line.isprintable()
    return line


@pytest.mark.parametrize("variables", [{}, {"X": ""}, {"X": " \t\n"}], ids=["absent", "empty", "blank"])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_missing_variable_is_named(read: Reader, variables: dict[str, str]) -> None:
    assert not Environment(variables).has("X")
    with pytest.raises(Misconfigured) as caught:
        read(Environment(variables))
    assert str(caught.value) == 'FATAL: required environment variable "X" is not set'


@pytest.mark.parametrize("variables", [{}, {"X": ""}], ids=["absent", "empty"])
@pytest.mark.parametrize(("read", "default"), OPTIONAL_READERS.values(), ids=OPTIONAL_READERS)
def test_a_default_stands_in(read: Reader, default: object, variables: dict[str, str]) -> None:
    assert read(Environment(variables)) == default


@pytest.mark.parametrize(
    ("reader", "value", "read"),
    [
        ("text", "  some text ", "some text"),
        ("integer", "0", 0),
        ("integer", "+7", 7),
        ("integer", "007", 7),
        ("integer", "2147483647", 2**31 - 1),
        ("choice", "local", "local"),
        ("secret", "four", "four"),
        ("secret", "éé", "éé"),
        ("host", "::1", "::1"),
        ("host", "url_db", "url_db"),
        ("address", "redis:6379", ("redis", 6379)),
        ("address", "url_db.internal-1:1", ("url_db.internal-1", 1)),
        ("address", "127.0.0.1:65535", ("127.0.0.1", 65535)),
        ("address", "[::1]:6379", ("::1", 6379)),
        ("url", "http://links:8081", "http://links:8081"),
        ("url", "https://example.com/path?a=b", "https://example.com/path?a=b"),
        ("url", "HTTP://[::1]:80/", "HTTP://[::1]:80/"),
        ("endpoint", "http://links:8081", "http://links:8081"),
        ("endpoint", "https://example.com/links/", "https://example.com/links/"),
    ],
)
def test_good_values(reader: str, value: str, read: object) -> None:
    environment = Environment({"X": value})
    assert environment.has("X")
    assert READERS[reader](environment) == read


@pytest.mark.parametrize(
    ("reader", "value", "wanted"),
    [
        ("integer", "seven", "a whole number from 0 to 2147483647"),
        ("integer", "-1", "a whole number from 0 to 2147483647"),
        ("integer", "2147483648", "a whole number from 0 to 2147483647"),
        ("integer", "9" * 19, "a whole number from 0 to 2147483647"),
        ("integer", "1.0", "a whole number from 0 to 2147483647"),
        ("integer", "1_000", "a whole number from 0 to 2147483647"),
        ("integer", "٣", "a whole number from 0 to 2147483647"),
        ("choice", "Local", '"open" or "local"'),
        ("choice", "ajar", '"open" or "local"'),
        ("address", "localhost", '"host:port", such as "localhost:6379"'),
        ("address", ":6379", '"host:port", such as "localhost:6379"'),
        ("address", "redis:", '"host:port", such as "localhost:6379"'),
        ("address", "redis:0", '"host:port", such as "localhost:6379"'),
        ("address", "redis:65536", '"host:port", such as "localhost:6379"'),
        ("address", "redis:http", '"host:port", such as "localhost:6379"'),
        ("address", "::1:6379", '"host:port", such as "localhost:6379"'),
        ("address", "[::1:6379", '"host:port", such as "localhost:6379"'),
        ("address", "red is:6379", '"host:port", such as "localhost:6379"'),
        ("address", "redis://redis:6379", '"host:port", such as "localhost:6379"'),
        ("address", "a..b:6379", '"host:port", such as "localhost:6379"'),
        ("address", "999.1.1.1:6379", '"host:port", such as "localhost:6379"'),
        ("address", "[redis]:6379", '"host:port", such as "localhost:6379"'),
        ("host", "a..b", 'a host name or an IP address, such as "127.0.0.1"'),
        ("host", "localhost:80", 'a host name or an IP address, such as "127.0.0.1"'),
        ("url", "links:8081", 'a URL such as "http://host:port/…"'),
        ("url", "ftp://links", 'a URL such as "http://host:port/…"'),
        ("url", "http://", 'a URL such as "http://host:port/…"'),
        ("url", "http://:80", 'a URL such as "http://host:port/…"'),
        ("url", "http://links:0", 'a URL such as "http://host:port/…"'),
        ("url", "http://links:99999", 'a URL such as "http://host:port/…"'),
        ("url", "http://links:port", 'a URL such as "http://host:port/…"'),
        ("url", "http://[::1", 'a URL such as "http://host:port/…"'),
        ("url", "http://links and more", 'a URL such as "http://host:port/…"'),
        ("url", "http://a..b:80", 'a URL such as "http://host:port/…"'),
        ("url", "http://999.1.1.1", 'a URL such as "http://host:port/…"'),
        ("endpoint", "ftp://links", 'a URL such as "http://host:port/…"'),
        ("endpoint", "http://links?a=b", PLAIN),
        ("endpoint", "http://links/?", PLAIN),
        ("endpoint", "http://links#top", PLAIN),
        ("endpoint", "http://links/#", PLAIN),
    ],
)
def test_a_wrong_value_is_shown_with_what_would_be_right(reader: str, value: str, wanted: str) -> None:
    line = refusal(READERS[reader], value)
    assert line == f'FATAL: environment variable "X" is "{value}"; expected {wanted}'


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "url_db.internal-1",
        "example.com.",
        "xn--mnchen-3ya.de",
        "münchen.de",
        "faß.example",
        "127.0.0.1",
        "::",
        "fe80::1%eth0",
        "a" * 63,
        f"{'a.' * 126}a",
    ],
)
def test_hosts(host: str) -> None:
    assert is_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "a..b",
        ".a",
        "a" * 64,
        f"{'a.' * 126}ab",
        "h\udcff",
        "h\xa0h",
        "a b",
        "a/b",
        "a,b",
        "a%20b",
        "a\u200db",  # which browsers take for no name either
        "℀",
        "999.1.1.1",
        "\uff19\uff19\uff19.1.1.1",
        "127.1",
        "1.2.3.4.",
        "1",
        "::zz",
        "[::1]",
        "::1%",
        "fe80::1%\udcff",
    ],
)
def test_what_no_resolver_can_be_asked_for(host: str) -> None:
    assert not is_host(host)


@pytest.mark.parametrize("value", ["99999", "-1"])
def test_an_option_is_called_by_its_own_name(value: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        Environment({"PORT": "80"}, {"PORT": value}).integer("PORT", maximum=65535)
    assert str(caught.value) == f'FATAL: option "--port" is "{value}"; expected a whole number from 0 to 65535'


def test_an_option_stands_in_for_its_variable() -> None:
    environment = Environment({"HOST": "first", "PORT": "80"}, {"HOST": "second", "PORT": ""})
    assert (environment.text("HOST"), environment.integer("PORT")) == ("second", 80)


def test_credentials_have_no_place_in_an_endpoint() -> None:
    line = refusal(READERS["endpoint"], "http://user:hunter2@links:8081")
    assert line.endswith(f"expected {PLAIN}")
    assert "hunter2" not in line


@pytest.mark.parametrize(("value", "read"), [("true", True), ("false", False)])
@pytest.mark.parametrize("default", [True, False])
def test_flags(value: str, read: bool, default: bool) -> None:
    assert Environment({"X": value}).flag("X", default=default) is read


@pytest.mark.parametrize("value", ["yes", "1", "True", "on"])
def test_a_flag_is_true_or_false(value: str) -> None:
    line = refusal(lambda environment: environment.flag("X", default=False), value)
    assert line == f'FATAL: environment variable "X" is "{value}"; expected "true" or "false"'


@pytest.mark.parametrize(
    ("value", "read"), [("0", 0.0), ("0.25", 0.25), ("1", 1.0), ("1.000000001", None), ("2", None)]
)
def test_numbers_keep_their_bounds(value: str, read: float | None) -> None:
    def number(environment: Environment) -> float:
        return environment.number("X", 0.5, minimum=0, maximum=1)

    if read is None:
        assert refusal(number, value).endswith(f'is "{value}"; expected a number from 0 to 1')
    else:
        assert number(Environment({"X": value})) == read


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e3", ".5", "1,5", "half"])
def test_what_is_no_plain_number_is_refused(value: str) -> None:
    line = refusal(lambda environment: environment.number("X", 1, minimum=0, maximum=10_000), value)
    assert line.endswith(f'is "{value}"; expected a number from 0 to 10000')


@pytest.mark.parametrize("value", ["4", "9"])
def test_integers_keep_their_bounds(value: str) -> None:
    line = refusal(lambda environment: environment.integer("X", minimum=5, maximum=8), value)
    assert line.endswith(f'is "{value}"; expected a whole number from 5 to 8')


def test_networks() -> None:
    read = Environment({"X": "10.0.0.0/8, 192.0.2.7,,::1 ,fd00::/8"}).networks("X")
    assert read == tuple(ip_network(text) for text in ("10.0.0.0/8", "192.0.2.7/32", "::1/128", "fd00::/8"))


@pytest.mark.parametrize("value", ["10.0.0.1/8", "proxy", "10.0.0.0/33", "10.0.0.0/8;::1", "1"])
def test_wrong_networks(value: str) -> None:
    line = refusal(lambda environment: environment.networks("X"), value)
    assert f'is "{value}"; expected addresses or networks separated by commas' in line


@pytest.mark.parametrize(
    "name",
    [
        "JWT_SECRET",
        "OIDC_CLIENT_SECRET_2",
        "REDIS_PASSWORD",
        "SMTP_PASS",
        "CLICK_SALT",
        "SAFE_BROWSING_API_KEY",
        "BOT_TOKEN",
        "DATABASE_DSN",
        "TEST_POSTGRES_DSN",
        "RABBITMQ_URL",
        "SMTP_URL",
    ],
)
def test_what_a_name_calls_secret_is_not_shown(name: str) -> None:
    line = refusal(lambda environment: environment.url(name, ("amqp",)), "hunter2", name)
    assert line == (
        f'FATAL: environment variable "{name}" is a hidden value of 7 characters; '
        'expected a URL such as "amqp://host:port/…"'
    )


@pytest.mark.parametrize("name", ["PASSWORD_POLICY", "TOKEN_LIFETIME", "KEYSPACE"])
def test_what_only_sounds_secret_is_shown(name: str) -> None:
    assert '"lax"' in refusal(lambda environment: environment.choice(name, ("length", "strict")), "lax", name)


def test_a_secret_is_not_shown_whatever_its_name() -> None:
    line = refusal(lambda environment: environment.secret("X", minimum=32), "hunter2")
    assert line == (
        'FATAL: environment variable "X" is a hidden value of 7 characters; expected a secret of at least 32 bytes'
    )


@pytest.mark.parametrize("value", ["ftp://admin:hunter2@links", "redis://:hunter2@redis:6379", "admin:hunter2@redis:1"])
@pytest.mark.parametrize("reader", ["address", "url", "integer"])
def test_credentials_in_a_value_are_not_shown_whatever_its_name(reader: str, value: str) -> None:
    line = refusal(READERS[reader], value)
    assert f"a hidden value of {len(value)} characters" in line
    assert "hunter2" not in line


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    undecodable = b"\xff\xfe\xfd".decode("utf-8", "surrogateescape")
    line = refusal(lambda environment: environment.secret("X", minimum=1), undecodable)
    assert line.endswith("is a hidden value of 3 characters; expected a secret in UTF-8")
    assert r"\udcff" in refusal(READERS["integer"], undecodable)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1\n2", r'"1\n2"'),
        ("1\r\nFATAL: all is well", r'"1\r\nFATAL: all is well"'),
        ("a\x1b[2Jb", r'"a\x1b[2Jb"'),
        ("a\u2028b", r'"a\u2028b"'),
        ("a\x00b", r'"a\x00b"'),
        ("x" * 500, '"' + "x" * 200 + '…"'),
    ],
)
@pytest.mark.parametrize("reader", ["integer", "choice", "host", "address", "url", "endpoint"])
def test_no_value_breaks_the_line(reader: str, value: str, shown: str) -> None:
    assert shown in refusal(READERS[reader], value)


@pytest.mark.parametrize("value", ["http://li\nnks", "http://links\x00x", "http://links/\x7f", "http://links/\u2028x"])
def test_a_url_holds_no_control_characters(value: str) -> None:
    assert 'expected a URL such as "http://host:port/…"' in refusal(READERS["url"], value)


@given(st.sampled_from(["integer", "choice", "host", "address", "url", "endpoint", "secret"]), st.text())
def test_any_text_is_a_value_or_one_line(reader: str, value: str) -> None:
    try:
        READERS[reader](Environment({"X": value}))
    except Misconfigured as error:
        assert str(error).isprintable()  # noqa: PT017  # a text may also be a good value


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgres://user:pass@url_db:5432/url_db?sslmode=disable", "postgres://url_db:5432/url_db"),
        ("postgres://user:pass@url_db/url_db", "postgres://url_db/url_db"),
        ("postgres://url_db:5432/url_db", "postgres://url_db:5432/url_db"),
        ("postgres://user:p@ss@url_db:5432/url_db", "postgres://url_db:5432/url_db"),
        ("postgres://user:p%40ss%2F@url_db:5432/url_db", "postgres://url_db:5432/url_db"),
        ("postgres://user:pass@[::1]:5432/url_db", "postgres://[::1]:5432/url_db"),
        ("amqp://guest:pass@rabbitmq:5672/%2f", "amqp://rabbitmq:5672/%2f"),
        ("redis://:pass@redis", "redis://redis"),
        ("postgres://user:pass@url_db/url_db#pass", "postgres://url_db/url_db"),
    ],
)
def test_a_dsn_without_credentials(dsn: str, shown: str) -> None:
    assert without_credentials(dsn) == shown


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        "not a dsn",
        "user:pass@url_db/url_db",
        "//user:pass@url_db/url_db",
        "postgres://user:pa[ss@url_db/url_db",
        "postgres://user:pa/ss@url_db/url_db",
        "postgres://user:12/pass@url_db/url_db",
        "postgres://user:?pass@url_db/url_db",
        "postgres://user:#pass@url_db/url_db",
        "postgres://user:pass@url_db:port/url_db",
        "postgres://user:pass@url_db:99999/url_db",
        "postgres://user:pass@/url_db",
        "postgres:///url_db?password=pass",
        "postgres://user:pass@url_db/url_db;password=pass",
        "postgres://user:pass@url_db/url_db password=pass",
        "postgres://user:pass@url_db/url\n_db",
        "host=url_db user=user password=pass",
        "postgres://user:pass@[::1/url_db",
    ],
)
def test_a_dsn_that_cannot_be_read_shows_nothing(dsn: str) -> None:
    assert without_credentials(dsn) == "<unparseable DSN>"


@given(st.text(min_size=1))
def test_no_password_comes_through(password: str) -> None:
    secret = f"<{password}>"
    shown = without_credentials(f"postgres://somebody:{secret}@url_db:5432/url_db?sslmode=disable")
    assert shown in ("postgres://url_db:5432/url_db", "<unparseable DSN>")
