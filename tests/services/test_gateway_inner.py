"""What services have for each other is not there for anybody else: by no method, in no spelling, in both modes."""

from collections.abc import Iterator

import pytest

from refract.services.gateway.api import OWN_PATHS
from tests.support.houses import GATEWAY, House, house
from tests.support.http import Answer

__all__ = ["house"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
OF_EVERY_ONE = {path.split("/")[1] for path in OWN_PATHS}
NOWHERE = "/api/nothing-of-the-kind"


async def inner_paths(house: House) -> set[tuple[str, str]]:
    """What a service answers and does not describe, but for what every one of them has."""
    described = {(operation.service, operation.path) for operation in await house.operations()}
    served = {(name, path) for name, paths in house.served.items() for path in paths}
    return {(name, path) for name, path in served - described if path.split("/")[1] not in OF_EVERY_ONE}


def ways_to(path: str) -> Iterator[str]:
    """How somebody might ask for it at the gateway, plainly and with a letter in disguise."""
    for prefix in ("/api", "/api/auth", "/api/sms"):
        yield f"{prefix}{path}"
        parent, _, last = path.rpartition("/")
        yield f"{prefix}{parent}/%{ord(last[0]):02x}{last[1:]}"
        yield f"{prefix}{parent}/{last[:-1]}%{ord(last[-1]):02X}"


def said(answer: Answer) -> tuple[int, bytes, dict[str, str]]:
    fields = {name: value for name, value in answer.headers.items() if name not in {"date", "x-correlation-id"}}
    return answer.status, answer.body, fields


async def test_inner_routes_look_like_nothing(house: House) -> None:
    inner = await inner_paths(house)
    assert inner == {("identity", "/keys/resolve"), ("identity", "/keys/uses"), ("identity", "/revocations")}
    token = house.token("6f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9", "alice@example.com")
    house.reached.clear()
    for method in METHODS:
        for proof in ("", token):
            nothing = said(await house.call(GATEWAY, method, NOWHERE, token=proof))
            assert nothing[0] == 404
            assert "allow" not in nothing[2]
            for _, path in sorted(inner):
                for way in ways_to(path):
                    assert said(await house.call(GATEWAY, method, way, token=proof)) == nothing, (method, way)
    assert not house.reached


async def test_what_stands_beside_them_is_as_it_was(house: House) -> None:
    token = house.token("6f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9", "alice@example.com")
    for beside in ("7", "resolved", "Uses", "use"):
        wrong = await house.call(GATEWAY, "GET", f"/api/keys/{beside}", token=token)
        assert (wrong.status, wrong.headers["allow"]) == (405, "DELETE")
    for code in ("resolve", "uses", "revocations"):
        answer = await house.call(GATEWAY, "GET", f"/{code}")
        assert (answer.status, answer.headers["cache-control"]) == (404, "no-store"), "a short link may be called so"
