"""The head of an answer as our server writes it, for those who answer in bytes from the parser's callback."""

import time
from email.utils import formatdate
from http import HTTPStatus

LAST_FIELD = b"\r\nx-content-type-options: nosniff\r\n"
"""The end of the line before, which is the correlation id's, and what every answer says last."""


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\n" % (status, _phrase(status)) for status in range(200, 600)}


class Dates:
    """The date of an answer, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        """The field, with its end."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._line
