"""API keys as their owners and the gateway see them, at identity itself."""

from dataclasses import dataclass
from typing import Any

from refract.runtime.ports import Row
from refract.runtime.statements import Statement
from refract.services.identity.domain.accounts import User
from tests.support.http import Answer
from tests.support.identity import IdentityWorld

ROWS = Statement("rows", "Reads every key.", "SELECT * FROM api_keys ORDER BY id")

READER: dict[str, Any] = {"name": "Blog", "scopes": ["links:read"]}
SENDER: dict[str, Any] = {"name": "Codes", "scopes": ["sms:send"], "sms_user_id": 101}


@dataclass(frozen=True)
class Owner:
    """Somebody who is signed in, and what they do about keys."""

    identity: IdentityWorld
    user: User
    token: str

    async def asks(self, **changes: Any) -> Answer:
        """POST /keys with a good body, but for these changes."""
        return await self.identity.call("POST", "/keys", {**READER, **changes}, token=self.token)

    async def makes(self, **changes: Any) -> dict[str, Any]:
        """A new key, as its owner is told of it."""
        answer = await self.asks(**changes)
        assert answer.status == 201, answer.body
        made: dict[str, Any] = answer.json
        return made

    async def revokes(self, key_id: object) -> Answer:
        """DELETE /keys/{id}."""
        return await self.identity.call("DELETE", f"/keys/{key_id}", token=self.token)

    async def lists(self, query: str = "") -> Answer:
        """GET /keys."""
        return await self.identity.call("GET", f"/keys{query}", token=self.token)

    async def sees(self, query: str = "") -> list[dict[str, Any]]:
        """The keys of a page."""
        answer = await self.lists(query)
        assert answer.status == 200, answer.body
        keys: list[dict[str, Any]] = answer.json["keys"]
        return keys


async def owner(identity: IdentityWorld, email: str = "alice@example.com", **changes: Any) -> Owner:
    """A new user who is signed in."""
    user = await identity.add(email, None, **changes)
    return Owner(identity, user, signed(identity, user))


def signed(identity: IdentityWorld, user: User, **claims: Any) -> str:
    """A token of a user."""
    return identity.signer.sign(user.id, user.email, role=user.role, **claims).token


async def resolve(identity: IdentityWorld, key: object, **more: Any) -> Answer:
    """POST /keys/resolve, as the gateway asks."""
    return await identity.call("POST", "/keys/resolve", {"key": key, **more})


async def kept(identity: IdentityWorld) -> list[Row]:
    """The rows of all keys."""
    return await identity.database.fetch(ROWS)


async def told(identity: IdentityWorld, event_type: str) -> list[dict[str, Any]]:
    """What was announced under a name."""
    return [event["payload"]["payload"] for event in await identity.announced() if event["event_type"] == event_type]
