"""A program with an API key, from its making to its revocation, at the front door of both modes; and no trace of it."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from tests.support.http import Answer
from tests.support.platforms import PASSWORD, DistributedPlatform, EmbeddedPlatform, Platform, platform_in
from tests.support.traces import Strangers, listening, search
from tests.support.waiting import eventually

INVALID = (401, {"error": "invalid api key"})
LACKING = (403, {"error": "api key lacks scope"})
API_KEY_POLICY = '"api_key";q=1000;w=3600'
NOT_FOR_KEYS = (403, {"error": "api keys may not do this"})


@pytest.fixture(params=["embedded", "distributed"])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    """A platform of either mode; one that says all that it can."""
    with platform_in(request.param, tmp_path, request, LOG_LEVEL="debug") as platform:
        yield platform


class Owner:
    """Somebody with an account, and the keys that were made."""

    def __init__(self, platform: Platform, token: str) -> None:
        self.platform = platform
        self.token = token
        self.made: dict[str, str] = {}
        self.uses: Counter[str] = Counter()
        """By the names of keys."""

    async def make(self, name: str, *scopes: str, **more: Any) -> tuple[int, str]:
        """A new key: its id, and itself."""
        body = {"name": name, "scopes": scopes, **more}
        answer = await self.platform.call("POST", "/api/keys", body, token=self.token)
        assert answer.status == 201, answer.body
        made = answer.json
        assert made["key_prefix"] == made["key"][:16]
        self.made[name] = made["key"]
        return made["id"], made["key"]

    async def ask(self, name: str, method: str, path: str, body: Any = None, *, own_field: bool = False) -> Answer:
        """A request with a key, in one way or the other."""
        key = self.made[name]
        if own_field:
            answer = await self.platform.call(method, path, body, f"X-API-Key: {key}")
        else:
            answer = await self.platform.call(method, path, body, token=key)
        self.uses[name] += answer.status < 400
        return answer

    async def listed(self, query: str = "") -> dict[str, dict[str, Any]]:
        """The keys as the owner sees them, by name."""
        answer = await self.platform.call("GET", f"/api/keys{query}", token=self.token)
        assert answer.status == 200, answer.body
        assert not [key for key in self.made.values() if key[16:] in answer.text]
        return {one["name"]: one for one in answer.json["keys"]}

    async def all_counted(self) -> dict[str, dict[str, Any]] | None:
        """All keys, once every use of them is counted, and never once more."""
        listed = await self.listed("?status=all")
        counts = {name: one["usage_count"] for name, one in listed.items()}
        assert all(counts[name] <= self.uses[name] for name in self.made), counts
        return listed if counts == dict(self.uses) else None


def said(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.json


async def restart_gateway(platform: Platform) -> None:
    """As an operator does it: whoever stops has time to say the last word."""
    if isinstance(platform, EmbeddedPlatform):
        assert await asyncio.to_thread(platform.process.stop) == 0
        await asyncio.to_thread(platform.start)
    else:
        assert isinstance(platform, DistributedPlatform)
        await platform.stop_service("gateway")
        await asyncio.to_thread(platform.start_service, "gateway")


async def test_a_program_works_with_its_keys_until_they_are_revoked(platform: Platform) -> None:
    call = platform.call
    async with listening(platform) as listener:
        email, token = await platform.sign_up()
        owner = Owner(platform, token)
        writer_id, writer = await owner.make("writer", "links:read", "links:write", "stats:read")
        await owner.make("reader", "links:read")

        # It shortens, and the link is its owner's.
        answer = await owner.ask("writer", "POST", "/api/shorten", {"url": "https://example.com/by-key"})
        assert answer.status == 201, answer.body
        assert (answer.headers["x-ratelimit-limit"], answer.headers["ratelimit-policy"]) == ("1000", API_KEY_POLICY)
        code = answer.json["short_code"]
        followed = await call("GET", f"/{code}", None, f"X-API-Key: {writer}")
        assert (followed.status, followed.headers["location"]) == (301, "https://example.com/by-key")
        assert [it["short_code"] for it in (await call("GET", "/api/urls", token=token)).json["urls"]] == [code]

        # Each may do what its scopes say, and no more; and no key makes, lists or revokes keys.
        seen = await owner.ask("reader", "GET", "/api/urls", own_field=True)
        assert [it["short_code"] for it in seen.json["urls"]] == [code]
        assert (await owner.ask("reader", "GET", f"/api/urls/{code}")).status == 200
        refused = [
            await owner.ask("reader", "POST", "/api/shorten", {"url": "https://example.com/x"}),
            await owner.ask("reader", "DELETE", f"/api/urls/{code}"),
            await owner.ask("reader", "GET", "/api/stats/summary"),
        ]
        assert [said(answer) for answer in refused] == [LACKING] * 3
        assert (await owner.ask("writer", "GET", "/api/stats/summary")).status == 200
        assert (await owner.ask("writer", "PATCH", f"/api/urls/{code}", {"title": "by key"})).status == 200
        for method, path in (("GET", "keys"), ("POST", "keys"), ("DELETE", f"keys/{writer_id}"), ("GET", "me")):
            answer = await owner.ask("writer", method, f"/api/{path}", {} if method == "POST" else None)
            assert said(answer) == NOT_FOR_KEYS
        for path in ("/api/keys/resolve", "/api/keys/uses"):
            assert (await call("POST", path, {"key": writer, "uses": 0}, token=token)).status == 404, "for the inside"

        # A key survives a new password, and not its revocation.
        new = {"current": PASSWORD, "new": "another password of some length"}
        assert (await call("POST", "/api/auth/password", new, token=token)).status == 204
        signed_in = await call("POST", "/api/auth/login", {"email": email, "password": new["new"]})
        owner.token = signed_in.json["token"]
        assert (await owner.ask("writer", "GET", "/api/urls")).status == 200
        assert (await call("DELETE", f"/api/keys/{writer_id}", token=owner.token)).status == 204
        await eventually(lambda: is_refused(owner, "writer"), timeout=20)  # by its time alone it has a minute
        assert said(await owner.ask("writer", "GET", "/api/stats/summary", own_field=True)) == INVALID
        assert (await owner.ask("reader", "GET", "/api/urls")).status == 200
        assert [*await owner.listed()] == ["reader"]

        # Its uses are counted, also those of the last minute.
        await restart_gateway(platform)
        counted = await eventually(owner.all_counted)
        assert counted is not None
        assert counted["writer"]["status"] == "revoked"
        assert counted["reader"]["last_used_at"] is not None

        # With the account go its keys.
        gone = await call("DELETE", "/api/auth/me", {"password": new["new"]}, token=owner.token)
        assert gone.status == 204, gone.body
        await eventually(lambda: is_refused(owner, "reader"), timeout=20)
    await assert_no_trace(platform, listener, list(owner.made.values()))


async def is_refused(owner: Owner, name: str) -> bool:
    """Whether a key is good for nothing any more."""
    return said(await owner.ask(name, "GET", "/api/urls")) == INVALID


async def assert_no_trace(platform: Platform, listener: Any, keys: list[str]) -> None:
    """Keys are in no log, metric, table, file, event or command; their hashes and beginnings are, where they may be."""
    secrets = [key[16:].encode() for key in keys]
    hashes = [blake2b(key.encode(), digest_size=32).hexdigest().encode() for key in keys]
    counted = b"ratelimit:api_key:"
    found = await search(platform, listener, Strangers(), *secrets, *hashes, counted)
    assert {secret: found.seen.get(secret) for secret in secrets} == dict.fromkeys(secrets)
    assert {hashed for hashed in hashes if hashed in found.seen} != set(), "nobody looked where something is"
    if platform.mode == "distributed":
        assert found.seen[counted] == {"Redis"}, "it was listened to"
        assert found.seen[hashes[0]] >= {"RabbitMQ"}
