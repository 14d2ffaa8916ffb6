"""What the generated documentation says of these routes beyond their types."""

from typing import Any

from msgspec import Meta

from refract.runtime.describing import Errors
from refract.services.links.commands.bulk import ROWS
from refract.services.links.domain.destinations import URL_LENGTH
from refract.services.links.domain.drafts import Wish

TAGS = ["links"]

LINK: dict[str, Any] = {
    "short_code": "aB3xY9z",
    "short_url": "https://sho.rt/aB3xY9z",
    "original_url": "https://example.com/a/long/path",
    "title": "Spring",
    "notes": "",
    "tags": ["campaign"],
    "status": "active",
    "is_active": True,
    "redirect_status": 301,
    "stats_public": True,
    "created_at": "2026-03-01T12:00:00Z",
    "updated_at": "2026-03-01T12:00:00Z",
    "expires_at": "2026-06-01T00:00:00Z",
    "total_clicks": 42,
    "last_clicked_at": "2026-03-02T08:15:00Z",
}

_ROW = {
    "oneOf": [
        {"type": "string", "minLength": 1, "maxLength": URL_LENGTH},
        {"$ref": f"#/components/schemas/{Wish.__name__}"},  # described where one link is made
    ]
}
BULK_ROWS = Meta(
    description="Each a URL, or an object with the fields of a request to shorten one.",
    extra_json_schema={"extra": {"type": "array", "one_of": None, "minItems": 1, "maxItems": ROWS, "items": _ROW}},
)

_MEANINGS = {
    400: ("The request is wrong; the message says what.", "invalid request body"),
    401: ("There is no good token.", "unauthorized"),
    403: ("The link is another user's.", "forbidden"),
    404: ("There is no such link.", "not found"),
    409: ("It contradicts what is there.", "short code already taken"),
    410: ("The link is deleted.", "this link is no longer active"),
    422: ("The destination is refused, or the key was used for another request.", "url is flagged as unsafe: malware"),
    503: ("It cannot be done now, and may be tried again.", "service unavailable"),
}

errors = Errors(_MEANINGS, everywhere=(401, 503))
