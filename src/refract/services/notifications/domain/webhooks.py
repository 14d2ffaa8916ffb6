"""Webhooks: where they may be, and the signature by which their owners know that it was us (Standard Webhooks)."""

import base64
import hmac
import re
import secrets
from datetime import datetime
from ipaddress import ip_address

import can_ada

from refract.kernel.errors import Invalid
from refract.kernel.public_addresses import is_public

URL_LENGTH = 2_048
SECRET_PREFIX = "whsec_"  # noqa: S105  # how every secret begins, and none of them
SECRET_BYTES = 32

_UNWANTED = re.compile("[\x00-\x20\x7f-\x9f\ud800-\udfff]")
_AUTHORITY = re.compile(r"https?://([^/?#]+)", re.IGNORECASE)
_LOWEST_FREE_PORT = 1024


def new_secret() -> str:
    """A key to sign with, in the form that the libraries of receivers take."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signed_headers(secret: str, message_id: str, moment: datetime, body: bytes) -> dict[str, str]:
    """The headers that say which message it is, when this attempt was made, and that both and the body are ours."""
    timestamp = str(int(moment.timestamp()))
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signature = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, "sha256")
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


def check_webhook_url(text: str, *, allow_private: bool = False) -> str:
    """The URL of a webhook in the form to keep; Invalid says what is wrong with it.

    A name that leads to a private address is found out when it is called, because it may lead elsewhere by then.
    """
    if len(text) > URL_LENGTH:
        raise Invalid(f"url must be at most {URL_LENGTH} characters")
    if _UNWANTED.search(text) is not None:
        raise Invalid("url must not contain spaces and control characters")
    authority = _AUTHORITY.match(text)
    if authority is None:
        raise Invalid("url must begin with https:// or http:// and a host")
    if "@" in authority[1] or "\\" in authority[1]:
        raise Invalid("url must not contain credentials")
    try:
        parsed = can_ada.parse(text)
    except (ValueError, TypeError):
        raise Invalid("url has a host or port that is not valid") from None
    if not allow_private:
        _check_public(parsed)
    url: str = parsed.href.partition("#")[0]
    if len(url) > URL_LENGTH:
        raise Invalid(f"url must be at most {URL_LENGTH} characters when percent-encoded")
    return url


def _check_public(parsed: can_ada.URL) -> None:
    host = parsed.hostname.rstrip(".")
    if not (_is_public_address(host) if _is_address(host) else _is_public_name(host)):
        raise Invalid("url must not lead to a private or local address")
    # Below stand mail servers and the like, who would take a request for what it is not.
    if parsed.port not in {"", "80", "443"} and int(parsed.port) < _LOWEST_FREE_PORT:
        raise Invalid(f"url must have port 80, 443 or one from {_LOWEST_FREE_PORT} on")


def _is_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _is_public_address(host: str) -> bool:
    return is_public(host.strip("[]"))


def _is_public_name(host: str) -> bool:
    """Whether it could be: a single word is a machine next door, and some endings never leave the house."""
    return "." in host and not host.endswith((".localhost", ".local", ".internal", ".home.arpa"))
