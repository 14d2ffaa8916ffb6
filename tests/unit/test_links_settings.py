"""The settings of links: what is the default, and what is refused."""

from pathlib import Path

import pytest

from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment
from refract.services.links.settings import LinksSettings

BASE = {"BASE_URL": "https://sho.rt/"}
KEY = "the-key-of-the-service"


def read(**variables: str) -> LinksSettings:
    return LinksSettings.from_environment(Environment({**BASE, **variables}))


def test_the_defaults_are_those_of_the_specification() -> None:
    assert read() == LinksSettings(
        base_url="https://sho.rt",
        click_salt=None,
        spool=Path("spool"),
        spool_bytes=256 * 1024 * 1024,
        short_domains=(),
        code_strategy="random",
        url_normalization="rfc3986",
        click_durability="commit",
        redirect_log_sample=1.0,
        stats_public=True,
        blocklist=None,
        safe_browsing_key=None,
        safety_fails_open=True,
        bulk_limit=10_000,
    )


def test_what_is_set_counts() -> None:
    variables = {
        "BASE_URL": "https://go.example/",
        "CLICK_SALT": "a salt of the operator",
        "CLICK_SPOOL_DIR": "/var/spool/clicks",
        "CLICK_SPOOL_MB": "7",
        "SHORT_DOMAINS": " S.example, ,t.example:8443 ",
        "CODE_STRATEGY": "snowflake",
        "URL_NORMALIZATION": "lowercase",
        "CLICK_DURABILITY": "async",
        "REDIRECT_LOG_SAMPLE": "0.25",
        "STATS_PUBLIC": "false",
        "SAFETY_BLOCKLIST": "/files/blocklist.txt",
        "SAFE_BROWSING_API_KEY": KEY,
        "SAFETY_FAIL": "closed",
        "RATE_LIMIT_BULK": "0",
    }
    settings = LinksSettings.from_environment(
        Environment(variables), base_url="http://127.0.0.1:8080", click_salt="salt of the data", spool=Path("elsewhere")
    )
    assert settings == LinksSettings(
        base_url="https://go.example",
        click_salt="a salt of the operator",
        spool=Path("/var/spool/clicks"),
        spool_bytes=7 * 1024 * 1024,
        short_domains=("s.example", "t.example:8443"),
        code_strategy="snowflake",
        url_normalization="lowercase",
        click_durability="async",
        redirect_log_sample=0.25,
        stats_public=False,
        blocklist=Path("/files/blocklist.txt"),
        safe_browsing_key=KEY,
        safety_fails_open=False,
        bulk_limit=0,
    )
    assert KEY not in repr(settings)
    assert "a salt" not in repr(settings)


def test_embedded_mode_knows_the_rest() -> None:
    spool = Path("data/spool")
    settings = LinksSettings.from_environment(
        Environment({}), base_url="http://127.0.0.1:8080", click_salt="salt of the data", spool=spool
    )
    assert (settings.base_url, settings.click_salt, settings.spool) == (
        "http://127.0.0.1:8080",
        "salt of the data",
        spool,
    )


def test_distributed_mode_has_to_be_told_where_it_is() -> None:
    with pytest.raises(Misconfigured) as caught:
        LinksSettings.from_environment(Environment({}))
    assert str(caught.value) == 'FATAL: required environment variable "BASE_URL" is not set'


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("BASE_URL", "sho.rt", 'a URL such as "http://host:port/…"'),
        ("BASE_URL", "https://sho.rt/?a", 'a URL such as "http://host:port", without query, fragment and credentials'),
        ("CLICK_SPOOL_MB", "0", "a whole number from 1 to 1048576"),
        ("CLICK_SPOOL_MB", "1048577", "a whole number from 1 to 1048576"),
        ("CODE_STRATEGY", "dice", '"random" or "snowflake"'),
        ("URL_NORMALIZATION", "Lowercase", '"rfc3986" or "lowercase"'),
        ("CLICK_DURABILITY", "never", '"commit" or "async"'),
        ("REDIRECT_LOG_SAMPLE", "1.5", "a number from 0 to 1"),
        ("STATS_PUBLIC", "no", '"true" or "false"'),
        ("SAFETY_FAIL", "ajar", '"open" or "closed"'),
        ("RATE_LIMIT_BULK", "-1", "a whole number from 0 to 2147483647"),
        ("RATE_LIMIT_BULK", "many", "a whole number from 0 to 2147483647"),
    ],
)
def test_what_makes_no_sense_is_named_with_what_would(variable: str, value: str, expected: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        read(**{variable: value})
    assert str(caught.value) == f'FATAL: environment variable "{variable}" is "{value}"; expected {expected}'


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("CLICK_SALT", "pepper7", "a secret of at least 8 bytes"),
        ("SAFE_BROWSING_API_KEY", "secret\udcff", "a secret in UTF-8"),
    ],
)
def test_a_secret_that_makes_no_sense_is_named_and_not_shown(variable: str, value: str, expected: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        read(**{variable: value})
    hidden = "a hidden value of 7 characters"
    assert str(caught.value) == f'FATAL: environment variable "{variable}" is {hidden}; expected {expected}'
