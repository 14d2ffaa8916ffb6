"""The route that sets limits."""

from typing import Annotated, Any

from litestar import post

from refract.runtime.describing import answers, body
from refract.runtime.web import takes_body
from refract.services.sms.commands.configuring import ConfigRequest, Configured, Configuring
from refract.services.sms.http.bodies import LARGEST_BODY
from refract.services.sms.http.describing import CONFIG, CONFIGURED, TAGS, errors


def configuring_routes(configuring: Configuring) -> list[Any]:
    """POST /api/config."""

    @post(
        "/api/config",
        status_code=200,
        summary="Set a user's limit",
        description=(
            "At most `rateLimit` messages in `timeWindow` minutes, counted from now. A `fixed` window begins with the "
            "first message after the last one is over; with `sliding`, no interval of that length has more."
        ),
        tags=TAGS,
        responses={200: answers(Configured, "The limit as it is now.", CONFIGURED), **errors(400)},
        **takes_body(LARGEST_BODY),
    )
    async def configure(data: Annotated[ConfigRequest, body(CONFIG, {**CONFIG, "algorithm": "sliding"})]) -> Configured:
        return await configuring.configure(data)

    return [configure]
