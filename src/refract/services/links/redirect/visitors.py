"""Who follows a link, as far as anybody may know: a salted hash, and an address without its last part."""

from collections import OrderedDict
from ipaddress import IPv6Address

from refract.runtime.client_address import address_hash, client_of, parse_address

CAPACITY = 65_536

_IPV6_KEPT = ((1 << 48) - 1) << 80


class Visitor:
    """What a click says of an address. `fragment` is both fields as they stand in the click's JSON.

    `counted` is the hash by which limits know them: that of a whole network, where its owner has addresses to waste.
    """

    __slots__ = ("anonymized", "counted", "fragment", "ip_hash")

    def __init__(self, ip_hash: str, anonymized: str, counted: str) -> None:
        self.ip_hash = ip_hash
        self.counted = counted
        self.anonymized = anonymized
        # Neither has a character that JSON would escape.
        self.fragment = f'"ip_hash":"{ip_hash}","ip_anonymized":"{anonymized}"'.encode()


class Visitors:
    """Knows the visitors of late, so that one who comes again costs a lookup. Addresses never leave the memory."""

    def __init__(self, salt: str, capacity: int = CAPACITY) -> None:
        self._salt = salt
        self._capacity = capacity
        # A plain dict would look for its oldest key through the holes of all that were thrown out before.
        self._known: OrderedDict[str, Visitor] = OrderedDict()

    def of(self, address: str) -> Visitor:
        """The visitor at an address."""
        return self._known.get(address) or self._meet(address)

    def _meet(self, address: str) -> Visitor:
        ip_hash, client = address_hash(address, self._salt), client_of(address)
        counted = ip_hash if client == address else address_hash(client, self._salt)
        visitor = Visitor(ip_hash, anonymized(address), counted)
        if len(self._known) >= self._capacity:
            self._known.popitem(last=False)
        self._known[address] = visitor
        return visitor


def anonymized(address: str) -> str:
    """An address without its last octet, or its last 80 bits; nothing for what is no address."""
    parsed = parse_address(address)
    if parsed is None:
        return ""
    if parsed.version == 4:
        return f"{parsed.text.rpartition('.')[0]}.0"
    return str(IPv6Address(parsed.number & _IPV6_KEPT))
