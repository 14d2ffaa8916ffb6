"""Reads one link of an owner, or a page of them."""

import logging
from collections.abc import Sequence

from msgspec import UNSET

from refract.kernel.clock import Clock
from refract.kernel.errors import Forbidden, NotFound
from refract.runtime.ports import Database, Row
from refract.services.links.domain.link import Owner
from refract.services.links.queries.paging import Cursor, PageRequest
from refract.services.links.queries.searching import Searches
from refract.services.links.queries.statements import FIND_VIEW, Shape, page_parameters, page_statement
from refract.services.links.queries.views import LinkPage, LinkView, LinkViews

log = logging.getLogger(__name__)


class LinkQueries:
    """The links of this database, straight from rows to what is shown."""

    def __init__(self, database: Database, clock: Clock, views: LinkViews) -> None:
        self._database = database
        self._clock = clock
        self._views = views
        self._searches = Searches(database)

    async def one(self, owner: Owner, short_code: str) -> LinkView:
        """The owner's link with this code, in whatever status; NotFound, or Forbidden where it is another's."""
        row = await self._database.fetch_one(FIND_VIEW, short_code=short_code)
        if row is None:
            raise NotFound
        if row["workspace_id"] != owner.workspace_id:
            log.warning("another's link asked for", extra={"user_id": owner.user_id, "short_code": short_code})
            raise Forbidden
        return self._views.of_row(row)

    async def page(self, owner: Owner, request: PageRequest) -> LinkPage:
        """A page of the owner's links."""
        rows = await self._rows(owner.workspace_id, request)
        shown = rows[: request.limit]
        goes_on = len(rows) > request.limit
        return LinkPage(
            urls=[self._views.of_row(row) for row in shown],
            next_cursor=Cursor.at(shown[-1], request.sort).write(request.sort) if goes_on else UNSET,
        )

    async def _rows(self, workspace_id: str, request: PageRequest) -> Sequence[Row]:
        if request.finds_nothing:
            return []
        statement = page_statement(Shape.of(request))
        parameters = {"workspace_id": workspace_id, "now": self._clock.now(), **page_parameters(request)}
        if request.searches:
            return await self._searches.fetch(workspace_id, statement, **parameters)
        return await self._database.fetch(statement, **parameters)
