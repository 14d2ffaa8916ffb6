"""The end of an account through the front door, in both modes: links stop, counts stay, the address is in no table.

ACCEPTANCE 37. Rows of an outbox that are published stay as they are until their retention is over, with what they say.
"""

import asyncio
import secrets
from collections.abc import Iterator

import pytest

from tests.support.commands import refract
from tests.support.platforms import PASSWORD, DistributedPlatform, EmbeddedPlatform, Platform, platform_in
from tests.support.traces import tables_of
from tests.support.waiting import eventually

GONE = {"error": "this link is no longer active"}
KNOW_THE_ADDRESS = {
    *("identity: users", "links: links", "analytics: links", "notifications: recipients"),
    *("notifications: notifications", "links: outbox"),
}
"""Where it is while there is an account: whoever looks for it has to find it there."""


@pytest.fixture(scope="module", params=["embedded", "distributed"])
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with platform_in(request.param, tmp_path_factory.mktemp(request.param), request) as platform:
        yield platform


async def tables_with(platform: Platform, word: str) -> set[str]:
    return {name for name, rows in await tables_of(platform) if word.encode() in rows}


async def settle(platform: Platform) -> tuple[str, str, str]:
    """Somebody whose link was clicked, and who was told so: address, token, code."""
    email, token = await platform.sign_up()
    body = {"url": f"https://example.com/{secrets.token_hex(4)}", "title": f"Link of {email}"}
    answer = await platform.call("POST", "/api/shorten", body, "Idempotency-Key: mine", token=token)
    assert answer.status == 201, answer.body
    code: str = answer.json["short_code"]
    assert (await platform.call("GET", f"/{code}")).status == 301
    await platform.stats(code, clicks=1)

    async def known() -> bool:
        return await tables_with(platform, email) >= KNOW_THE_ADDRESS

    await eventually(known, timeout=60)
    return email, token, code


async def assert_gone(platform: Platform, email: str, token: str, code: str) -> None:
    """Nothing is left but counts."""

    async def is_dead() -> bool:
        return (await platform.call("GET", "/api/me", token=token)).status == 401

    async def stopped() -> bool:
        return (await platform.call("GET", f"/{code}")).status == 410

    async def forgotten() -> bool:
        return {name for name in await tables_with(platform, email) if not name.endswith(": outbox")} == set()

    await eventually(is_dead)
    await eventually(stopped, timeout=60)
    for path in (f"/{code}", f"/r/{code}"):
        answer = await platform.call("GET", path)
        assert (answer.status, answer.json) == (410, GONE)
    await eventually(forgotten, timeout=60)

    async def closed() -> bool:
        return (await platform.call("GET", f"/api/stats/{code}")).status == 410

    await eventually(closed, timeout=60)
    assert {"analytics: totals", "analytics: clicks"} <= {
        name.partition("_default")[0] for name in await tables_with(platform, code)
    }, "what was counted stays, and is nobody's"


async def test_an_account_is_deleted_by_its_owner(platform: Platform) -> None:
    email, token, code = await settle(platform)
    refused = await platform.call("DELETE", "/api/auth/me", {"password": "a guess"}, token=token)
    assert (refused.status, refused.json) == (403, {"error": "current password is wrong"})
    assert (await platform.call("DELETE", "/api/auth/me", {"password": PASSWORD})).status == 401
    assert (await platform.call("GET", f"/{code}")).status == 301
    await platform.stats(code, clicks=2)
    answer = await platform.call("DELETE", "/api/auth/me", {"password": PASSWORD}, token=token)
    assert (answer.status, answer.body) == (204, b"")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    await assert_gone(platform, email, token, code)
    login = await platform.call("POST", "/api/auth/login", {"email": email, "password": PASSWORD})
    assert login.status == 401
    again = await platform.call("POST", "/api/auth/register", {"email": email, "password": PASSWORD})
    assert again.status == 201


async def test_an_account_is_deleted_on_the_command_line_while_all_runs(platform: Platform) -> None:
    email, token, code = await settle(platform)
    place: tuple[str, ...] = ()
    variables: dict[str, str] = {}
    if isinstance(platform, EmbeddedPlatform):
        place = ("--data-dir", str(platform.data.path))
    elif isinstance(platform, DistributedPlatform):
        variables = dict(platform.environments["identity"])
    done = await asyncio.to_thread(refract, "users", "delete", email, "--yes", *place, variables=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" is deleted, and its links stop in a moment\n")
    await assert_gone(platform, email, token, code)
