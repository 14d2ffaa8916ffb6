"""The HTTP face of analytics in one mode: a real server on a database of clicks, and users with tokens."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from refract.runtime.callers import caller_from
from refract.runtime.edge import Application
from refract.runtime.ports import Database
from refract.runtime.server import HttpServer
from refract.runtime.tokens import TokenSigner, TokenVerifier
from refract.runtime.web import build_app
from refract.services.analytics.api import WIRE_NAME
from refract.services.analytics.commands.following import follow_links
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.http.routes import analytics_routes
from refract.services.analytics.queries.live import LiveWatch
from refract.services.links.api import UrlCreated, UrlDeleted, UrlUpdated
from tests.support.databases import Location
from tests.support.fronts import SECRET
from tests.support.http import Answer, Client, running
from tests.support.periods import PeriodsWorld, a_click, open_periods

OWNER, STRANGER = "owner", "somebody-else"
"""The first is whom the clicks of `a_click` belong to."""


@dataclass
class StatsWorld:
    """A server of analytics, and what stands behind it."""

    periods: PeriodsWorld
    watch: LiveWatch
    application: Application
    server: HttpServer

    @property
    def database(self) -> Database:
        """The database of the clicks."""
        return self.periods.database

    @property
    def now(self) -> datetime:
        """What the clock says."""
        return self.periods.clock.now()

    def token(self, user: str = OWNER) -> str:
        """A token of a user that is good now."""
        return TokenSigner(SECRET, self.periods.clock).sign(user, f"{user}@example.com").token

    async def get(self, path: str, *, user: str | None = OWNER, method: str = "GET", **query: Any) -> Answer:
        """Ask in the name of a user, or of nobody; `from_` is the parameter `from`."""
        text = urlencode({name.rstrip("_"): value for name, value in query.items()})
        headers = [] if user is None else [f"Authorization: Bearer {self.token(user)}"]
        async with await Client.connect(self.server.port) as client:
            return await client.get(f"/stats/{path}{'?' if text else ''}{text}", *headers, method=method)

    async def read(self, path: str, *, user: str | None = OWNER, **query: Any) -> Any:
        """The body of a good answer."""
        answer = await self.get(path, user=user, **query)
        assert answer.status == 200, answer.body
        return answer.json

    async def click(self, *moments: datetime, code: str = "abc", **values: Any) -> list[Click]:
        """Count clicks at these moments."""
        clicks = [self.made(moment, code, **values) for moment in moments]
        await self.periods.count(*clicks)
        return clicks

    def made(self, moment: datetime, code: str = "abc", **values: Any) -> Click:
        """A click that is not counted yet."""
        return a_click(moment, code, **values)

    async def fold(self) -> None:
        """Keep house, as it is done every minute."""
        await self.periods.house().keep_house()

    async def create(self, code: str = "abc", *, user: str = OWNER, order: int = 1, **fields: Any) -> None:
        """Hear that a link was made."""
        await self._hear(UrlCreated, code, user, order, original_url="https://example.com/", **fields)

    async def update(self, code: str = "abc", *, user: str = OWNER, order: int = 2, **fields: Any) -> None:
        """Hear that a link was changed."""
        await self._hear(UrlUpdated, code, user, order, original_url="https://example.com/", **fields)

    async def delete(self, code: str = "abc", *, user: str = OWNER, order: int = 9) -> None:
        """Hear that a link was deleted."""
        await self._hear(UrlDeleted, code, user, order)

    async def _hear(self, event: Any, code: str, user: str, order: int, **fields: Any) -> None:
        made = event(
            occurred_at=self.now,
            event_id=event.new_id(),
            short_code=code,
            user_id=user,
            user_email=f"{user}@example.com",
            order=order,
            **fields,
        )
        async with self.database.transaction() as tx:
            await follow_links(tx, [made])


def application_of(periods: PeriodsWorld, watch: LiveWatch, *, stats_public: bool = True) -> Application:
    """The application of analytics, as the service has it."""
    tokens = TokenVerifier([SECRET], periods.clock)
    routes = analytics_routes(periods.database, periods.clock, tokens, watch, stats_public=stats_public)
    return build_app(WIRE_NAME, routes, ready={}, dependencies={"caller": caller_from(tokens)})


@asynccontextmanager
async def open_stats(location: Location, *, stats_public: bool = True) -> AsyncIterator[StatsWorld]:
    """A world on an empty database."""
    async with open_periods(location) as periods:
        watch = LiveWatch(periods.database, pause=0.05)
        application = application_of(periods, watch, stats_public=stats_public)
        async with running(application) as server:
            yield StatsWorld(periods, watch, application, server)


@pytest.fixture
async def stats(empty_location: Location) -> AsyncIterator[StatsWorld]:
    """Analytics in both modes; it is noon on the first of March."""
    async with open_stats(empty_location) as world:
        yield world


@pytest.fixture
async def closed_stats(empty_location: Location) -> AsyncIterator[StatsWorld]:
    """The same, closed for the instance."""
    async with open_stats(empty_location, stats_public=False) as world:
        yield world
