"""Webhooks: one signed request, to a public address, without following anybody anywhere, and not for long."""

import asyncio
import re
from collections.abc import Mapping
from datetime import timedelta

import aiohttp
from yarl import URL

from refract import __version__
from refract.runtime.public_connections import NotPublic, public_connector
from refract.services.notifications.domain.sending import Gone, Postponed

TIMEOUT = 15.0
"""Seconds from the lookup of the name to the status; what takes longer is done by the receiver after the answer."""

_SECONDS = re.compile(r"[0-9]{1,9}")
_BUSY = frozenset({429, 503})
_REASONS: tuple[tuple[type[Exception], str], ...] = (  # the first that fits
    (aiohttp.InvalidURL, "the url is not valid"),
    (aiohttp.ClientConnectorDNSError, "the name cannot be resolved"),
    (aiohttp.ClientConnectorCertificateError, "the certificate is not valid"),
    (aiohttp.ClientSSLError, "no TLS connection"),
    (aiohttp.ClientConnectorError, "no connection"),
    (aiohttp.ServerDisconnectedError, "the connection was lost before the answer"),
    (OSError, "the connection was lost before the answer"),
)


class WebhookClient:
    """Makes the requests. Of an answer only the status counts: its body is never read, whatever its length.

    The session is made when the first one is needed.
    """

    def __init__(self, *, allow_private: bool = False, timeout: float = TIMEOUT) -> None:
        self._allow_private = allow_private
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Return if the receiver took it (2xx); raises Postponed or Gone with the reason."""
        try:
            async with asyncio.timeout(self._timeout):
                status, retry_after = await self._status(url, body, headers)
        except TimeoutError:
            raise Postponed(f"no answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Postponed(_reason(error)) from None
        if status == 410:
            raise Gone("status 410: the receiver is gone")
        if 300 <= status < 400:
            raise Postponed(f"status {status}: redirects are not followed")
        if not 200 <= status < 300:
            asked = _SECONDS.fullmatch(retry_after) if status in _BUSY else None
            raise Postponed(f"status {status}", timedelta(seconds=int(asked[0]) if asked else 0))

    async def close(self) -> None:
        """Close what is open."""
        if self._session is not None:
            await self._session.close()

    async def _status(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=public_connector(allow_private=self._allow_private),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                # The deadline is ours: the client's own would still wait for a body that never ends.
                timeout=aiohttp.ClientTimeout(total=None),
            )
        answer = await self._session.post(
            URL(url, encoded=True),
            data=body,
            headers={"Content-Type": "application/json", "User-Agent": f"Refract/{__version__}", **headers},
            allow_redirects=False,
        )
        answer.close()  # not `release`, which would read on
        return answer.status, answer.headers.get("Retry-After", "")


def _reason(error: Exception) -> str:
    """What the owner is told: nothing of addresses, by which our own network could be explored."""
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, NotPublic):
        return str(error.os_error)
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "the answer cannot be read")
