"""The session of a browser: the token in a cookie that scripts cannot read."""

from typing import Any

from litestar import Request

from refract.runtime.tokens import LIFETIME

SESSION_COOKIE = "refract_session"


def session_cookie(token: str, *, secure: bool) -> str:
    """The value of a Set-Cookie field that begins a session, which lasts as long as the token."""
    return _cookie(token, round(LIFETIME.total_seconds()), secure=secure)


def expired_cookie(*, secure: bool) -> str:
    """The value of a Set-Cookie field that ends it."""
    return _cookie("", 0, secure=secure)


def is_secure(request: Request[Any, Any, Any], base_url: str) -> bool:
    """Whether the browser came by https: the gateway says so, or the public address does."""
    return request.headers.get("x-forwarded-proto", "").lower() == "https" or base_url.lower().startswith("https:")


def _cookie(value: str, seconds: int, *, secure: bool) -> str:
    cookie = f"{SESSION_COOKIE}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}"
    return f"{cookie}; Secure" if secure else cookie
