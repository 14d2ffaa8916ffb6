"""A process that reads clicks until it is ended: `python -m tests.support.click_reader <readers>`.

Where to read from comes on the standard input, as JSON: the DSN, the address of the bus, the exchange and the queue.
"""

import asyncio
import json
import sys

import uvloop

from refract.kernel.clock import SystemClock
from refract.runtime.distributed.event_bus import RabbitBus
from refract.runtime.inbox import Inbox
from refract.runtime.messages import Binding, Queue
from refract.runtime.metrics import Metrics
from refract.services.analytics.reactions import clicks
from refract.services.links.api import UrlClicked
from tests.support.counting import ingesting
from tests.support.databases import open_database


async def _main(readers: int, dsn: str, url: str, exchange: str, name: str, prefetch: int) -> None:
    database, bus, clock = await open_database(dsn), RabbitBus(url), SystemClock()
    await bus.start()
    queue = Queue(name, (Binding(exchange, UrlClicked.routing_key()),), prefetch)
    metrics = Metrics()
    async with asyncio.TaskGroup() as group:
        for reaction in clicks(ingesting(clock), readers):
            inbox = Inbox(
                queue, reaction.decoder, reaction.handle, database=database, bus=bus, clock=clock, metrics=metrics
            )
            group.create_task(inbox.run())
        print("reading", flush=True)


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), *json.loads(sys.stdin.readline())))
