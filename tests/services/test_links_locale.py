"""Links in a database that sorts as people do, where the test servers sort by bytes: what is shown is the same."""

from refract.runtime.migrations import migrate
from refract.services.links.domain.drafts import checked_tags
from refract.services.links.queries.paging import PageRequest
from refract.services.links.queries.statements import FIND_VIEW, Shape, page_parameters, page_statement
from refract.services.links.store import find_by_keys
from tests.support.clocks import START
from tests.support.databases import make_empty, open_database
from tests.support.links import ALICE, keep, some_link

AMERICAN = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'"
TAGS = checked_tags(["b", "A", "a", "B", "Zoo", "zoo", "a-b", "ab", "äb", "Ж", "ж", "1", "10", "2"])
KEY = b"k" * 32


async def test_order_and_case_do_not_depend_on_the_locale(unmade_database: str) -> None:
    await make_empty(unmade_database, AMERICAN)
    await migrate("links", unmade_database)
    database = await open_database(unmade_database)
    try:
        await keep(database, some_link(1, tags=TAGS, url_key=KEY, title="Жук GRÖSSE"), some_link(2, tags=("Zoo",)))
        view = await database.fetch_one(FIND_VIEW, short_code=some_link(1).short_code)
        assert view is not None
        assert tuple(view["tags"]) == TAGS
        async with database.transaction() as tx:
            assert (await find_by_keys(tx, ALICE.workspace_id, [KEY]))[KEY].tags == TAGS
        for asked, ids in (
            (PageRequest(), [2, 1]),
            (PageRequest(tag="Zoo"), [2, 1]),
            (PageRequest(tag="zoo"), [1]),
            (PageRequest(text="жуК gröss"), [1]),
            (PageRequest(text="Zoo"), []),
        ):
            rows = await database.fetch(
                page_statement(Shape.of(asked)), workspace_id=ALICE.workspace_id, now=START, **page_parameters(asked)
            )
            assert [row["id"] for row in rows] == ids, asked
            assert all(tuple(row["tags"]) in (TAGS, ("Zoo",)) for row in rows)
    finally:
        await database.close()
