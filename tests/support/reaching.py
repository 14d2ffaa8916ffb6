"""Both ways of the gateway to a service, which an application of the test plays."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from refract.runtime.edge import Application
from refract.services.gateway.adapters.in_process import InProcess
from refract.services.gateway.adapters.proxy import Proxy
from refract.services.gateway.ports import Services
from tests.support.fronts import url_of
from tests.support.http import running

Reach = Callable[[Application], Awaitable[Services]]


@pytest.fixture(params=["in_process", "proxy"])
async def reach(request: pytest.FixtureRequest) -> AsyncIterator[Reach]:
    """A way to an application that plays identity."""
    async with AsyncExitStack() as stack:

        async def open_way(application: Application) -> Services:
            if request.param == "in_process":
                return InProcess({"identity": application})
            server = await stack.enter_async_context(running(application))
            services = Proxy({"identity": url_of(server)}, connect_timeout=30.0)
            stack.push_async_callback(services.close)
            return services

        yield open_way
