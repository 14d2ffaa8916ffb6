"""What the generated documentation says of these routes beyond their types."""

from refract.runtime.describing import Errors

TAGS = ["accounts"]

_MEANINGS = {
    400: ("The request is wrong; the message says what.", "invalid request body"),
    401: ("There is no good token.", "unauthorized"),
    403: ("The address has to be verified first.", "email address is not verified"),
    404: ("There is no such thing of the caller's.", "not found"),
    409: ("It contradicts what is there.", "email already registered"),
    429: ("Too many failed attempts; `Retry-After` says how many seconds to wait.", "rate limit exceeded"),
    503: ("It cannot be done now, and may be tried again.", "service unavailable"),
}

errors = Errors(_MEANINGS, everywhere=(503,))
