"""One OpenAPI document of what the gateway offers: every public operation, and nothing else."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from refract.apps.public_answers import refusals, security_of
from refract.apps.public_document import public_document
from refract.apps.public_page import render_public_page
from refract.apps.public_schemas import public_names
from refract.apps.schema_words import references_in
from refract.services.gateway.api import ROUTES, TARGETS, Match, Route, resolve

ROOT = Path(__file__).parents[2]
DESCRIBED = {path.stem: json.loads(path.read_text()) for path in (ROOT / "docs" / "api").glob("*.json")}
DOCUMENT: dict[str, Any] = DESCRIBED.pop("gateway")
OWN = {"/health", "/ready", "/docs", "/docs/openapi.json"}
SERVED = "refract/services/gateway/http/served"


def operations() -> list[tuple[str, str, Any]]:
    return [
        (method.upper(), path, operation)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    ]


def row(method: str, path: str) -> Route:
    found = resolve(method, re.sub(r"\{\w+\}", "x", path))
    assert isinstance(found, Match), f"{method} {path} has no row"
    return found.route


def body_of(method: str, path: str) -> Any:
    body = DOCUMENT["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
    return DOCUMENT["components"]["schemas"][body["allOf"][0]["$ref"].rpartition("/")[2]]


def test_it_has_what_the_table_leads_to_and_a_service_describes() -> None:
    there = {(method, path) for method, path, _ in operations() if path not in OWN}
    expected = {
        (method, route.path)
        for route in ROUTES
        for method in route.methods
        if method.lower() in DESCRIBED.get(route.target, {"paths": {}})["paths"].get(route.forward, {})
    }
    assert there == expected
    assert ("POST", "/api/auth/login") in there
    assert ("GET", "/r/{code}") in there
    assert {path for _, path, _ in operations() if path not in OWN} | OWN == DOCUMENT["paths"].keys()


def test_nothing_that_a_service_describes_is_closed_to_the_public_by_mistake() -> None:
    public = {(route.target, route.forward, method) for route in ROUTES for method in route.methods}
    for name, document in DESCRIBED.items():
        for path, methods in document["paths"].items():
            assert {(name, path, method.upper()) for method in methods} <= public


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(names)) == len(names)
    described = {tag["name"] for tag in DOCUMENT["tags"]}
    for method, path, operation in operations():
        assert operation["summary"], f"{method} {path}"
        assert set(operation["tags"]) <= described
        assert operation["responses"], f"{method} {path}"
        assert set(re.findall(r"\{(\w+)\}", path)) <= {each["name"] for each in operation.get("parameters", ())}


def test_every_record_that_is_mentioned_is_there_and_no_other() -> None:
    records = DOCUMENT["components"]["schemas"]
    assert set(references_in(DOCUMENT)) == records.keys()


def test_an_operation_says_who_may_ask_as_the_table_has_it() -> None:
    schemes = DOCUMENT["components"]["securitySchemes"].keys()
    for method, path, operation in operations():
        if path in OWN:
            assert operation["security"] == []
            continue
        route = row(method, path)
        ways = [(name, words) for way in operation["security"] for name, words in way.items()]
        assert {name for name, _ in ways} <= schemes
        assert bool(ways) == (route.token != "none")
        assert ({} in operation["security"]) == (route.token == "optional")
        assert [words for name, words in ways if name == "key"] == ([] if route.scope is None else [[route.scope]])
        roles = ["administrator"] if route.token == "administrator" else []
        assert [words for name, words in ways if name == "token"] == ([] if route.token == "none" else [roles])


def test_an_operation_has_the_answers_that_the_gateway_gives() -> None:
    for method, path, operation in operations():
        if path in OWN:
            continue
        route, answers = row(method, path), operation["responses"].keys()
        assert {"502", "503"} <= answers
        if route.token != "none":
            assert {"401", "403"} <= answers or (route.token == "optional" and "401" in answers), f"{method} {path}"
        if route.scope is not None or route.limit is not None:
            assert "429" in answers, f"{method} {path}"
        for status in answers & {"429", "503"}:
            assert "Retry-After" in operation["responses"][status]["headers"]


def test_an_answer_of_both_says_both() -> None:
    answer = DOCUMENT["paths"]["/api/urls/{code}"]["get"]["responses"]["403"]
    assert "another user's" in answer["description"]
    assert "scope `links:read`" in answer["description"]
    texts = [example["value"]["error"] for example in answer["content"]["application/json"]["examples"].values()]
    assert {"forbidden", "api key lacks scope"} <= set(texts)
    plain = DOCUMENT["paths"]["/api/sms/send"]["post"]["responses"]["403"]["content"]
    assert plain.keys() == {"text/plain", "application/json"}


def test_a_head_is_described_without_bodies() -> None:
    for method, path, operation in operations():
        assert method != "HEAD" or not any("content" in answer for answer in operation["responses"].values()), path
    assert not any("content" in operation["responses"].get("204", {}) for _, _, operation in operations())


def test_the_fields_of_a_link_say_what_is_taken() -> None:
    for fields in (body_of("post", "/api/shorten")["properties"], body_of("patch", "/api/urls/{code}")["properties"]):
        assert (fields["url"]["minLength"], fields["url"]["maxLength"]) == (1, 2048)
        assert fields["title"]["maxLength"] == 200
        assert fields["notes"]["maxLength"] == 2000
        assert fields["tags"]["maxItems"] == 20
        assert fields["tags"]["items"] == {"type": "string", "minLength": 1, "maxLength": 50}
        assert fields["expires_at"]["format"] == "date-time"
        assert set(fields["redirect_status"]["enum"]) - {None} == {301, 302, 307, 308}
        assert all("description" in field for field in fields.values())
    assert body_of("post", "/api/shorten")["properties"]["custom_code"]["pattern"] == "^[A-Za-z0-9-]{3,50}$"
    assert body_of("patch", "/api/urls/{code}")["properties"]["status"]["enum"] == ["active", "disabled"]
    rows = body_of("post", "/api/shorten/bulk")["properties"]["urls"]
    assert (rows["minItems"], rows["maxItems"]) == (1, 1000)
    assert rows["items"]["oneOf"][1] == {"$ref": "#/components/schemas/Wish"}


def test_two_records_of_one_name_are_told_apart_unless_they_are_the_same() -> None:
    same, other = {"type": "string"}, {"type": "integer"}
    wrapped = {"properties": {"page": {"$ref": "#/components/schemas/Page"}}}
    names = public_names(
        {
            "links": {"Error": same, "Page": same, "Answer": wrapped, "Own": same},
            "sms": {"Error": same, "Page": other, "Answer": wrapped},
        }
    )
    assert names["links"] == {"Error": "Error", "Page": "LinksPage", "Answer": "LinksAnswer", "Own": "Own"}
    assert names["sms"] == {"Error": "Error", "Page": "SmsPage", "Answer": "SmsAnswer"}


def test_a_made_up_name_that_is_taken_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="SmsPage"):
        public_names({"links": {"Page": {"type": "a"}, "SmsPage": {}}, "sms": {"Page": {"type": "b"}}})


def test_what_is_for_the_inside_stays_there() -> None:
    operation = {"summary": "S", "tags": ["links"], "responses": {"200": {"description": "D."}}}
    document = public_document({"links": {"paths": {"/urls": {"get": operation}, "/inside": {"get": operation}}}})
    assert document["paths"].keys() == {"/api/urls", *OWN}


def test_rows_that_let_everybody_in_refuse_nobody_for_want_of_a_token() -> None:
    for route in ROUTES:
        statuses = {refusal.status for refusal in refusals(route, route.methods[0])}
        assert ("401" in statuses) == (route.token != "none")
        assert bool(security_of(route)) == (route.token != "none")
    assert "identity" in TARGETS


class _Outline(HTMLParser):
    """The tags that are open, the anchors, and what a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.anchors: list[str] = []
        self.links: list[str] = []
        self.used: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.used |= {tag, *(name for name, _ in attrs)}
        if tag != "meta":
            self.open.append(tag)
        self.anchors += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_runs_and_fetches_nothing() -> None:
    outline = _Outline()
    outline.feed(render_public_page(DOCUMENT))
    assert outline.open == []
    assert len(set(outline.anchors)) == len(outline.anchors)
    assert set(outline.links) <= {f"#{anchor}" for anchor in outline.anchors} | {"/docs/openapi.json"}
    assert not outline.used & {"script", "link", "img", "iframe", "form", "src", "onclick", "onload"}


