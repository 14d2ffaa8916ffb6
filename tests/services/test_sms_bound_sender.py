"""Whoever sends with an API key sends for one user: the gateway says for whom, and nobody else is written to."""

import msgspec

from tests.support.http import Answer
from tests.support.sms import SENT, SmsWorld, gateway, locked_sms, new_user, sms

__all__ = ["gateway", "locked_sms", "sms"]

FORBIDDEN = (403, "Forbidden")


async def send(sms: SmsWorld, user_id: object, *bound_to: object, key: str = "") -> tuple[int, str]:
    headers = [f"X-SMS-User-ID: {one}" for one in bound_to] + ([f"Idempotency-Key: {key}"] if key else [])
    answer: Answer = await sms.post("/api/send", msgspec.json.encode({"userId": user_id, "message": "hello"}), *headers)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return answer.status, answer.text


async def test_it_sends_for_its_own_user_and_for_no_other(sms: SmsWorld) -> None:
    own, other = await sms.user(limit=2), await sms.user(limit=2)
    assert await send(sms, own, own) == SENT
    assert await send(sms, other, own) == FORBIDDEN
    assert await send(sms, other, own, key="k-1") == FORBIDDEN
    assert [(await sms.limit(user)).current_count for user in (own, other)] == [1, 0]
    assert (len(sms.messages(own)), sms.messages(other)) == (1, [])
    assert await sms.keys(other) == []
    assert [(it["status"], it["path"], it["reason"]) for it in sms.noted(other)] == [
        ("invalid", "none", "Forbidden")
    ] * 2


async def test_without_the_field_anybody_inside_sends_for_all(sms: SmsWorld) -> None:
    user = await sms.user(limit=1)
    assert await send(sms, user) == SENT


async def test_what_is_not_exactly_the_user_is_another(sms: SmsWorld) -> None:
    user = await sms.user(limit=9)
    for other in ("", f"-{user}", f"{user}.0", f"0{user}", f"+{user}", f"{user}, {user}", f"{user}x", "one", "9" * 400):
        assert await send(sms, user, other) == FORBIDDEN, other
    assert (await sms.limit(user)).current_count == 0
    assert await send(sms, user, user) == SENT


async def test_two_fields_have_to_agree(sms: SmsWorld) -> None:
    user, other = await sms.user(limit=9), new_user()
    assert await send(sms, user, user, other) == await send(sms, user, other, user) == FORBIDDEN
    assert await send(sms, user, user, user) == SENT


async def test_a_body_that_is_wrong_is_still_wrong(sms: SmsWorld) -> None:
    assert await send(sms, "7", 7) == (400, "Missing/Invalid Arguments")
    assert await send(sms, 0, 0) == (404, "User Not Found"), "a user may be 0"
