"""Requests as bytes: redirects as wrk or a browser sends them, and calls of the API by the owner of the links."""

import http.client
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.links import SeedLink

BROWSER = (
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n"
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n"
    "Accept-Language: en-US,en;q=0.5\r\n"
    "Accept-Encoding: gzip, deflate\r\n"
    "Referer: https://news.example.com/today\r\n"
)


def redirects(links: Iterable[SeedLink], headers: str = "") -> Iterator[bytes]:
    """One request for each link."""
    for link in links:
        yield f"GET /{link.short_code} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()


def call(method: str, target: str, token: str, body: Any = None) -> bytes:
    """A call of the API."""
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}"]
    content = b""
    if body is not None:
        content = json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join((*lines, "", "")).encode() + content


def fetch(port: int, method: str, target: str, token: str, body: Any = None) -> Any:
    """Make a call and read its answer; one that is refused is an error that says so."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {target} answered {answer.status}: {text[:300]!r}")
        return json.loads(text)
    finally:
        connection.close()


def check_redirects(port: int, links: Sequence[SeedLink]) -> None:
    """See that a few of the links lead where they should before anything is measured."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        for link in links:
            connection.request("GET", f"/{link.short_code}")
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 301 or answer.getheader("Location") != link.original_url:
                raise RuntimeError(f"GET /{link.short_code} answered {answer.status}: {text[:300]!r}")
    finally:
        connection.close()
