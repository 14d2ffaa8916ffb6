"""The `refract` command on a machine that stands still now and then: what is late by seconds is not away for it.

`python -m tests.support.patient_command run links`. In the product Redis has 50 ms for an answer, and without one
limits are off and copies are misses; the disk of the spool has 2 s, and then clicks are shed; a client has a quarter of
a second to say that it wants to go on when a process stops. All of that has tests of its own. Where others count what
is lost, admitted or refused, a pause of the machine must not look like a fault of ours.
"""

import os
import sys
from typing import Any

from refract.apps import cli, workers
from refract.runtime import server
from refract.services.links.redirect import shelter

REDIS_PATIENCE = "TEST_REDIS_PATIENCE"
"""The variable that names other seconds for Redis."""

CLI, PATIENT = "refract.apps.cli", "tests.support.patient_command"


def be_patient() -> None:
    """Have this process, and those that it starts, wait longer."""
    server.LAST_CALL_SECONDS = 2.5
    shelter.SPOOL_TIMEOUT = 60.0
    if "run" in sys.argv:
        _wait_for_redis(float(os.environ.get(REDIS_PATIENCE, "10")))
    crews: Any = workers
    crew = crews.Crew

    def patient_crew(command: tuple[str, ...], *places: Any) -> Any:
        return crew(tuple(PATIENT if word == CLI else word for word in command), *places)

    crews.Crew = patient_crew


def _wait_for_redis(seconds: float) -> None:
    from refract.runtime.distributed.redis_connection import RedisConnection  # noqa: PLC0415  # takes its time

    defaults = RedisConnection.__init__.__kwdefaults__
    assert defaults is not None
    defaults["deadline"] = seconds


if __name__ == "__main__":
    be_patient()
    cli.main()
