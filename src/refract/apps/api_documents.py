"""Writes docs/api from the code: what every service says of itself, as OpenAPI and as a page to read.

python -m refract.apps.api_documents docs/api
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from refract.apps.api_page import render_page
from refract.apps.builders import NAMES, Extras, build
from refract.apps.data_directory import DataDirectory
from refract.apps.own_settings import Defaults, read_settings
from refract.kernel.clock import SystemClock
from refract.runtime.edge import Application
from refract.runtime.embedded.cache import EmbeddedCache
from refract.runtime.embedded.database import EmbeddedDatabase
from refract.runtime.embedded.event_bus import EmbeddedBus
from refract.runtime.embedded.rate_limiter import EmbeddedRateLimiter
from refract.runtime.embedded.record_log import EmbeddedRecordLog
from refract.runtime.embedded.state_store import EmbeddedStateStore
from refract.runtime.environment import Environment
from refract.runtime.metrics import Metrics
from refract.runtime.migrations import migrate
from refract.runtime.service import Foundation
from refract.runtime.tokens import TokenVerifier

PAGE = "README.md"


def main() -> None:
    """Write the documents into the folder that is named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m refract.apps.api_documents FOLDER")
    write(Path(sys.argv[1]), asyncio.run(generate()))


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Make the folder's documents these and no others."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


async def generate() -> dict[str, str]:
    """The files by name: one for each service that has routes, and the page about all of them."""
    documents = {name: document for name, document in (await _documents()).items() if document.get("paths")}
    files = {
        f"{name}.json": json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for name, document in documents.items()
    }
    return {**files, PAGE: render_page(documents)}


async def _documents() -> dict[str, Any]:
    """What each service serves as its description, asked of the service itself: built as embedded mode builds it."""
    with TemporaryDirectory() as folder:
        directory = DataDirectory(Path(folder))
        async with AsyncExitStack() as stack:
            bus = await EmbeddedBus.open(directory.bus)
            stack.push_async_callback(bus.close)
            return {name: await _described(await _application(name, directory, bus, stack)) for name in NAMES}


async def _application(name: str, directory: DataDirectory, bus: EmbeddedBus, stack: AsyncExitStack) -> Application:
    clock = SystemClock()
    await migrate(name, directory.database(name))
    database = await EmbeddedDatabase.open(directory.database(name))
    stack.push_async_callback(database.close)
    secrets = directory.secrets()
    foundation = Foundation(
        database=database,
        bus=bus,
        clock=clock,
        metrics=Metrics(),
        tokens=TokenVerifier((secrets["JWT_SECRET"],), clock),
        outbox_retention=timedelta(days=1),
        records=EmbeddedRecordLog(directory.records),
    )
    defaults = Defaults("http://localhost:8080", secrets["CLICK_SALT"], directory.path / "spool")
    settings = read_settings(name, Environment({}), defaults)
    extras = Extras(EmbeddedCache(), EmbeddedRateLimiter(), secrets["JWT_SECRET"], EmbeddedStateStore(directory.state))
    service = await build(foundation, name, settings, extras)
    return service.application


async def _described(application: Application) -> Any:
    """The answer to GET /docs/openapi.json."""
    path = "/docs/openapi.json"
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "client": None,
    }
    messages: list[Mapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        messages.append(message)

    await application(scope, receive, send)
    assert messages[0]["status"] == 200, "every service describes itself"
    return json.loads(b"".join(message.get("body", b"") for message in messages[1:]))


if __name__ == "__main__":
    main()
