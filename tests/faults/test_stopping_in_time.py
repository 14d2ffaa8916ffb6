"""The command as it is installed, told to stop under load: it fails nobody, and has gone within ten seconds."""

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support import instances
from tests.support.commands import COMMAND
from tests.support.instances import PENDING, Instance, instance, servers
from tests.support.ledger import Ledger
from tests.support.load import Following, Making
from tests.support.waiting import eventually

__all__ = ["instance", "servers"]

SECONDS = 10.0
STOPS = 5
CONNECTIONS = 16


@pytest.fixture(autouse=True)
def as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No patience is lent to it: here its own seconds are what is measured."""
    monkeypatch.setattr(instances, "PATIENT", COMMAND)


async def seconds_to_stop(instance: Instance) -> float:
    """SIGTERM, and how long it took to end well."""
    told_at = time.monotonic()
    assert await instance.stop() == 0
    return time.monotonic() - told_at


async def stop_in_time(instance: Instance, folder: Path, places: dict[str, str], redirects: int) -> float:
    """Clients follow and make links over connections that they keep or close, until nobody listens; the seconds."""
    prefix = f"https://example.com/{folder.name}/"
    with Ledger(folder / "kept") as first, Ledger(folder / "closed") as second, Ledger(folder / "made") as third:
        kept = Following(instance.port, first, places=places, reconnects=False)
        closed = Following(instance.port, second, places=places, headers=(*kept.headers, "Connection: close"))
        making = Making(instance.port, third, target=f"{instance.api}/shorten", token=instance.token(), prefix=prefix)
        loads = kept, closed, making
        async with kept.running(CONNECTIONS) as following, closed.running(CONNECTIONS), making.running(4):
            await eventually(lambda: first.answered + second.answered >= redirects and third.answered, timeout=120)
            assert not following.done()
            seconds = await seconds_to_stop(instance)
        assert [(load.unanswered, load.refused, load.wrong) for load in loads] == [(0, Counter(), [])] * 3
        made = f"SELECT count(*) FROM links WHERE original_url LIKE '{prefix}%'"  # of our own making
        assert await instance.fetch(made) == [(third.answered,)]
    return seconds


@pytest.mark.full
@pytest.mark.timeout(600)
async def test_a_stop_under_load_takes_no_ten_seconds(instance: Instance, tmp_path: Path) -> None:
    places = await instance.make_links(20)
    took = []
    for number in range(STOPS):
        folder = tmp_path / f"stop-{number}"
        folder.mkdir()
        took.append(await stop_in_time(instance, folder, places, 2_000))
        await instance.start()
    await instance.drained()
    assert await instance.stop() == 0
    assert await instance.fetch(PENDING) == [(0,)]
    print(instance.mode, "stopped within", ", ".join(f"{seconds:.2f} s" for seconds in took))
    assert max(took) < SECONDS, took
