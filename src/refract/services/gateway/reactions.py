"""What the gateway hears: tokens and keys that were taken back, as it happens, and from identity what it has missed."""

import asyncio
import logging

import msgspec
from msgspec import Struct

from refract.kernel.clock import Clock
from refract.kernel.errors import PoisonMessage, RefractError, Unavailable
from refract.kernel.events import PLATFORM_EXCHANGE, EventDecoder, Moment
from refract.runtime.messages import Binding, Message
from refract.runtime.ports import EventBus
from refract.services.gateway.domain.keys import KnownKeys
from refract.services.gateway.domain.revocations import Revocation, Revocations
from refract.services.gateway.ports import Services
from refract.services.identity.api import NAME as IDENTITY
from refract.services.identity.api import ApiKeyRevoked, UserRevoked

logger = logging.getLogger("refract.gateway.revocations")

RELOAD_SECONDS = 60.0
"""All that a gateway without a bus has; with one, a net below it: what identity could not send is known by then."""

RETRY_SECONDS = 1.0

BINDINGS = tuple(Binding(PLATFORM_EXCHANGE, event.routing_key()) for event in (UserRevoked, ApiKeyRevoked))

_events = EventDecoder(UserRevoked, ApiKeyRevoked)


class _Listed(Struct, frozen=True):
    user_id: str
    until: Moment
    token_id: str = ""
    generation: int = 0


class _Page(Struct, frozen=True):
    revocations: list[_Listed]
    next_cursor: str = ""


_pages = msgspec.json.Decoder(_Page)


class RevocationWatch:
    """Keeps the gateway's revocations as they are at identity. It never stops the door: what is known counts.

    Of `keys` nobody keeps a list: one that was revoked is forgotten, and after a gap all are, and asked for again.
    """

    def __init__(
        self,
        services: Services,
        bus: EventBus | None,
        revocations: Revocations,
        clock: Clock,
        *,
        keys: KnownKeys | None = None,
        reload_seconds: float = RELOAD_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._services = services
        self._bus = bus
        self._revocations = revocations
        self._clock = clock
        self._keys = KnownKeys(clock) if keys is None else keys
        self._reload_seconds = reload_seconds
        self._retry_seconds = retry_seconds
        self._missed = asyncio.Event()
        self._begun = False
        self._away = False

    async def begin(self) -> None:
        """Hear from now on, and then load what there is, if identity answers: before the door opens."""
        if not self._begun:
            self._begun = True
            if self._bus is not None:
                await self._bus.listen(BINDINGS, self._hear, self._miss)
            await self.load()

    async def run(self) -> None:
        """Load again after every gap, and every minute in any case; every second while something is away."""
        await self.begin()
        while True:
            await self._until_due()
            if not await self.load():
                await asyncio.sleep(self._retry_seconds)

    async def load(self) -> bool:
        """Ask identity for everything that is alive; False where it does not answer, and will be asked again."""
        self._missed.clear()  # first: whatever is missed while it is asked is a reason to ask again
        try:
            await self._load_pages()
        except (RefractError, ValueError, RecursionError) as error:  # the last two: it cannot be read
            self._missed.set()
            if not self._away:
                logger.warning("cannot load revocations; going on with those known", extra={"reason": str(error)})
            self._away = True
            return False
        if self._away:
            logger.info("revocations loaded", extra={"known": len(self._revocations)})
        self._away = False
        return True

    async def _load_pages(self) -> None:
        self._revocations.forget(self._clock.now())
        query: dict[str, str] = {}
        while True:
            page = _pages.decode(await self._services.fetch(IDENTITY, "/revocations", query))
            for listed in page.revocations:
                self._apply(Revocation(listed.user_id, listed.until, listed.token_id, listed.generation))
            if not page.next_cursor:
                return
            query = {"after": page.next_cursor}

    def _hear(self, message: Message) -> None:
        try:
            events = _events.decode(message.routing_key, message.body)
        except PoisonMessage as error:
            logger.warning("a revocation in a form that we do not know", extra={"reason": str(error)})
            self._miss()
            return
        for event in events:
            if isinstance(event, ApiKeyRevoked):
                self._keys.forget(event.key_hash)
            else:
                assert isinstance(event, UserRevoked)
                self._apply(Revocation(event.user_id, event.until, event.token_id, event.generation))

    def _miss(self) -> None:
        self._missed.set()
        self._keys.forget_all()

    def _apply(self, revocation: Revocation) -> None:
        before = self._revocations.all_dead_until
        if self._revocations.apply(revocation) and not revocation.token_id:
            self._keys.forget_user(revocation.user_id)
        if self._revocations.all_dead_until != before:
            until = self._revocations.all_dead_until.isoformat()
            logger.error("more revocations than there is room for; older tokens are refused", extra={"until": until})

    async def _until_due(self) -> None:
        """Return after a gap, at the end of the minute, or a second after the bus was found away."""
        try:
            async with asyncio.timeout(self._reload_seconds):
                while not await self._missed_within(self._retry_seconds) and await self._hears():
                    pass
        except TimeoutError:
            return

    async def _missed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._missed.wait()
        except TimeoutError:
            return False

    async def _hears(self) -> bool:
        if self._bus is None:
            return True  # it never did, and waits for the minute
        try:
            await self._bus.ping()
        except Unavailable:
            return False
        return True
