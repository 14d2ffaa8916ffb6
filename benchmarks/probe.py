"""Asks for /health at a steady rate and prints what it saw: a program of its own, so that nothing shares its loop.

probe.py PORT SECONDS RATE    prints {"latencies": […], "lateness": […]}, in milliseconds
"""

import asyncio
import gc
import json
import sys
import time

CONNECTIONS = 4
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE = 10.0


async def probe(port: int, seconds: float, rate: float) -> dict[str, list[float]]:
    """Ask over a few connections in turn."""
    seen: dict[str, list[float]] = {"latencies": [], "lateness": []}
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    begin = time.perf_counter() + 0.05
    due = [begin + number / rate for number in range(int(seconds * rate))]
    async with asyncio.timeout(seconds + PATIENCE):
        visits = (_visit(*connection, due[index::CONNECTIONS], seen) for index, connection in enumerate(connections))
        await asyncio.gather(*visits)
    for _, writer in connections:
        writer.close()
    return seen


async def _visit(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, due: list[float], seen: dict[str, list[float]]
) -> None:
    for begin in due:
        begun = begin
        delay = begin - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
            # Woken late is our delay; a request that had to wait for the answer before it waits for the server.
            begun = time.perf_counter()
            seen["lateness"].append(1000 * (begun - begin))
        writer.write(REQUEST)
        answer = await reader.readuntil(b"}")
        seen["latencies"].append(1000 * (time.perf_counter() - begun))
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"/health answered {answer!r}")


if __name__ == "__main__":
    gc.disable()
    print(json.dumps(asyncio.run(probe(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))))
