"""Watches links for whoever wants to see clicks come in: one statement for all of them, twice a second."""

import asyncio
import logging
from weakref import WeakSet

from refract.kernel.errors import Limited, RefractError
from refract.runtime.ports import Database
from refract.services.analytics.queries.statements import WATCH
from refract.services.analytics.queries.views import LiveView

log = logging.getLogger(__name__)

PAUSE = 0.5
"""Seconds between two looks: with the time that a look takes, a click is seen within a second of its commit."""

MOST_VIEWERS = 1_000
"""Of one process: each keeps a connection and a task, and is written to whenever its link is clicked."""

MOST_OF_ONE = 100
"""Of these for one user, so that nobody has all of them."""

FULL_SECONDS = 10.0
"""When to try again, as far as anybody can tell."""


class TooManyWatch(Limited):
    """There is no place left, or none for this user. No trouble of ours, to which a breaker would have to open."""

    message = "too many live streams"

    def __init__(self) -> None:
        super().__init__(FULL_SECONDS)


class Viewer:
    """Somebody who watches one link. Whoever is slow misses what was in between, and sees what is."""

    def __init__(self, user_id: str, seen: LiveView) -> None:
        self.user_id = user_id
        self.short_code = seen.short_code
        self._view = seen
        self._news = asyncio.Event()
        self._news.set()  # the first thing to be shown is what there is already
        self.is_over = False

    def show(self, view: LiveView) -> None:
        """Give it what there is now, if that is something else."""
        if view != self._view:
            self._view = view
            self._news.set()

    def end(self) -> None:
        """There will be nothing more."""
        self.is_over = True
        self._news.set()

    async def next(self, timeout: float) -> LiveView | None:
        """What there is, once it is new; None after so many seconds without news, or when it is over."""
        try:
            async with asyncio.timeout(timeout):
                await self._news.wait()
        except TimeoutError:
            return None
        self._news.clear()
        return None if self.is_over else self._view


class LiveWatch:
    """All viewers of this process. One whom nobody holds any more, as where a client left before its stream began,
    is none."""

    def __init__(
        self, database: Database, *, pause: float = PAUSE, most: int = MOST_VIEWERS, most_of_one: int = MOST_OF_ONE
    ) -> None:
        self._database = database
        self._pause = pause
        self._most = most
        self._most_of_one = most_of_one
        self._viewers: WeakSet[Viewer] = WeakSet()
        self._wanted = asyncio.Event()
        self._is_over = False

    @property
    def viewers(self) -> int:
        """How many watch."""
        return len(self._viewers)

    def enter(self, user_id: str, seen: LiveView) -> Viewer:
        """Watch a link, from what is known of it already; raises TooManyWatch when so many do that nobody else may."""
        if len(self._viewers) >= self._most:
            log.warning("nobody else may watch", extra={"viewers": len(self._viewers)})
            raise TooManyWatch
        if sum(viewer.user_id == user_id for viewer in self._viewers) >= self._most_of_one:
            raise TooManyWatch
        viewer = Viewer(user_id, seen)
        if self._is_over:
            viewer.end()
        self._viewers.add(viewer)
        self._wanted.set()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Watch no more."""
        self._viewers.discard(viewer)

    async def run(self) -> None:
        """Look, for as long as anybody does."""
        while True:
            await self._wanted.wait()
            if not self._viewers:
                self._wanted.clear()
                continue
            try:
                await self._look()
            except RefractError as error:
                # Viewers still hear that we are there, and see what they missed when the database is back.
                log.warning("watched links were not read: %s", error)
            await asyncio.sleep(self._pause)

    async def end(self) -> None:
        """Send everybody home."""
        self._is_over = True
        for viewer in tuple(self._viewers):
            viewer.end()

    async def _look(self) -> None:
        codes = sorted({viewer.short_code for viewer in self._viewers})
        rows = await self._database.fetch(WATCH, short_codes=codes)
        views = {
            row["short_code"]: LiveView(
                short_code=row["short_code"],
                total_clicks=row["clicks"],
                bot_clicks=row["bot_clicks"],
                last_clicked_at=row["last_clicked_at"],
            )
            for row in rows
        }
        for viewer in tuple(self._viewers):
            view = views.get(viewer.short_code)
            if view is not None:
                viewer.show(view)
