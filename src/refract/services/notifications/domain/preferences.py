"""How a user wants to be told: by which channels of which events, at once or in a digest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self, TypeVar

from refract.kernel.errors import Invalid
from refract.services.notifications.domain.notices import TOLD, WEBHOOK_DISABLED

LINK_EVENTS: tuple[str, ...] = tuple(event.routing_key() for event in TOLD)
"""What a webhook may be told of."""

EVENTS = (*LINK_EVENTS, WEBHOOK_DISABLED)


class Channel(StrEnum):
    """A way to a user beside the list in the product, which has everything.

    `log` is a line in the log in place of a mail, where the instance sends none.
    """

    LOG = "log"
    EMAIL = "email"


class Digest(StrEnum):
    """How often mails are gathered into one; `off` sends each at once."""

    OFF = "off"
    DAILY = "daily"
    WEEKLY = "weekly"


Word = TypeVar("Word", bound=StrEnum)

_ALL = (Channel.LOG, Channel.EMAIL)
# Nobody wants a mail about what they have just done themselves, a thousand times over when they do it in bulk.
_DEFAULTS: Mapping[str, tuple[Channel, ...]] = {
    event: _ALL if event in {"milestone.reached", WEBHOOK_DISABLED} else (Channel.LOG,) for event in EVENTS
}


@dataclass(frozen=True, slots=True)
class Preferences:
    """What a user has chosen, or the defaults."""

    channels: Mapping[str, tuple[Channel, ...]] = field(default_factory=lambda: dict(_DEFAULTS))
    digest: Digest = Digest.OFF

    @classmethod
    def of_document(cls, document: Mapping[str, Any] | None) -> Self:
        """From what is kept; what a later version no longer knows is passed over."""
        kept = document or {}
        channels = dict(_DEFAULTS)
        for event, names in kept.get("channels", {}).items():
            if event in channels:
                channels[event] = tuple(channel for channel in Channel if channel in names)
        return cls(channels, Digest(kept.get("digest", Digest.OFF)))

    def document(self) -> dict[str, Any]:
        """The form that is kept, which is also the form that is shown."""
        return {
            "channels": {event: [channel.value for channel in self.channels[event]] for event in EVENTS},
            "digest": self.digest.value,
        }

    def changed(self, channels: Mapping[str, Sequence[str]], digest: str | None) -> Self:
        """With these channels for the events that are named, and this digest if there is one; raises Invalid."""
        chosen = dict(self.channels)
        for event, names in channels.items():
            if event not in chosen:
                raise Invalid(f"channels has an event that is not one of {', '.join(EVENTS)}")
            wanted = {_word(f"channels of {event}", name, Channel) for name in names}
            chosen[event] = tuple(channel for channel in Channel if channel in wanted)
        return replace(self, channels=chosen, digest=self.digest if digest is None else _word("digest", digest, Digest))

    def wants_mail(self, event_type: str) -> bool:
        """Whether an instance that sends mails sends one of this."""
        return Channel.EMAIL in self.channels.get(event_type, ())

    def wants_line(self, event_type: str) -> bool:
        """Whether an instance that sends none logs that it would have."""
        return bool(self.channels.get(event_type))


def _word(name: str, text: str, words: type[Word]) -> Word:
    try:
        return words(text)
    except ValueError:
        raise Invalid(f"{name} must be one of {', '.join(words)}") from None
