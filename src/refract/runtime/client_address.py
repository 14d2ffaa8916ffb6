"""Who is asking: the address of the client behind the proxies we trust. It is never logged (decision 11)."""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network

OWN_BITS = 64
"""Of an IPv6 address: what comes after them, everybody chooses in their own network."""

_OWN_PART = ((1 << OWN_BITS) - 1) << (128 - OWN_BITS)


def address_hash(address: str, salt: str) -> str:
    """What stands for an address wherever it would be kept (M3 §6.2.1); an address that is none may be any text."""
    return hashlib.sha256(f"{address}{salt}".encode(errors="surrogatepass")).hexdigest()


def client_of(address: str) -> str:
    """By what the client at an address is counted: the address, or the network of an IPv6 one.

    In its own network everybody has a fresh address for every request.
    """
    parsed = _parse(address)
    if not isinstance(parsed, IPv6Address):
        return address if parsed is None else str(parsed)  # None: a peer that has no address
    return f"{IPv6Address(int(parsed) & _OWN_PART)}/{OWN_BITS}"


def hashes_with(salt: str) -> Callable[[str], str]:
    """The hashes of clients, by address, for one salt; it remembers whom it saw lately."""
    return lru_cache(maxsize=65_536)(lambda address: address_hash(client_of(address), salt))


class ClientAddresses:
    """Reads a client's address with regard to TRUSTED_PROXIES (decision 15)."""

    def __init__(self, trusted_proxies: Sequence[Network] = ()) -> None:
        self._trusted = tuple(trusted_proxies)

    def find(self, peer: str, forwarded_for: Sequence[bytes] = ()) -> str:
        """The peer's address, or for a trusted peer the right-most hop of `X-Forwarded-For` that is not trusted too.

        What stands left of a hop that is no address is not believed. Where every hop is trusted, the left-most one that
        is believed is the client.
        """
        address = _parse(peer)
        if address is None:
            return peer
        if not forwarded_for or not self._trusts(address):
            return str(address)
        for hop in reversed(b",".join(forwarded_for).decode("latin-1").split(",")):
            parsed = _parse_hop(hop.strip())
            if parsed is None:
                break
            address = parsed
            if not self._trusts(address):
                break
        return str(address)

    def trusts(self, peer: str) -> bool:
        """Whether a peer is a proxy whose word counts."""
        address = _parse(peer)
        return address is not None and self._trusts(address)

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._trusted)


@lru_cache(maxsize=4096)
def _parse(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.partition("%")[0])  # a zone says which of our interfaces, not which client
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _parse_hop(text: str) -> IPv4Address | IPv6Address | None:
    """Some proxies add the client's port."""
    if text.startswith("["):
        return _parse(text[1:].partition("]")[0])
    if text.count(":") == 1:
        return _parse(text.partition(":")[0])
    return _parse(text)
