"""A process that delivers until it is killed: `python -m tests.support.delivery_victim`, orders on its input."""

import asyncio
import json
import sys
from pathlib import Path

from tests.support.databases import open_database
from tests.support.deliveries import Deliveries
from tests.support.mail_servers import PostOffice


async def _main(orders: str) -> None:
    location, embedded, channel, port = json.loads(orders)
    place = Path(location) if embedded else location
    deliveries = Deliveries(place, await open_database(place))
    lane = deliveries.mail_lane(PostOffice(port=port).settings()) if channel == "email" else deliveries.webhook_lane()
    await lane.run()


if __name__ == "__main__":
    asyncio.run(_main(sys.stdin.read()))
