"""All routes of sms, with their errors in plain text."""

from collections.abc import Sequence
from typing import Any

from litestar import Router

from refract.services.sms.commands.configuring import Configuring
from refract.services.sms.commands.sending import Sending
from refract.services.sms.http.configuring import configuring_routes
from refract.services.sms.http.sending import sending_routes
from refract.services.sms.http.texts import render_text


def sms_routes(configuring: Configuring, sending: Sending, others: Sequence[Any] = ()) -> list[Any]:
    """The handlers on the commands that they are given, and others that answer in the same way."""
    handlers = [*configuring_routes(configuring), *sending_routes(sending), *others]
    return [Router("/", route_handlers=handlers, exception_handlers={Exception: render_text})]
