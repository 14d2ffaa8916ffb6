"""What leaves the house, of an instance as it is installed: identity's mails, and webhooks that a user has set up."""

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.services.test_delivering_webhooks import is_signed
from tests.support.commands import running
from tests.support.http import Answer, Client
from tests.support.mail_servers import post_office
from tests.support.receivers import receiver
from tests.support.servers.places import free_port
from tests.support.waiting import eventually

EMAIL, PASSWORD = "alice@example.com", "a password of some length"


async def call(port: int, method: str, path: str, body: Any, token: str = "") -> Answer:
    headers = [f"Authorization: Bearer {token}"] if token else []
    async with await Client.connect(port) as client:
        return await client.post(path, msgspec.json.encode(body), *headers, method=method)


@pytest.mark.parametrize("has_server", [True, False])
async def test_from_registering_to_a_webhook(tmp_path: Path, has_server: bool) -> None:
    port = free_port()
    serve = ("serve", "--data-dir", str(tmp_path / "data"), "--port", str(port))
    with post_office() as office:
        variables = {"WEBHOOK_ALLOW_PRIVATE": "true", "REQUIRE_VERIFIED_EMAIL": "true"}
        if has_server:
            variables |= {"SMTP_URL": f"smtp://127.0.0.1:{office.port}", "MAIL_FROM": "Refract <no-reply@sho.rt>"}
        starting = running(*serve, address=f"http://127.0.0.1:{port}", folder=tmp_path / "out", variables=variables)
        async with receiver() as receiving:
            process = await asyncio.to_thread(starting.__enter__)
            try:
                account = {"email": EMAIL, "password": PASSWORD}
                assert (await call(port, "POST", "/api/auth/register", account)).status == 201
                assert (await call(port, "POST", "/api/auth/login", account)).status == 403

                def link() -> str:
                    if has_server:
                        body = office.mails[0].get_body(("plain",))
                        assert body is not None, "every mail has a text"
                        return str(body.get_content())
                    return next(str(line["link"]) for line in process.log if "mail not sent" in line["msg"])

                [token] = re.findall(r"/verify#token=(\S+)", await eventually(link, timeout=60))
                assert (await call(port, "POST", "/api/auth/verify", {"token": token})).status == 204
                bearer = (await call(port, "POST", "/api/auth/login", account)).json["token"]
                wish = {"webhooks": [{"url": receiving.url(), "events": ["url.created"]}]}
                preferences = await call(port, "PUT", "/api/preferences", wish, bearer)
                assert preferences.status == 200, preferences.body
                secret = preferences.json["webhooks"][0]["secret"]
                made = await call(port, "POST", "/api/shorten", {"url": "https://example.com/"}, bearer)
                assert made.status == 201
                await eventually(lambda: receiving.requests, timeout=60)
                assert await asyncio.to_thread(process.stop) == 0
            finally:
                await asyncio.to_thread(starting.__exit__, None, None, None)
    [request] = receiving.requests
    assert is_signed(request, secret)
    assert request.json["type"] == "url.created"
    data: Any = request.json["data"]
    assert data["short_code"] == made.json["short_code"]
    assert len(office.mails) == int(has_server)
