"""How a campaign names itself: the utm fields behind the question mark of a short link."""

from urllib.parse import unquote_plus

from refract.services.analytics.domain.clicks import bounded

Campaign = tuple[str, str, str, str, str]
"""Source, medium, campaign, term and content."""

FIELDS = ("utm_source", "utm_medium", "utm_campaign", "utm_term", "utm_content")
NONE: Campaign = ("", "", "", "", "")

_PLACES = {name: place for place, name in enumerate(FIELDS)}


def campaign_of(query: str) -> Campaign:
    """The five fields of a query; the first of each counts, and what cannot be read is shown as such."""
    if "utm_" not in query.lower() and "%" not in query:
        return NONE
    found = list(NONE)
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        place = _PLACES.get((unquote_plus(name) if "%" in name else name).lower())
        if place is not None and not found[place]:
            found[place] = bounded(unquote_plus(value).strip())
    return found[0], found[1], found[2], found[3], found[4]
