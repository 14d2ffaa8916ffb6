"""What the generated documentation says of these routes beyond their types."""

from typing import Any

from litestar.openapi.datastructures import ResponseSpec

from refract.runtime.describing import Errors

TAGS = ["stats"]

STATS: dict[str, Any] = {
    "short_code": "aB3xY9z",
    "total_clicks": 42,
    "clicks_last_24h": 5,
    "clicks_last_7d": 20,
    "top_referers": [{"referer": "https://news.example/", "count": 12}],
    "bot_clicks": 3,
}
POINT: dict[str, Any] = {"period": "2026-03-02", "clicks": 7, "bot_clicks": 1}
TIMELINE: dict[str, Any] = {"short_code": "aB3xY9z", "interval": "day", "points": [POINT]}
_SPAN: dict[str, Any] = {"from": "2026-03-01T23:00:00Z", "to": "2026-03-02T23:00:00Z"}
SERIES: dict[str, Any] = {
    "short_code": "aB3xY9z",
    "interval": "day",
    "tz": "Europe/Berlin",
    **_SPAN,
    "clicks": 7,
    "bot_clicks": 1,
    "points": [POINT],
}
BREAKDOWN: dict[str, Any] = {
    "short_code": "aB3xY9z",
    "by": "country",
    **_SPAN,
    "clicks": 7,
    "values": [{"value": "DE", "clicks": 4}, {"value": "FR", "clicks": 1}],
    "other": 1,
    "unknown": 1,
}
VISITORS: dict[str, Any] = {
    "short_code": "aB3xY9z",
    "interval": "day",
    "tz": "Europe/Berlin",
    **_SPAN,
    "visitors": 5,
    "points": [{"period": "2026-03-02", "visitors": 5}],
}
CLICK: dict[str, Any] = {
    "id": "019531f0-5b7c-7cc1-a51b-0a1b2c3d4e5f",
    "clicked_at": "2026-03-02T08:15:00Z",
    "bot": False,
    "referer": "https://news.example/today",
    "referrer": "news.example",
    "country": "DE",
    "region": None,
    "city": None,
    "latitude": None,
    "longitude": None,
    "browser": "Firefox 135",
    "os": "Linux",
    "device": "desktop",
    "language": "de-DE",
    "utm_source": "newsletter",
    "utm_medium": None,
    "utm_campaign": None,
    "utm_term": None,
    "utm_content": None,
    "user_agent": "Mozilla/5.0 (X11; Linux x86_64; rv:135.0) Gecko/20100101 Firefox/135.0",
}
SUMMARY: dict[str, Any] = {
    "links": 3,
    "total_clicks": 42,
    "bot_clicks": 3,
    "clicks_last_24h": 5,
    "clicks_last_7d": 20,
    "top_links": [
        {
            "short_code": "aB3xY9z",
            "title": "Spring",
            "total_clicks": 40,
            "bot_clicks": 3,
            "last_clicked_at": "2026-03-02T08:15:00Z",
        }
    ],
}

_MEANINGS = {
    400: ("A parameter is wrong; the message says which.", "interval must be 'day' or 'hour'"),
    401: ("There is no good token, and without one these statistics are not shown.", "unauthorized"),
    403: ("The link is another user's.", "forbidden"),
    404: ("There is no such link.", "not found"),
    410: ("The link is deleted, and only its owner may read on.", "this link is no longer active"),
    429: ("So many streams are open already; `Retry-After` says when to try again.", "too many live streams"),
    503: ("It cannot be done now, and may be tried again.", "service unavailable"),
}

errors = Errors(_MEANINGS, everywhere=(400, 401, 403, 503))


FILE = ResponseSpec(str, description="The file.", media_type="text/csv", generate_examples=False)
