"""The embedded event bus under faults: a process that is killed, one beside it, a broken file."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refract.kernel.errors import Unavailable
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.messages import Binding, Message, Queue
from refract.runtime.ports import EventBus
from tests.support.buses import EmbeddedBuses, bodies, take
from tests.support.waiting import eventually


async def test_what_was_published_survives_a_kill(tmp_path: Path) -> None:
    here = EmbeddedBuses(tmp_path)
    acknowledged = await asyncio.to_thread(_publish_in_a_process_until_killed, here.path)
    queue = Queue("reader", (Binding("events", "#"),))
    bus = await here.open()
    async with bus.reader(queue) as reader:
        await bus.publish(Message("events", "key", b"the end", "id"))
        found = {}
        while b"the end" not in found:
            for delivery in await reader.next_batch():
                found[delivery.message.body] = delivery.redelivered
                await reader.acknowledge([delivery])
    await here.close()
    assert set(acknowledged) <= set(found)
    assert [body for body, redelivered in found.items() if redelivered] == [b"0", b"1", b"2"]


async def test_what_another_process_does_is_noticed(tmp_path: Path) -> None:
    here = EmbeddedBuses(tmp_path)
    serving, command_line = await here.open(), await here.open()
    queue = here.queue("reader", "#")
    gaps: list[None] = []
    await serving.listen([Binding(here.exchange, "#")], lambda _: None, lambda: gaps.append(None))
    async with serving.reader(queue) as reader:
        await serving.publish(here.message("key", b"dead"))
        await reader.bury((await take(reader, 1))[0], "poison")
        assert await command_line.replay(queue.name) == 1
        assert bodies(await asyncio.wait_for(take(reader, 1), 5)) == [b"dead"]
        await eventually(lambda: gaps)
        await eventually(lambda: _publishes(command_line, here.message("key", b"routed")))
        assert bodies(await asyncio.wait_for(take(reader, 1), 5)) == [b"routed"]
    await here.close()


async def test_a_file_that_cannot_be_used_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "bus.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(Unavailable, match="not a database"):
        await EmbeddedBus.open(tmp_path / "bus.sqlite")


async def _publishes(bus: EventBus, message: Message) -> bool:
    await bus.publish(message)
    return True


PUBLISHER = """
import asyncio, sys
from pathlib import Path
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.messages import Binding, Message, Queue

async def main():
    bus = await EmbeddedBus.open(Path(sys.argv[1]))
    async with bus.reader(Queue("reader", (Binding("events", "#"),), prefetch=3)) as reader:
        for number in range(1_000_000):
            await bus.publish(Message("events", "key", b"%d" % number, str(number)))
            print(number, flush=True)
            if number == 2:
                held = 0
                while held < 3:
                    held += len(await reader.next_batch())

asyncio.run(main())
"""


def _publish_in_a_process_until_killed(path: Path) -> list[bytes]:
    """Publish one after the other in a process, kill it in the middle, and return what it said was published."""
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(300)]
    process.kill()
    said += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    return [line.strip() for line in said if line.endswith(b"\n")]
