"""Records the milestones of links, and announces each once, in the transaction that counts the clicks."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime

from refract.runtime.correlation import correlated
from refract.runtime.ports import Transaction
from refract.services.analytics.api import MilestoneReached
from refract.services.analytics.domain.clicks import Click
from refract.services.analytics.domain.milestones import passed
from refract.services.analytics.store.clicks import Owner, add_milestones, find_owners

logger = logging.getLogger("refract.analytics")


async def record_milestones(
    tx: Transaction,
    totals: Mapping[str, int],
    by_code: Mapping[str, Sequence[Click]],
    thresholds: Sequence[int],
    now: datetime,
) -> None:
    """Record what the totals have just passed. The caller has the totals locked: nobody else passes the same.

    Each click of a batch counts by itself: the one that reached a milestone is the one that is named.
    """
    reached: dict[tuple[str, int], Click] = {}
    for code, total in totals.items():
        before = total - len(by_code[code])
        for milestone in passed(before, total, thresholds):
            reached[code, milestone] = by_code[code][milestone - before - 1]
    if not reached:
        return
    recorded = await add_milestones(tx, reached, now)
    owners = await find_owners(tx, {code for code, _ in recorded})
    for code, milestone in sorted(recorded):
        with correlated(reached[code, milestone].correlation_id):
            await _announce(tx, reached[code, milestone], milestone, totals[code], owners.get(code), now)


async def _announce(
    tx: Transaction, click: Click, milestone: int, total: int, owner: Owner | None, now: datetime
) -> None:
    extra = {"short_code": click.short_code, "milestone": milestone, "total": total, "event_id": click.event_id}
    logger.info("milestone crossed", extra=extra)
    if owner is None or not owner.user_id:
        return  # whoever would have been told has left
    await tx.announce(
        MilestoneReached(
            occurred_at=now,
            correlation_id=click.correlation_id,
            short_code=click.short_code,
            user_id=owner.user_id,
            user_email=owner.user_email,
            milestone=milestone,
            total_clicks=total,
        )
    )
