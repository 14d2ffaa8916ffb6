"""Whether what a service stands on answers: asked once for everybody who wants to know at the same time."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping

from refract.kernel.errors import Unavailable

log = logging.getLogger(__name__)

Check = Callable[[], Awaitable[None]]
"""Returns when a dependency answers, and raises Unavailable when not: the `ping` of a port."""

CHECK_SECONDS = 1.0
OK = "ok"
UNAVAILABLE = "unavailable"

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


class Readiness:
    """Asks all dependencies side by side. Whoever asks while a round is under way joins it: a flood of questions to us
    must not become a flood to them."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._round: asyncio.Task[dict[str, str]] | None = None

    async def report(self) -> dict[str, str]:
        """What each dependency says: ok or unavailable, and to strangers no more than that."""
        if self._round is None or self._round.done():
            self._round = asyncio.create_task(self._ask_all())
        return await asyncio.shield(self._round)

    async def _ask_all(self) -> dict[str, str]:
        answers = await asyncio.gather(*(_ask(name, check) for name, check in self._checks.items()))
        return dict(zip(self._checks, answers, strict=True))


async def _ask(name: str, check: Check) -> str:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except TimeoutError:
        reason = f"no answer within {CHECK_SECONDS:g} s"
    except Unavailable as error:
        reason = _CREDENTIALS.sub("", error.reason)
    except Exception:
        log.exception("a check of readiness failed", extra={"dependency": name})
        return UNAVAILABLE
    else:
        return OK
    # Anybody may ask; the inner addresses in a reason are for us alone.
    log.warning("not ready", extra={"dependency": name, "reason": reason})
    return UNAVAILABLE