def test_the_page_has_every_operation_and_what_it_takes() -> None:
    page = render_public_page(DOCUMENT)
    for method, path, operation in operations():
        if method != "HEAD":
            assert f'<section id="{operation["operationId"]}">' in page
            assert re.search(rf"<h3><code>{method}(, HEAD)? {re.escape(path)}</code></h3>", page)
    assert "<code>Idempotency-Key</code>" in page
    assert "string, 1 to 2048 characters" in page
    assert '"custom_code": "spring-26"' in page.replace("&quot;", '"')


def test_the_page_shows_text_as_text() -> None:
    operation = {
        "operationId": "get_x",
        "summary": "<b>S</b>",
        "description": "`a<b`",
        "tags": ["links"],
        "security": [],
        "parameters": [{"name": "<i>", "in": "query", "schema": {"enum": ["<u>"]}}],
        "responses": {"200": {"description": "<s>", "content": {"text/<x>": {}}}},
    }
    page = render_public_page(
        {**DOCUMENT, "paths": {"/<p>": {"get": operation}}, "components": {"schemas": {}, "securitySchemes": {}}}
    )
    assert not re.search(r"<(?:b|i|u|s|x|p)>(?![A-Z<])", page.partition("<h2>links</h2>")[2])
    assert "<code>a&lt;b</code>" in page


def test_a_wheel_contains_what_the_gateway_serves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as files:
        for name in ("openapi.json", "index.html"):
            assert files.read(f"{SERVED}/{name}") == (ROOT / "src" / SERVED / name).read_bytes()
