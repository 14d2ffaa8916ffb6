"""docs/api is what the code generates, completely and every time."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from refract.apps.api_documents import PUBLIC, Generated, generate, write
from refract.apps.api_page import MARKDOWN, render_page
from refract.apps.schema_words import in_words

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "api"
SERVED = ROOT / "src" / "refract" / "services" / "gateway" / "http" / "served"
METHODS = ("get", "post", "put", "patch", "delete")

DOCUMENT: dict[str, Any] = {
    "paths": {
        "/urls": {
            "get": {
                "summary": "List links",
                "description": "Page by page.",
                "parameters": [
                    {"name": "sort", "in": "query", "schema": {"type": "string", "enum": ["a", "b"], "default": "a"}},
                    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "default": 20}},
                ],
                "responses": {
                    "200": {
                        "description": "A page.",
                        "content": {
                            "application/json": {
                                "schema": {"$ref": "#/components/schemas/Page"},
                                "examples": {"one": {"value": {"urls": []}}},
                            }
                        },
                    },
                    "400": {"description": "One | another.", "content": {}},
                },
            },
            "head": {"summary": "List links", "responses": {}},
        },
        "/urls/{code}": {
            "patch": {
                "summary": "Change a link",
                "parameters": [
                    {"name": "X-Key", "in": "header", "schema": {"type": "string", "minLength": 1, "maxLength": 9}},
                    {"name": "code", "in": "path", "required": True, "schema": {"type": "string", "maxLength": 50}},
                ],
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {
                                "allOf": [{"$ref": "#/components/schemas/Body"}],
                                "examples": [{"title": "Été"}],
                            }
                        }
                    }
                },
                "responses": {"200": {"description": "It.", "content": {"image/png": {"schema": {"type": "string"}}}}},
            }
        },
        "/inside": {"get": {"summary": "For us", "responses": {}}},
    },
    "components": {
        "schemas": {
            "Page": {
                "description": "Some links.",
                "properties": {
                    "urls": {"type": "array", "items": {"type": "string", "format": "uri"}},
                    "next": {"oneOf": [{"type": "string"}, {"type": "null"}]},
                    "anything": {},
                },
                "required": ["urls"],
            },
            "Body": {"properties": {"force": {"type": "boolean", "default": False, "description": "Always."}}},
        }
    },
}


def texts_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.exists() else {}


@pytest.fixture(scope="module")
def everything() -> Generated:
    return uvloop.run(generate())


@pytest.fixture(scope="module")
def generated(everything: Generated) -> Mapping[str, str]:
    return everything.described


def test_the_documents_are_what_the_code_generates(everything: Generated) -> None:
    assert texts_in(FOLDER) == everything.described, "docs/api is out of date: run `make api`"
    assert texts_in(SERVED) == everything.served, "what the gateway serves is out of date: run `make api`"


def test_the_documents_are_the_same_every_time(everything: Generated, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "refract.apps.api_documents", str(tmp_path / "api"), str(tmp_path / "served")],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    assert texts_in(tmp_path / "api") == everything.described
    assert texts_in(tmp_path / "served") == everything.served


def test_nothing_is_left_that_a_library_says_of_statuses(everything: Generated) -> None:
    """Litestar describes an answer that nobody has described in the words of Python, and errors in its own."""
    of_python = {status.description for status in HTTPStatus if status.description}
    assert "Request fulfilled, document follows" in of_python
    for name, text in {**everything.described, **everything.served}.items():
        for words in of_python | {"Validation Exception", "Additional information"}:
            assert words not in text, f"{name} says: {words}"


def test_only_services_with_routes_have_a_document(generated: Mapping[str, str]) -> None:
    assert "links.json" in generated
    for name, text in generated.items():
        if name.endswith(".json") and name != PUBLIC:
            paths = msgspec.json.decode(text)["paths"]
            assert paths
            assert not paths.keys() & {"/health", "/ready", "/metrics"}


def test_the_page_has_every_operation(generated: Mapping[str, str]) -> None:
    page = generated["README.md"]
    for name, text in generated.items():
        if name.endswith(".json") and name != PUBLIC:
            operations = [
                (method, path, methods[method])
                for path, methods in msgspec.json.decode(text)["paths"].items()
                for method in METHODS
                if method in methods
            ]
            for method, path, operation in operations:
                inner = re.escape(path.removeprefix("/api"))  # of sms, which has an /api of its own
                heading = rf"^### {method.upper()}(, HEAD)? (/api/auth|/api/sms|/api|/r)?{inner}$"
                assert re.search(heading, page, re.MULTILINE)
                assert operation.get("summary"), f"{method} {path} does not say what it does"
                assert f"[{operation['summary']}](#" in page


def test_every_link_in_the_page_leads_somewhere(generated: Mapping[str, str]) -> None:
    page = generated["README.md"]
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9_\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= anchors
    assert set(re.findall(r"\]\(([^#)]*)\)", page)) <= generated.keys()


def test_what_no_longer_belongs_there_is_removed(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, {"new.json": "{}\n"})
    assert {path.name for path in tmp_path.iterdir()} == {"new.json", "notes.txt"}


def test_a_wrong_call_says_how_it_is_called() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "refract.apps.api_documents"], capture_output=True, text=True, check=False, timeout=100
    )
    usage = "usage: python -m refract.apps.api_documents FOLDER SERVED_FOLDER\n"
    assert (process.returncode, process.stderr) == (1, usage)


def test_the_page_shows_paths_as_the_public_writes_them() -> None:
    page = render_page({"links": DOCUMENT})
    assert "| GET, HEAD | `/api/urls` | yes, or a key with `links:read` | [List links](#get-head-apiurls) |" in page
    written = "yes, or a key with `links:write`"
    assert f"| PATCH | `/api/urls/{{code}}` | {written} | [Change a link](#patch-apiurlscode) |" in page
    assert "| GET | `/inside` (inside only) |  | [For us](#get-inside) |" in page
    assert "### GET, HEAD /api/urls\n\nList links. Page by page.\n" in page


@pytest.mark.parametrize(
    "row",
    [
        "| `sort` | query | `a`, `b`; `a` by default |  |  |",
        "| `limit` | query | integer, from 1; `20` by default |  |  |",
        "| `code` | path | string, up to 50 characters | yes |  |\n| `X-Key` | header | string, 1 to 9 characters |  |",
        "| `force` | boolean; `false` by default |  | Always. |",
        "| 200 | [Page](#page) | A page. |\n| 400 |  | One \\| another. |",
        "| 200 | `image/png` | It. |",
        "| `urls` | list of string (uri) | yes |  |",
        "| `next` | string or null |  |  |",
        "| `anything` | anything |  |  |",
        "#### Page\n\nSome links.\n\n| field |",
        '```json\n{\n  "title": "Été"\n}\n```',
        '```json\n{\n  "urls": []\n}\n```',
    ],
)
def test_the_page_says_what_is_taken_and_given(row: str) -> None:
    page = render_page({"links": DOCUMENT})
    assert row in page
    assert "#### Body" not in page  # its fields stand where it is sent


def test_the_page_says_what_is_taken_in_a_choice_of_types() -> None:
    schema = {"oneOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "maxLength": 40}
    assert in_words(schema, MARKDOWN) == "string (date-time) or null, up to 40 characters"
    assert in_words({"oneOf": [{"type": "integer"}], "enum": [301, None]}, MARKDOWN) == "`301`, `null`"
    row = {"oneOf": [{"type": "string", "pattern": "^a$"}, {"$ref": "#/components/schemas/Wish"}]}
    rows = {"type": "array", "items": row, "minItems": 1, "maxItems": 9}
    assert in_words(rows, MARKDOWN) == "list of (string, like `^a$` or [Wish](#wish)), 1 to 9 of them"
