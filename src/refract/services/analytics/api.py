"""What others may know of analytics: where the service answers, and the milestones of a link."""

from typing import Annotated

from msgspec import Meta

from refract.kernel.events import LinkEvent

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
