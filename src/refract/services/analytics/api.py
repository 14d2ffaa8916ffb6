"""What others may know of analytics: where the service answers, a link's milestones, and how often links were used."""

from typing import Annotated

from msgspec import Meta, Struct

from refract.kernel.events import LinkEvent, Moment

NAME = "analytics"
WIRE_NAME = "analytics-service"
PORT = 8082

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class MilestoneReached(LinkEvent, frozen=True, kw_only=True, tag="milestone.reached"):
    """The clicks of a link passed a threshold; `total_clicks` is how many there were at that moment."""

    short_code: str
    user_id: str
    user_email: str
    milestone: Count
    total_clicks: Count


class LinkTotal(Struct, frozen=True, kw_only=True):
    """All clicks of a link so far, and when the last of them was."""

    short_code: str
    total_clicks: Count
    last_clicked_at: Moment


class StatsTotals(LinkEvent, frozen=True, kw_only=True, tag="stats.totals"):
    """Links were clicked: how often in all. Of two that name the same link, the higher total is the later one."""

    totals: tuple[LinkTotal, ...]
