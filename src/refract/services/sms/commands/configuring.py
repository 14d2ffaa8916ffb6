"""Setting a user's limit: the row begins anew, and the copy of the old one goes."""

import asyncio
import logging
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from refract.kernel.clock import Clock
from refract.kernel.errors import Unavailable
from refract.runtime.ports import Database
from refract.services.sms.commands.copying import Copies
from refract.services.sms.domain.limits import LARGEST_NUMBER, Algorithm
from refract.services.sms.domain.sends import DatabaseAway, UserId
from refract.services.sms.store.limits import configure

log = logging.getLogger(__name__)

PATIENCE = 8.0
"""Seconds that the database has: a little less than the server gives a request."""

Positive = Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)]


class ConfigRequest(Struct, frozen=True, rename="camel"):
    """A limit for a user: so many sends in so many minutes."""

    user_id: UserId
    rate_limit: Positive
    time_window: Positive
    algorithm: Algorithm = "fixed"


class Configured(Struct, frozen=True, rename="camel"):
    """A limit as it was set."""

    user_id: int
    rate_limit: int
    time_window: int
    current_count: int
    last_refresh_time: datetime
    algorithm: Algorithm


class Configuring:
    """Sets limits. Redis may be away: a copy that stays behind is dropped as soon as it is back, or ends by itself."""

    def __init__(self, database: Database, copies: Copies | None, clock: Clock) -> None:
        self._database = database
        self._copies = copies
        self._clock = clock

    async def configure(self, request: ConfigRequest) -> Configured:
        """Set a limit, or set it anew; raises DatabaseAway."""
        try:
            async with asyncio.timeout(PATIENCE), self._database.transaction() as tx:
                refreshed = await configure(
                    tx,
                    request.user_id,
                    request.rate_limit,
                    request.time_window,
                    request.algorithm,
                    self._clock.now(),
                )
        except (Unavailable, TimeoutError) as error:
            raise DatabaseAway from error
        if self._copies is not None and not await self._copies.drop(request.user_id):
            log.warning("the copy of a limit was not dropped", extra={"user_id": request.user_id})
        return Configured(request.user_id, request.rate_limit, request.time_window, 0, refreshed, request.algorithm)
