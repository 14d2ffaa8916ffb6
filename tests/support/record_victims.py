"""Processes of fault tests of the record log: one that publishes, one that reads and never commits, one that ends.

`python -m tests.support.record_victims <way> <address> <topic>`; each says what it has done, a line at a time.
"""

import asyncio
import sys
from contextlib import suppress

from refract.runtime.distributed import kafka_reader
from refract.runtime.ports import RecordLog
from refract.runtime.records import Topic
from tests.support.record_logs import log_at, numbers, records


async def publish(log: RecordLog, topic: Topic) -> None:
    """Say each number once it is safe."""
    await log.declare(topic)
    for number in range(1_000_000):
        await log.publish(*records(topic, number))
        print(number, flush=True)


async def read(log: RecordLog, topic: Topic) -> None:
    """Say each number that was handed out."""
    async with log.reader(topic, "group") as reader:
        while True:
            for number in numbers(await reader.next_batch()):
                print(number, flush=True)


async def leave(log: RecordLog, topic: Topic) -> None:
    """Say the numbers of a batch and wait for a line; then commit, do not wait for that, and end."""
    kafka_reader.SECONDS_TO_CLOSE = 0.5
    async with log.reader(topic, "group") as reader:
        batch = await reader.next_batch()
        print(*numbers(batch), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.commit(batch)
    await log.close()


async def _main(way: str, address: str, topic: str) -> None:
    await {"publish": publish, "read": read, "leave": leave}[way](await log_at(address), Topic(topic))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
