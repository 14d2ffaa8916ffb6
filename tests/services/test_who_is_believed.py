"""Nobody is who he says he is, by a forged token (31) or by a header field (34), at the front door or behind it."""

from dataclasses import replace

import pytest

from tests.support.belongings import BOBS_PASSWORD, Hers, belonging_to, settle
from tests.support.forging import forgeries, token
from tests.support.houses import GATEWAY, House, house
from tests.support.http import Answer, Client

__all__ = ["house"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPELLINGS = (
    "X-User-ID",
    "x-user-id",
    "X_User_Id",
    "X_USER_ID",
    "X.User.Id",
    "X-User_Id",
    "X~User~Id",
    "HTTP_X_USER_ID",
)
PROXIES = ("X-Forwarded-For", "X_Forwarded_For", "X-Real-IP", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP")


def is_refused(answer: Answer, method: str = "GET") -> bool:
    """Whether a stranger was told nothing but that."""
    return answer.status == 401 and (method == "HEAD" or answer.json == {"error": "unauthorized"})


# Forged tokens


async def test_no_forged_token_is_believed_at_any_door(house: House) -> None:
    genuine, all_forged = token(house.secret.encode()), dict(forgeries(house.secret.encode()))
    assert {"'none'", "RS256", "issuer", "expired", "payload", "empty", "kid"} <= set(" ".join(all_forged).split())
    before = [await house.rows(name) for name in house.databases]
    for door, path in ((GATEWAY, "/api/me"), ("identity", "/me"), (GATEWAY, "/api/urls"), ("links", "/urls")):
        async with await Client.connect(house.ports[door]) as client:
            assert (await client.get(path, f"Authorization: Bearer {genuine}")).status == 200
            reached = house.reached.total()
            for name, forged in all_forged.items():
                assert is_refused(await client.get(path, f"Authorization: Bearer {forged}")), f"{door}: {name}"
            assert is_refused(await client.get(path))
            assert is_refused(await client.get(f"{path}?access_token={genuine}&token={genuine}"))
            if door == GATEWAY:
                for name, forged in all_forged.items():
                    cookie = f"Cookie: refract_session={forged.partition(',')[0]}"
                    assert name == "twice" or is_refused(await client.get(path, cookie)), f"session: {name}"
                assert house.reached.total() == reached, "what is refused here is not asked of anybody else"
    assert [await house.rows(name) for name in house.databases] == before


async def test_every_operation_that_wants_a_token_refuses_a_forged_one(house: House) -> None:
    all_forged = dict(forgeries(house.secret.encode()))
    kinds = ("alg 'none' without a signature", "another issuer", "expired a day ago", "kid 'theirs'", "an empty key")
    before = [await house.rows(name) for name in house.databases]
    for operation in await house.operations():
        for door in operation.doors if operation.wants_token else ():
            reached = house.reached.total()
            async with await Client.connect(house.ports[door]) as client:
                for sent in ([], *([f"Authorization: Bearer {all_forged[kind]}"] for kind in kinds)):
                    answer = await client.get(operation.target(door), *sent, method=operation.method)
                    assert is_refused(answer, operation.method), f"{operation} at {door} with {sent}: {answer}"
            assert door != GATEWAY or house.reached.total() == reached, operation
    assert [await house.rows(name) for name in house.databases] == before


# Header fields


def pretending(hers: Hers, number: int = 0) -> list[list[str]]:
    """Header fields by which somebody says that he is Alice, or comes from elsewhere."""
    alice, address = hers.alice, f"203.0.113.{number}"
    mail = [f"X-User-Email: {alice.email}", f"X_User_Email: {alice.email}", "X-User-Role: administrator"]
    named = "Connection: X-User-ID, X-User-Email, X-Forwarded-For, Authorization, close"
    each = [[f"{spelling}: {alice.id}", *mail] for spelling in SPELLINGS]
    each += [[f"{name}: {address}"] for name in PROXIES]
    return [
        *each,
        [f"X-User-ID: {alice.id}", f"X-User-ID: {alice.id}", *mail],
        [named, f"X-User-ID: {alice.id}", *mail],
        [f"Forwarded: for={address};host=evil.example;proto=https", "X-Forwarded-Host: evil.example"],
        [f"X-Forwarded-User: {alice.id}", f"X-Remote-User: {alice.id}", f"X-Auth-Request-User: {alice.id}"],
        [f"X-Original-User: {alice.id}", f"X-Original-URL: /api/urls/{hers.code}", "X-HTTP-Method-Override: DELETE"],
    ]


async def test_the_identity_seen_inside_is_that_of_the_token(house: House) -> None:
    hers, bob = await settle(house)
    signed = house.token(bob.id, bob.email)
    himself = {"user_id": bob.id, "email": bob.email}
    before = {name: await belonging_to(house, hers, name) for name in house.databases}
    for door, prefix in ((GATEWAY, "/api"), ("identity", ""), ("links", "")):
        for fields in pretending(hers):
            if door != "links":
                answer = await house.call(door, "GET", f"{prefix}/me", None, *fields, token=signed)
                assert answer.json == himself, f"{fields} at {door}"
                stranger = await house.call(door, "GET", f"{prefix}/me", None, *fields)
                assert is_refused(stranger), f"{fields} at {door}"
            if door != "identity":
                target = f"{prefix}/urls/{hers.code}"
                assert (await house.call(door, "GET", target, None, *fields, token=signed)).status == 403, fields
                body = {"url": "https://example.com/his", "force_new": True}
                made = await house.call(door, "POST", f"{prefix}/shorten", body, *fields, token=signed)
                assert made.status == 201, fields
                own = await house.call(
                    door, "GET", f"{prefix}/urls/{made.json['short_code']}", token=house.token(bob.id, bob.email)
                )
                assert own.status == 200, f"{fields} at {door}: whose is it?"
    assert {name: await belonging_to(house, hers, name) for name in house.databases} == before


async def test_the_address_seen_inside_is_that_of_the_connection(house: House) -> None:
    hers, bob = await settle(house)
    hers = replace(hers, alice=replace(hers.alice, id="u-0"))

    async def guess(number: int, fields: list[str], password: str = "wrong") -> int:
        body = {"email": bob.email if password != "wrong" else f"user-{number}@example.com", "password": password}
        return (await house.call(GATEWAY, "POST", "/api/auth/login", body, *fields)).status

    # Fifty failures from one address are enough, by whatever other addresses they are said to come.
    statuses: list[int] = []
    while 429 not in statuses:
        for fields in pretending(hers, len(statuses) % 250):
            statuses.append(await guess(len(statuses), fields))
            assert len(statuses) < 80, "an address was believed"
    assert set(statuses) == {401, 429}
    for fields in pretending(hers, 7):
        assert await guess(0, fields, BOBS_PASSWORD) == 429, fields
