"""What the generated documentation says of these routes beyond their types."""

from typing import Any

from refract.runtime.describing import Errors

TAGS = ["notifications"]

NOTIFICATION: dict[str, Any] = {
    "id": "0195f1a2-7b3c-7d4e-8f50-112233445566",
    "event_type": "milestone.reached",
    "title": "Link aB3xY9z reached 1,000 clicks",
    "short_code": "aB3xY9z",
    "status": "sent",
    "created_at": "2026-03-02T08:15:00Z",
    "sent_at": "2026-03-02T08:15:02Z",
}

WEBHOOK: dict[str, Any] = {
    "id": "0195f1a2-8c4d-7e5f-9061-223344556677",
    "url": "https://hooks.example.com/refract",
    "events": ["milestone.reached"],
    "status": "active",
    "created_at": "2026-03-01T12:00:00Z",
}

PREFERENCES: dict[str, Any] = {
    "channels": {
        "url.created": ["log"],
        "url.deleted": ["log"],
        "milestone.reached": ["log", "email"],
        "webhook.disabled": ["log", "email"],
    },
    "digest": "off",
    "webhooks": [WEBHOOK],
}

_MEANINGS = {
    400: ("The request is wrong; the message says what.", "limit must be a positive integer"),
    401: ("There is no good token.", "unauthorized"),
    403: ("It is another user's.", "forbidden"),
    404: ("There is no such notification.", "not found"),
    503: ("It cannot be done now, and may be tried again.", "service unavailable"),
}

errors = Errors(_MEANINGS, everywhere=(401, 503))
