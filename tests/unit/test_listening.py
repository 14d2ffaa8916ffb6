"""How long the servers wait for their applications, one behind the other."""

from refract.apps.listening import GATEWAY_LIMITS, LIMITS, SERVICE_LIMITS
from refract.services.gateway.adapters.proxy import ANSWER_TIMEOUT
from refract.services.identity.adapters.hashing import MOST_WAITING


def test_whoever_signs_in_is_waited_for_as_long_as_the_gateway_waits() -> None:
    assert LIMITS["identity"].send == ANSWER_TIMEOUT < GATEWAY_LIMITS.send
    assert SERVICE_LIMITS.send < ANSWER_TIMEOUT, "the others are quick, or in trouble"
    # The last of a full line on two processors, a quarter of a second each.
    assert LIMITS["identity"].send > MOST_WAITING * 0.25 / 2
