"""Whose an address is: what is counted by address is counted by client."""

from ipaddress import IPv6Address, IPv6Network, ip_address

OWN_BITS = 64
"""Of an IPv6 address: what comes after them, everybody chooses in their own network."""


def client_of(address: str) -> str:
    """An IPv4 address, or the network of an IPv6 one, in which its owner has a fresh address for every request."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address  # a peer that has none
    if not isinstance(parsed, IPv6Address):
        return address
    return str(IPv6Network((parsed, OWN_BITS), strict=False))
