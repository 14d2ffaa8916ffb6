"""The language of a visitor: what a browser asks for first."""

import re

_TAG = re.compile(r"([a-z]{2,3})(?:-([a-z]{4}))?(?:-([a-z]{2}|[0-9]{3}))?(?:-[a-z0-9-]*)?", re.IGNORECASE)
_WEIGHT = re.compile(r"\s*q\s*=\s*(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\s*")

LONGEST_TAG = 35
"""What RFC 5646 asks everybody to have room for."""

CONSIDERED = 16
"""Of a list as long as it may be, the first so many are looked at."""


def language_of(accepted: str) -> str:
    """The tag of the language wanted most, as in "de", "pt-BR" or "zh-Hant-TW"; nothing if there is none."""
    best, heaviest = "", 0.0
    for choice in accepted.split(",", CONSIDERED)[:CONSIDERED]:
        tag, _, weight = choice.partition(";")
        wanted = _weight(weight)
        if wanted > heaviest and (found := _tag(tag.strip())):
            best, heaviest = found, wanted
    return best


def _weight(text: str) -> float:
    """What is said of a choice that says nothing is one; what says something unreadable is the last resort."""
    if not text:
        return 1.0
    match = _WEIGHT.fullmatch(text)
    return float(match[1]) if match else 0.001


def _tag(text: str) -> str:
    """The language, its script and its region; variants beyond them are left away."""
    match = _TAG.fullmatch(text) if len(text) <= LONGEST_TAG else None
    if match is None:
        return ""
    language, script, region = match.groups()
    parts = (language.lower(), script and script.title(), region and region.upper())
    return "-".join(part for part in parts if part)
