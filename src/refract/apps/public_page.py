"""The public document as a page for browsers: plain HTML with a style of its own, and nothing to fetch or to run."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from refract.apps.schema_words import Document, in_words, reference_of, references_in

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 64rem; padding: 1rem; overflow-wrap: break-word; }
h1, h2, h3, h4 { line-height: 1.2; }
h2 { margin-top: 3rem; }
section { border-top: 1px solid #8886; margin-top: 2rem; }
code, pre { font: 0.9em ui-monospace, monospace; background: #8882; border-radius: 3px; }
code { padding: 0 0.2em; }
pre { padding: 0.6rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 0.6rem 0; }
th, td { border-bottom: 1px solid #8886; padding: 0.25rem 0.6rem 0.25rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; }
"""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


class _Html:
    """How this page writes what stands out from its text."""

    def code(self, text: str) -> str:
        """A value or a name as a program has it."""
        return f"<code>{escape(text)}</code>"

    def record(self, name: str) -> str:
        """A link to where a record is described."""
        return f'<a href="#record-{escape(name)}">{escape(name)}</a>'


_HTML = _Html()


@dataclass(frozen=True, slots=True)
class _Operation:
    methods: str
    path: str
    description: Document

    @property
    def heading(self) -> str:
        return _HTML.code(f"{self.methods} {self.path}")

    @property
    def anchor(self) -> str:
        return escape(self.description["operationId"])

    @property
    def bodies(self) -> Mapping[str, Document]:
        content: Mapping[str, Document] = self.description.get("requestBody", {}).get("content", {})
        return content


def render_public_page(document: Document) -> str:
    """The whole page."""
    info, records = document["info"], document["components"]["schemas"]
    operations = list(_operations(document))
    by_tag = {
        tag["name"]: [each for each in operations if tag["name"] in each.description["tags"]]
        for tag in document["tags"]
    }
    blocks = [
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{_text(info['description'])}</p>",
        '<p>The same for programs: <a href="/docs/openapi.json">openapi.json</a>.</p>',
        _schemes(document["components"]["securitySchemes"]),
        *[_overview(tag, by_tag[tag["name"]]) for tag in document["tags"]],
    ]
    for tag in document["tags"]:
        blocks.append(f"<h2>{escape(tag['name'])}</h2>")
        blocks += [_section(each, records) for each in by_tag[tag["name"]]]
    blocks.append("<h2>Records</h2>")
    blocks += [_record(name, schema) for name, schema in records.items()]
    return _PAGE.format(title=escape(info["title"]), style=_STYLE, body="\n".join(blocks))


def _operations(document: Document) -> Iterator[_Operation]:
    for path, methods in document["paths"].items():
        for method, description in methods.items():
            if method == "get" and "head" in methods:
                yield _Operation("GET, HEAD", path, description)
            elif method != "head" or "get" not in methods:
                yield _Operation(method.upper(), path, description)


def _schemes(schemes: Mapping[str, Document]) -> str:
    rows = [(_HTML.code(name), _way(scheme), _text(scheme["description"])) for name, scheme in schemes.items()]
    return '<h2 id="access">Who calls</h2>\n' + _table(("name", "where", ""), rows)


def _way(scheme: Document) -> str:
    if scheme["type"] == "http":
        return _HTML.code(f"Authorization: Bearer <{scheme['bearerFormat']}>")
    return f"{escape(scheme['in'])} {_HTML.code(scheme['name'])}"


def _overview(tag: Document, operations: Iterable[_Operation]) -> str:
    rows = [
        (each.heading, f'<a href="#{each.anchor}">{escape(each.description["summary"])}</a>') for each in operations
    ]
    title = f"<h2>{escape(tag['name'])}: {_text(tag['description'])}</h2>"
    return f"{title}\n{_table(('operation', 'what it does'), rows)}"


def _section(operation: _Operation, records: Mapping[str, Document]) -> str:
    description = operation.description
    parts = [
        f'<section id="{operation.anchor}">',
        f"<h3>{operation.heading}</h3>",
        f"<p><strong>{escape(description['summary'])}.</strong> {_text(description.get('description', ''))}</p>",
        f"<p>{_access(description['security'])}</p>",
    ]
    parameters = [
        (
            _HTML.code(each["name"]),
            escape(each["in"]),
            in_words(each.get("schema", {}), _HTML),
            "yes" if each.get("required") else "",
            _text(each.get("description", "")),
        )
        for each in description.get("parameters", ())
    ]
    if parameters:
        parts.append(_table(("parameter", "in", "type", "required", ""), parameters))
    for media_type, content in operation.bodies.items():
        parts += _body(media_type, content["schema"], records)
    answers = [
        (_HTML.code(status), _answered(answer), _text(answer["description"]))
        for status, answer in description["responses"].items()
    ]
    parts.append(_table(("answer", "body", ""), answers))
    parts += [_example("An answer", value) for value in _good_examples(description)[:1]]
    return "\n".join([*parts, "</section>"])


def _access(security: list[Mapping[str, list[str]]]) -> str:
    """Who may, in a sentence."""
    if not security:
        return "Open to everybody."
    ways = [
        _HTML.code(name) + (f" ({', '.join(map(_HTML.code, words))})" if words else "")
        for way in security
        for name, words in way.items()
    ]
    asked = "May come with" if {} in security else "Wants"
    return f'{asked} one of <a href="#access">these</a>: {", ".join(ways)}.'


def _body(media_type: str, schema: Document, records: Mapping[str, Document]) -> Iterator[str]:
    name = reference_of(schema)
    yield f"<h4>The body, {_HTML.code(media_type)}{' of ' + _HTML.record(name) if name else ''}</h4>"
    shown = records[name] if name else schema
    yield _fields(shown) if shown.get("properties") else f"<p>{in_words(shown, _HTML)}</p>"
    for example in schema.get("examples", ()):
        yield _example("For example", example)


def _answered(answer: Document) -> str:
    kinds = []
    for media_type, content in answer.get("content", {}).items():
        is_record = media_type == "application/json" and set(references_in(content))
        kinds.append(in_words(content["schema"], _HTML) if is_record else _HTML.code(media_type))
    return " or ".join(kinds)


def _good_examples(description: Document) -> list[Any]:
    return [
        example["value"]
        for status, answer in description["responses"].items()
        if status.startswith("2")
        for content in answer.get("content", {}).values()
        for example in content.get("examples", {}).values()
    ]


def _record(name: str, schema: Document) -> str:
    about = f"<p>{_text(schema['description'])}</p>\n" if "description" in schema else ""
    fields = _fields(schema) if schema.get("properties") else f"<p>{in_words(schema, _HTML)}</p>"
    return f'<h3 id="record-{escape(name)}">{escape(name)}</h3>\n{about}{fields}'


def _fields(schema: Document) -> str:
    required = schema.get("required", ())
    rows = [
        (_HTML.code(name), in_words(each, _HTML), "yes" if name in required else "", _text(each.get("description", "")))
        for name, each in schema["properties"].items()
    ]
    return _table(("field", "type", "required", ""), rows)


def _example(title: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"<h4>{title}</h4>\n<pre>{escape(text)}</pre>"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _text(markdown: str) -> str:
    """The little that our descriptions have of Markdown: a name between two backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(markdown))
