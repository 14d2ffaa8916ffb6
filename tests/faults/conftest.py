"""What the tests of faults share: patience with engines that are slow, and not broken by the test."""

from collections.abc import Iterator

import pytest

from refract.runtime.distributed import pool, postgresql
from refract.runtime.embedded import database as embedded_database
from refract.services.links.redirect import lookup
from refract.services.sms.commands import configuring, sending
from refract.services.sms.http import auditing

LONG = 60.0


@pytest.fixture(autouse=True)
def patient_engines() -> Iterator[None]:
    """A disk that takes seconds for a commit is no fault here: nobody gives up his turn, and no database is away.

    Tests of what is silent by construction shorten what they need themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "ACQUIRE_TIMEOUT", LONG)
        patch.setattr(postgresql, "ACQUIRE_TIMEOUT", LONG)
        patch.setattr(postgresql, "COMMAND_TIMEOUT", LONG)
        patch.setattr(postgresql, "SILENCE_TIMEOUT", LONG + 1)
        patch.setattr(embedded_database, "ACQUIRE_TIMEOUT", LONG)
        patch.setattr(lookup, "DATABASE_DEADLINE", LONG / 2)
        for module in (sending, configuring, auditing):
            patch.setattr(module, "PATIENCE", LONG)
        yield
