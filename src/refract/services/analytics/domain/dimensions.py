"""By what the clicks of a link can be broken down."""

DIMENSIONS: tuple[str, ...] = (
    "referer",
    "referrer",
    "country",
    "region",
    "city",
    "browser",
    "os",
    "device",
    "language",
    "utm_source",
    "utm_medium",
    "utm_campaign",
    "utm_term",
    "utm_content",
)
"""Names of fields of a click. `referer` is the whole of what the browser sent, `referrer` only its host."""
