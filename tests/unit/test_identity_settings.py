"""The settings of identity: what is the default, and what is refused."""

import os

import pytest

from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment
from refract.services.identity.settings import IdentitySettings, processors

BASE = {"BASE_URL": "https://sho.rt/"}


def test_the_defaults_are_those_of_the_specification() -> None:
    settings = IdentitySettings.from_environment(Environment(BASE))
    assert settings == IdentitySettings(
        base_url="https://sho.rt",
        password_policy="length",
        require_verified_email=False,
        dual_publish=True,
        hashing_threads=processors(),
    )
    assert 1 <= processors() <= (os.cpu_count() or 1)


def test_what_is_set_counts() -> None:
    variables = {
        "PASSWORD_POLICY": "strict",
        "REQUIRE_VERIFIED_EMAIL": "true",
        "ENABLE_DUAL_PUBLISH": "false",
        "PASSWORD_THREADS": "7",
    }
    settings = IdentitySettings.from_environment(Environment({**BASE, **variables}), base_url="http://elsewhere")
    assert settings == IdentitySettings("https://sho.rt", "strict", True, False, 7)


def test_embedded_mode_knows_where_it_is() -> None:
    assert (
        IdentitySettings.from_environment(Environment({}), base_url="http://[::1]:8080").base_url == "http://[::1]:8080"
    )


def test_distributed_mode_has_to_be_told() -> None:
    with pytest.raises(Misconfigured, match="BASE_URL"):
        IdentitySettings.from_environment(Environment({}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PASSWORD_POLICY", "lax"),
        ("REQUIRE_VERIFIED_EMAIL", "yes"),
        ("ENABLE_DUAL_PUBLISH", "1"),
        ("PASSWORD_THREADS", "0"),
        ("PASSWORD_THREADS", "65"),
        ("BASE_URL", "sho.rt"),
    ],
)
def test_what_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(Misconfigured, match=name):
        IdentitySettings.from_environment(Environment({**BASE, name: value}))
