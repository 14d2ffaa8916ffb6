"""Writes docs/api from the code: what every service says of itself, and what of it is public, as OpenAPI and as pages.

python -m refract.apps.api_documents docs/api src/refract/services/gateway/http/served

The second folder belongs to the package: the gateway serves what is in it.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from refract.apps.api_page import render_page
from refract.apps.builders import NAMES, Extras, build
from refract.apps.data_directory import DataDirectory
from refract.apps.own_settings import Defaults, read_settings
from refract.apps.public_document import public_document
from refract.apps.public_page import render_public_page
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
from refract.services.gateway.api import NAME as GATEWAY
from refract.services.gateway.http.documents import DOCUMENT
from refract.services.gateway.http.documents import PAGE as DOCUMENT_PAGE

PAGE = "README.md"
PUBLIC = f"{GATEWAY}.json"


def main() -> None:
    """Write the documents into the two folders that are named."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m refract.apps.api_documents FOLDER SERVED_FOLDER")
    generated = asyncio.run(generate())
    write(Path(sys.argv[1]), generated.described)
    write(Path(sys.argv[2]), generated.served)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Make the folder's documents these and no others."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.json"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Generated:
    """Texts by the names of their files."""

    described: Mapping[str, str]
    """For readers of the repository: a document of each service that has routes, the public one, and a page of all."""
    served: Mapping[str, str]
    """For the gateway: the public document, and the page of it."""


async def generate() -> Generated:
    """All there is to write."""
    documents = {name: document for name, document in (await _documents()).items() if document.get("paths")}
    public = public_document(documents)
    described = {
        f"{name}.json": json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for name, document in documents.items()
    }
    # Its operations keep the order of the gateway's table, in which the page shows them, too.
    described[PUBLIC] = json.dumps(public, indent=2, ensure_ascii=False) + "\n"
    compact = json.dumps(public, separators=(",", ":"), ensure_ascii=False)
    served = {DOCUMENT: compact, DOCUMENT_PAGE: render_public_page(public)}
    return Generated({**described, PAGE: render_page(documents)}, served)


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
