"""Mails of the service as it is built: from registering to a new password, by what comes out of the queue of mails."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from refract.runtime.environment import Environment
from refract.runtime.ports import QueueReader
from refract.services.identity.settings import IdentitySettings
from refract.services.notifications.reactions import MAILS
from tests.support.identity import EMAIL, ON_SQLITE, PASSWORD, IdentityWorld, identity, identity_location
from tests.support.mail_desk import NEW_PASSWORD, tokens_in
from tests.support.worlds import running

__all__ = ["identity", "identity_location"]


@asynccontextmanager
async def at_work(identity: IdentityWorld, **settings: Any) -> AsyncIterator[QueueReader]:
    """The service with its relay and its readers, and a reader of the queue that notifications declares."""
    bus = await identity.buses.open()
    async with bus.reader(MAILS) as mails:
        await identity.serve(**settings)
        await identity.service.declare()
        async with running(*(task.run for task in identity.service.tasks)):
            yield mails


async def next_mail(mails: QueueReader) -> tuple[str, str]:
    """The type of the next mail, and the token in it."""
    async with asyncio.timeout(60):
        [delivery] = await mails.next_batch()
    await mails.acknowledge([delivery])
    [token] = tokens_in([json.loads(delivery.message.body)])
    return delivery.message.routing_key, token


@ON_SQLITE
async def test_from_registering_to_a_new_password(identity: IdentityWorld) -> None:
    async with at_work(identity, require_verified_email=True) as mails:
        assert (await identity.register()).status == 201
        kind, token = await next_mail(mails)
        assert kind == "email.verification.requested"
        assert (await identity.login()).status == 403
        assert (await identity.call("POST", "/verify", {"token": token})).status == 204
        assert (await identity.login()).status == 200

        assert (await identity.call("POST", "/reset", {"email": EMAIL})).status == 204
        kind, token = await next_mail(mails)
        assert kind == "email.password_reset.requested"
        new = {"token": token, "password": NEW_PASSWORD}
        assert (await identity.call("POST", "/reset/confirm", new)).status == 204
        assert (await identity.login(password=PASSWORD)).status == 401
        assert (await identity.login(password=NEW_PASSWORD)).status == 200


@ON_SQLITE
async def test_who_never_got_the_first_mail_comes_in_by_a_reset(identity: IdentityWorld) -> None:
    async with at_work(identity, require_verified_email=True) as mails:
        assert (await identity.register()).status == 201
        await next_mail(mails)
        await identity.call("POST", "/reset", {"email": EMAIL})
        _, token = await next_mail(mails)
        await identity.call("POST", "/reset/confirm", {"token": token, "password": NEW_PASSWORD})
        assert (await identity.login(password=NEW_PASSWORD)).status == 200


def test_dual_publishing_is_on_unless_it_is_switched_off() -> None:
    for variables, dual_publish in (({}, True), ({"ENABLE_DUAL_PUBLISH": "false"}, False)):
        settings = IdentitySettings.from_environment(Environment(variables), base_url="https://sho.rt")
        assert settings.dual_publish is dual_publish


@ON_SQLITE
async def test_dual_publishing_is_a_setting(identity: IdentityWorld) -> None:
    exchanges = []
    for number, dual_publish in enumerate((True, False)):
        await identity.serve(dual_publish=dual_publish)
        await identity.register(f"user-{number}@example.com")
        exchanges.append([event["exchange"] for event in await identity.announced()])
    assert exchanges[0] == ["smap.events", "smtp_send_email_exc"]
    assert exchanges[1] == [*exchanges[0], "smap.events"]
