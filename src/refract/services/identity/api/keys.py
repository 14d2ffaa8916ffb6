"""The life of API keys, as events: a key itself is in none of them, only its hash."""

from typing import Annotated, ClassVar

from msgspec import Meta

from refract.kernel.events import PlatformEvent

LARGEST_KEY_ID = (1 << 63) - 1

KeyId = Annotated[int, Meta(ge=1, le=LARGEST_KEY_ID)]
KeyHash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
"""BLAKE2b-256 of the whole key, in hexadecimal."""


class ApiKeyCreated(PlatformEvent, frozen=True, kw_only=True, tag="apikey.created"):
    """Somebody made a key."""

    needs_reader: ClassVar[bool] = False

    key_id: KeyId
    user_id: str
    key_hash: KeyHash


class ApiKeyRevoked(PlatformEvent, frozen=True, kw_only=True, tag="apikey.revoked"):
    """A key is good for nothing any more; whoever remembers it by its hash forgets it.

    Of an account that is suspended or deleted no key is named: `user.revoked` says it for all of them.
    """

    needs_reader: ClassVar[bool] = False

    key_id: KeyId
    user_id: str
    key_hash: KeyHash
