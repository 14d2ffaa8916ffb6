"""Who is asking: the address of the client behind the proxies we trust. It is never logged (decision 11)."""

import hashlib
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from typing import NamedTuple

Network = IPv4Network | IPv6Network

OWN_BITS = 64
"""Of an IPv6 address: what comes after them, everybody chooses in their own network."""

_OWN_PART = ((1 << OWN_BITS) - 1) << (128 - OWN_BITS)


def address_hash(address: str, salt: str) -> str:
    """What stands for an address wherever it would be kept (M3 §6.2.1); an address that is none may be any text."""
    return hashlib.sha256(f"{address}{salt}".encode(errors="surrogatepass")).hexdigest()


class Address(NamedTuple):
    """An address as everybody writes it, as a number, and which kind of number it is: 4 or 6."""

    text: str
    number: int
    version: int


@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address | None:
    """The address that a text is; None for any other text.

    Whoever follows a link for the first time waits for it: `ipaddress` would take several times as long.
    """
    text = text.partition("%")[0]  # a zone says which of our interfaces, not which client
    try:
        if ":" not in text:  # what this takes is written in the only way there is
            return Address(text, int.from_bytes(socket.inet_pton(socket.AF_INET, text), "big"), 4)
        address = IPv6Address(text)
    except (OSError, ValueError):
        return None
    mapped = address.ipv4_mapped
    return Address(str(address), int(address), 6) if mapped is None else Address(str(mapped), int(mapped), 4)


def client_of(address: str) -> str:
    """By what the client at an address is counted: the address, or the network of an IPv6 one.

    In its own network everybody has a fresh address for every request.
    """
    parsed = parse_address(address)
    if parsed is None:
        return address  # a peer that has no address
    return parsed.text if parsed.version == 4 else f"{IPv6Address(parsed.number & _OWN_PART)}/{OWN_BITS}"


def hashes_with(salt: str) -> Callable[[str], str]:
    """The hashes of clients, by address, for one salt; it remembers whom it saw lately."""
    return lru_cache(maxsize=65_536)(lambda address: address_hash(client_of(address), salt))


class ClientAddresses:
    """Reads a client's address with regard to TRUSTED_PROXIES (decision 15)."""

    def __init__(self, trusted_proxies: Sequence[Network] = ()) -> None:
        self._trusted = [(one.version, int(one.netmask), int(one.network_address)) for one in trusted_proxies]

    def find(self, peer: str, forwarded_for: Sequence[bytes] = ()) -> str:
        """The peer's address, or for a trusted peer the right-most hop of `X-Forwarded-For` that is not trusted too.

        What stands left of a hop that is no address is not believed. Where every hop is trusted, the left-most one that
        is believed is the client.
        """
        address = parse_address(peer)
        if address is None:
            return peer
        if not forwarded_for or not self._trusts(address):
            return address.text
        for hop in reversed(b",".join(forwarded_for).decode("latin-1").split(",")):
            parsed = _parse_hop(hop.strip())
            if parsed is None:
                break
            address = parsed
            if not self._trusts(address):
                break
        return address.text

    def trusts(self, peer: str) -> bool:
        """Whether a peer is a proxy whose word counts."""
        address = parse_address(peer)
        return address is not None and self._trusts(address)

    def _trusts(self, address: Address) -> bool:
        _, number, kind = address
        for version, mask, network in self._trusted:  # noqa: SIM110  # a generator would cost more than the look
            if kind == version and number & mask == network:
                return True
        return False


def _parse_hop(text: str) -> Address | None:
    """Some proxies add the client's port."""
    if text.startswith("["):
        return parse_address(text[1:].partition("]")[0])
    if text.count(":") == 1:
        return parse_address(text.partition(":")[0])
    return parse_address(text)
