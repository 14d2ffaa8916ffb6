"""The `refract` command with another time to stop, and with all the time in the world for a client's body.

`python -m tests.support.hasty_command serve`. In the product a process has eight seconds from the signal until
everything was told to stop, and a client five seconds for a request: whichever comes first would end a body that is
withheld. Here only the stop does.
"""

import math
import os

from refract.apps import cli, listening
from refract.runtime.supervisor import Supervisor

GRACE = "TEST_STOP_GRACE"
"""The variable that names the seconds."""


def be_hasty() -> None:
    """Stop after so long."""
    defaults = Supervisor.__init__.__kwdefaults__
    assert defaults is not None
    defaults["grace"] = float(os.environ[GRACE])
    for limits in (listening.SERVICE_LIMITS, listening.GATEWAY_LIMITS, *listening.LIMITS.values()):
        object.__setattr__(limits, "receive", math.inf)  # those who listen have them already, and they are frozen


if __name__ == "__main__":
    be_hasty()
    cli.main()
