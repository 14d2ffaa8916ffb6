"""All checks of destinations as one: the operator's list always, remote services where they are configured."""

from collections.abc import Mapping, Sequence

from refract.kernel.errors import Unavailable
from refract.services.links.adapters.safe_browsing import Unanswered
from refract.services.links.ports import SafetyCheck


class Safety:
    """Asks one check after the other, each only about what the ones before it let pass.

    A check that is away is passed over with `fails_open`, because a link that cannot be made harms more people than an
    unchecked one; without it, nothing is let through until the check is back. The checks log their outages themselves:
    they know when one begins and ends, where we would only see answers from their memory.
    """

    def __init__(self, checks: Sequence[SafetyCheck], *, fails_open: bool) -> None:
        self._checks = tuple(checks)
        self._fails_open = fails_open

    async def check(self, urls: Sequence[str]) -> dict[str, str]:
        """Those of the URLs that are dangerous, each with the reason; raises Unavailable if that is to fail closed."""
        found: dict[str, str] = {}
        for check in self._checks:
            left = [url for url in urls if url not in found]
            if left:
                found |= await self._ask(check, left)
        return found

    async def close(self) -> None:
        """Give everything back."""
        for check in self._checks:
            await check.close()

    async def _ask(self, check: SafetyCheck, urls: Sequence[str]) -> Mapping[str, str]:
        try:
            return await check.find_threats(urls)
        except Unavailable as error:
            if not self._fails_open:
                raise
            return error.found if isinstance(error, Unanswered) else {}
