"""What a client may send for each field of a link, as the generated documentation says it.

Only said, and not enforced: whoever reads a field checks it, and names what is wrong in words of ours.
"""

from typing import Annotated, Any

from msgspec import Meta

from refract.services.links.domain.codes import ALIAS_PATTERN
from refract.services.links.domain.destinations import URL_LENGTH
from refract.services.links.domain.link import NOTES_LENGTH, REDIRECT_STATUSES, TAG_LENGTH, TAGS, TITLE_LENGTH, Status


def _says(description: str, **schema: Any) -> Meta:
    return Meta(description=description, extra_json_schema={"extra": schema})


_URL: dict[str, Any] = {"minLength": 1, "maxLength": URL_LENGTH}

Url = Annotated[
    str,
    _says("Where the link leads: an `http` or `https` URL, not one of this service's own domains.", **_URL),
]
WantedUrl = Annotated[
    str | None,
    _says(
        "What is to be shortened; it has to be there. An `http` or `https` URL, not one of this service's own domains.",
        type="string",  # an answer of ours says that it is missing, and so the type allows that
        one_of=None,
        **_URL,
    ),
]
Alias = Annotated[
    str,
    _says(
        "A code of one's own choice: letters, digits and hyphens. Some words are reserved, such as `api` and `login`.",
        pattern=f"^{ALIAS_PATTERN}$",
    ),
]
Expiry = Annotated[
    str,
    _says(
        "When the link ends: a moment in the future, in RFC 3339 with its offset from UTC. Null is never.",
        format="date-time",
    ),
]
Title = Annotated[str, _says("One line of text, without control characters.", maxLength=TITLE_LENGTH)]
Notes = Annotated[str, _says("Text of any number of lines, for the owner.", maxLength=NOTES_LENGTH)]
Tags = Annotated[
    list[str],
    _says(
        "Each is one line of text. The same tag twice counts once, and the order is lost.",
        maxItems=TAGS,
        items={"type": "string", "minLength": 1, "maxLength": TAG_LENGTH},
    ),
]
RedirectStatus = Annotated[int, _says("The status of the redirect.", enum=[*REDIRECT_STATUSES])]
WantedRedirectStatus = Annotated[
    int | None,
    _says("The status of the redirect; the instance's own where none is given.", enum=[*REDIRECT_STATUSES, None]),
]
StatsPublic = Annotated[bool, _says("Whether everybody may read the link's statistics.")]
SetStatus = Annotated[
    str,
    _says(
        "Whether the link redirects. The other two states are not set: a link expires, or is deleted.",
        enum=[Status.ACTIVE.value, Status.DISABLED.value],
    ),
]
