"""ACCEPTANCE 12 at sms: a message whose sender was told 200 is sent, whoever is killed meanwhile."""

from pathlib import Path

import pytest

from tests.support.sms_kills import Kill, distributed, kafka, redis, restarting, restarting_server, send_and_kill
from tests.support.sms_processes import EmbeddedSms, SmsProcess, started

__all__ = ["kafka", "redis"]


@pytest.fixture(params=["embedded", "distributed"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> SmsProcess:
    """An SMS gateway in either mode, not yet started."""
    if request.param == "embedded":
        return EmbeddedSms(tmp_path, {})
    return distributed(request, tmp_path, request.getfixturevalue("fresh_database"), request.getfixturevalue("kafka"))


def kills_of(process: SmsProcess, request: pytest.FixtureRequest, number: int) -> list[Kill]:
    """The gateway and the broker in turn, or the one process."""
    if isinstance(process, EmbeddedSms):
        return [restarting(process)] * number
    broker = restarting_server(request.getfixturevalue("kafka"))
    return [restarting(process) if index % 2 == 0 else broker for index in range(number)]


async def test_five_hundred_messages_and_two_kills(
    process: SmsProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with started(process):
        await send_and_kill(process, tmp_path, 500, kills_of(process, request, 2))


@pytest.mark.full
@pytest.mark.timeout(1200)
async def test_twenty_thousand_messages_and_twenty_kills(
    process: SmsProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with started(process):
        await send_and_kill(process, tmp_path, 20_000, kills_of(process, request, 20))
