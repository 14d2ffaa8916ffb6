"""A worker without a service, for tests of its parent: it answers with its process id, and has bad habits on request.

`python -m tests.support.crew_worker <folder>`: a file in the folder named like a habit and the worker's index, such as
`fail-0`, makes that worker do so; `fail` alone is for all of them.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from refract.apps import workers
from refract.apps.workers import Place
from refract.runtime.server import HttpServer


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Say who answers."""
    body = str(os.getpid()).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def main(folder: Path) -> None:
    """Work until a signal comes."""
    place = Place.taken()
    assert place is not None, "only a parent starts this"

    def has(habit: str) -> bool:
        return (folder / habit).exists() or (folder / f"{habit}-{place.index}").exists()

    (folder / f"started-{os.getpid()}").touch()
    if has("fail"):
        sys.exit(3)
    if has("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    while has("wait"):  # noqa: ASYNC110  # another process removes the file: there is no event to wait for
        await asyncio.sleep(0.01)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, (lambda: None) if has("ignore") else stopping.set)
    await place.permission()
    server = HttpServer(answer, sockets=place.sockets)
    await server.start()
    if has("stuck"):
        crews: Any = workers
        crews.GRACE = 0.3  # nobody changes it elsewhere
    place.ready()
    if has("crash"):
        sys.exit(4)
    if has("stuck"):
        time.sleep(60)  # noqa: ASYNC251  # a worker whose loop is stuck is what is tested
    await stopping.wait()
    await server.stop(1.0)


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
