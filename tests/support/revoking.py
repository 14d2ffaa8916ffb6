"""The gateway's side of revocations in one mode: identity behind it, a bus beside it, and what it knows."""

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refract.kernel.ids import new_event_id
from refract.runtime.messages import Message
from refract.runtime.outbox import Relay
from refract.runtime.ports import EventBus
from refract.runtime.tokens import Claims, TokenVerifier
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.domain.headers import UpstreamFailed
from refract.services.gateway.domain.revocations import Revocations
from refract.services.gateway.ports import Services
from refract.services.gateway.reactions import RevocationWatch
from refract.services.identity.api import UserRevoked
from refract.services.identity.commands.revoking import revoke_all
from refract.services.identity.domain.accounts import User
from tests.support.clocks import START
from tests.support.databases import Location
from tests.support.identity import SECRET, IdentityWorld

ALICE = str(uuid.uuid4())
"""Another in every process: what is said of her goes to an exchange that all of them share."""
LATER = START + timedelta(days=1)


@dataclass
class Counting:
    """A way to identity that counts the questions, can be closed, and can hold an answer back."""

    services: Services
    asked: int = 0
    away: bool = False
    before: Callable[[], Any] | None = None

    async def fetch(self, target: str, path: str, query: Mapping[str, str]) -> bytes:
        """Ask, unless identity is away."""
        self.asked += 1
        if self.away:
            raise UpstreamFailed("ConnectionRefusedError")
        answer = await self.services.fetch(target, path, query)
        if self.before is not None:
            await self.before()
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.services, name)


@dataclass
class Door:
    """What the gateway has of it all: identity behind it, a bus, and what it knows."""

    identity: IdentityWorld
    services: Counting
    bus: EventBus
    stack: AsyncExitStack
    revocations: Revocations = field(default_factory=Revocations)

    def watch(self, *, bus: EventBus | None = None, alone: bool = False, **seconds: Any) -> RevocationWatch:
        """A watch that in the time of a test looks by itself only where it is told to."""
        chosen = None if alone else bus or self.bus
        return RevocationWatch(self.services, chosen, self.revocations, self.identity.clock, **seconds)

    async def user(self) -> tuple[User, str, Claims]:
        """Somebody who is signed in."""
        user = await self.identity.add(f"{new_event_id()}@example.com")
        token = self.identity.signer.sign(user.id, user.email).token
        return user, token, TokenVerifier([SECRET], self.identity.clock).verify(token)

    def relay(self) -> Relay:
        """Identity's own, which sends what is in the outbox."""
        [relay] = [task for task in self.identity.service.tasks if task.name == "relay"]
        return relay.run.__self__  # type: ignore[attr-defined, no-any-return]

    async def sign_out(self, token: str) -> None:
        """POST /logout, at identity itself."""
        assert (await self.identity.call("POST", "/logout", token=token)).status == 204

    async def end_all(self, user: User) -> None:
        """End every token of a user."""
        async with self.identity.database.transaction() as tx:
            await revoke_all(tx, user.id, START)

    async def publish(self, *events: UserRevoked) -> None:
        """Say something in identity's name, past the outbox."""
        for event in events:
            await self.bus.publish(Message.of(event.stamped("c")))

    def dead(self, claims: Claims) -> bool:
        """Whether the gateway takes a token for dead."""
        return self.revocations.is_revoked(claims)


@pytest.fixture
async def door(identity: IdentityWorld, empty_location: Location) -> AsyncIterator[Door]:
    """The gateway's side, in the same mode as identity."""
    await identity.serve()
    async with AsyncExitStack() as stack:
        if isinstance(empty_location, Path):
            services: Services = InProcess({"identity": identity.service.application})
            # In one process there is one bus.
            [bus] = identity.buses._open
        else:
            services = Proxy({"identity": f"http://127.0.0.1:{identity.port}"})
            stack.push_async_callback(services.close)
            bus = await identity.buses.open()
        yield Door(identity, Counting(services), bus, stack)


def revoked(user: str = ALICE, **what: Any) -> UserRevoked:
    """An event of identity."""
    return UserRevoked(occurred_at=START, user_id=user, until=LATER, **what)


def claims(user: str = ALICE, token_id: str = "", generation: int = 0) -> Claims:
    """A token that is good otherwise."""
    return Claims(user, "", START, LATER, token_id, generation=generation)
