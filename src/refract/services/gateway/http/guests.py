"""What follows from the header fields of a request alone, made once for all requests that repeat them."""

from msgspec import Struct

from refract.runtime.client_address import ClientAddresses
from refract.runtime.correlation import accept_correlation_id
from refract.runtime.fast_path import Headers
from refract.services.gateway.domain.callers import Asked, Offer
from refract.services.gateway.domain.headers import lines_of, own_fields, way_fields


class Guest(Struct, frozen=True, gc=False):
    """Somebody's header fields, read."""

    headers: Headers
    asked: Asked
    offer: Offer | None
    address: str
    own: bytes
    """Those of his own that pass, as a service gets them."""
    way: bytes
    """How he came, in our words."""
    correlation_id: bytes
    """The one that he brings; empty where he brings none."""

    @classmethod
    def of(cls, headers: Headers, peer: str, addresses: ClientAddresses) -> "Guest":
        """Read the fields of a request that came from this peer; raises Invalid."""
        asked = Asked.of(headers, "http")
        if asked.says_how_it_came and addresses.trusts(peer):
            asked.believe()
        address = addresses.find(peer, [value for name, value in headers if name == b"x-forwarded-for"])
        return cls(
            headers,
            asked,
            asked.offer(),
            address,
            lines_of(own_fields(headers)),
            lines_of(way_fields(address, asked.scheme, asked.host)),
            offered_correlation_id(headers),
        )


def offered_correlation_id(headers: Headers) -> bytes:
    """The id that a request brings; empty where it brings none."""
    for name, value in headers:
        if name == b"x-correlation-id":
            return accept_correlation_id(value.decode("latin-1")).encode()
    return b""
