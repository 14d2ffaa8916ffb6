"""The gateway's own documents: served to everybody, in both modes, whatever is behind it, and true."""

import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest

from refract.runtime.client_address import hashes_with
from refract.runtime.edge import Receive, Scope, Send
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.services.gateway.domain.limits import RouteLimits
from refract.services.gateway.http import Limits
from tests.support.fronts import Front, authorization, mirror
from tests.support.http import Answer, fetch


async def gone(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """A service that nobody can ask."""
    raise RuntimeError


async def test_the_document_is_there_without_a_token_and_whatever_is_behind(front: Front) -> None:
    answer = await fetch(await front(gone), "/docs/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["cache-control"] == "public, max-age=300"
    assert answer.json["info"]["title"] == "Refract"
    assert {"/api/shorten", "/api/auth/login", "/{code}"} <= answer.json["paths"].keys()


async def test_the_page_may_show_itself_and_nothing_else(front: Front) -> None:
    answer = await fetch(await front(gone), "/docs")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert answer.headers["content-security-policy"] == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert "POST /api/shorten" in answer.text


@pytest.mark.parametrize("path", ["/docs", "/docs/openapi.json"])
async def test_a_head_and_a_wrong_method_are_answered_as_elsewhere(front: Front, path: str) -> None:
    port = await front(gone)
    whole, head = await fetch(port, path), await fetch(port, path, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.body))
    assert (await fetch(port, path, method="DELETE")).status == 405
    assert (await fetch(port, "/docs/other")).status == 404


def described(document: Any, method: str, path: str, answer: Answer) -> list[str]:
    """What the document says that such an answer may hold."""
    content = document["paths"][path][method.lower()]["responses"][str(answer.status)]["content"]
    return [example["value"]["error"] for example in content["application/json"]["examples"].values()]


@pytest.mark.parametrize(
    ("method", "path", "fields", "status"),
    [
        ("GET", "/api/urls", (), 401),
        ("GET", "/api/urls", ("Authorization: Bearer refract_x",), 401),
        ("GET", "/api/urls", ("X-API-Key: refract_a", "X-API-Key: refract_b"), 400),
        ("GET", "/api/me", ("X-API-Key: refract_a",), 403),
        ("POST", "/api/auth/login", ("Origin: https://elsewhere.example",), 403),
        ("GET", "/api/sms/audit", (authorization(),), 403),
        ("GET", "/api/urls", (authorization(),), 503),
    ],
)
async def test_a_refusal_is_one_of_those_that_are_described(
    front: Front, method: str, path: str, fields: tuple[str, ...], status: int
) -> None:
    port = await front(mirror, capacity=0 if status == 503 else 9)
    document = (await fetch(port, "/docs/openapi.json")).json
    answer = await fetch(port, path, *fields, method=method)
    assert answer.status == status
    assert answer.json["error"] in described(document, method, path, answer)


async def test_so_is_a_limit(front: Front) -> None:
    limits = Limits(EmbeddedRateLimiter(), RouteLimits({"shorten": 1}, hashes_with("salt")))
    port = await front(mirror, counted=limits)
    document = (await fetch(port, "/docs/openapi.json")).json
    answers = [await fetch(port, "/api/shorten", authorization(), method="POST") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert answers[1].json["error"] in described(document, "POST", "/api/shorten", answers[1])
    assert "retry-after" in answers[1].headers
    assert "Retry-After" in document["paths"]["/api/shorten"]["post"]["responses"]["429"]["headers"]
