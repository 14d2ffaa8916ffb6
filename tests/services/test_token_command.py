"""`refract token`: what it prints is believed by every service of the instance, and nothing else is printed."""

import base64
import json
import stat
import uuid
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import msgspec
import pytest

from refract.kernel.clock import SystemClock
from refract.runtime.tokens import Claims, TokenRefused, TokenVerifier
from tests.support.commands import refract

SECRET = "the secret of the environment, 32+"


def claims_of(token: str, secret: str) -> Claims:
    return TokenVerifier((secret,), SystemClock()).verify(token)


def printed(process: CompletedProcess[str]) -> str:
    assert (process.returncode, process.stderr) == (0, "")
    (line,) = process.stdout.splitlines()
    return line


def payload(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    decoded: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return decoded


def kept_secret(data_dir: Path) -> str:
    secret: str = json.loads((data_dir / "secrets.json").read_text())["JWT_SECRET"]
    return secret


def test_an_instance_believes_the_token(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = printed(refract("token", " Alice@Example.com", "--data-dir", str(data)))
    claims = claims_of(token, kept_secret(data))
    assert claims.email == "alice@example.com"
    assert abs((datetime.now(UTC) - claims.issued_at).total_seconds()) < 60
    assert (claims.expires_at - claims.issued_at).total_seconds() == 24 * 3600
    assert uuid.UUID(claims.token_id).version == 4
    assert payload(token).keys() == {"iss", "sub", "email", "iat", "exp", "jti"}
    assert payload(token)["iss"] == "url-shortener"


def test_the_same_address_is_the_same_user_everywhere(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    first = payload(printed(refract("token", "alice@example.com", "--data-dir", str(here))))
    again = payload(printed(refract("token", "ALICE@example.com", "--data-dir", str(here))))
    elsewhere = payload(printed(refract("token", "alice@example.com", "--data-dir", str(there))))
    somebody = payload(printed(refract("token", "bob@example.com", "--data-dir", str(here))))
    # A user's links hang on this text: it must never change.
    assert first["sub"] == again["sub"] == elsewhere["sub"] == "124e2275-f8f9-51be-aafa-06bbd209d903"
    assert somebody["sub"] != first["sub"]
    assert first["jti"] != again["jti"]


def test_the_secret_is_the_instances_own_and_made_only_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    refract("token", "alice@example.com", "--data-dir", str(data))
    secret = kept_secret(data)
    process = refract("token", "alice@example.com", "--data-dir", str(data))
    assert kept_secret(data) == secret
    assert secret not in process.stdout + process.stderr
    assert stat.S_IMODE((data / "secrets.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    with pytest.raises(TokenRefused):
        claims_of(printed(process), "another secret, of 32 bytes or more")


def test_a_secret_in_the_environment_comes_first(tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = refract(
        "token", "alice@example.com", "--hours", "1", "--data-dir", str(data), variables={"JWT_SECRET": SECRET}
    )
    claims = claims_of(printed(process), SECRET)
    assert (claims.expires_at - claims.issued_at).total_seconds() == 3600
    assert SECRET not in process.stdout + process.stderr
    assert not data.exists()


@pytest.mark.parametrize("secret", ["too short", "-----BEGIN PUBLIC KEY----- of some kind"])
def test_a_secret_that_no_service_takes_is_refused_unseen(tmp_path: Path, secret: str) -> None:
    process = refract("token", "alice@example.com", variables={"JWT_SECRET": secret})
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith("FATAL: ")
    assert len(process.stderr.splitlines()) == 1
    assert secret not in process.stderr


@pytest.mark.parametrize(
    "email", ["", "alice", "@example.com", "alice@", "a b@example.com", "a@b@c", "a\n@example.com"]
)
def test_what_is_no_address_is_refused(tmp_path: Path, email: str) -> None:
    data = tmp_path / "data"
    process = refract("token", email, "--data-dir", str(data))
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.endswith("is no email address\n")
    assert len(process.stderr.splitlines()) == 1
    assert not data.exists()


def test_trouble_with_the_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = refract("token", "alice@example.com", "--data-dir", str(tmp_path / "file"))
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith("FATAL: data directory")
    assert len(process.stderr.splitlines()) == 1


def test_its_help_warns_of_its_power() -> None:
    assert "whoever holds the secret may speak for anybody" in " ".join(refract("token", "--help").stdout.split())
