"""Addresses of the public internet: those that we call because a user named them."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

# Of the special networks, those that `is_global` lets pass in one version of Python or another.
_NOT_OURS_TO_CALL = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # Azure's metadata and more, from inside
            "192.0.0.0/24",  # protocols; Oracle's metadata
            "192.88.99.0/24",  # relays of 6to4
            "224.0.0.0/4",  # multicast
            "2001::/23",  # Teredo and other protocols: an IPv4 address can be inside
            "2002::/16",  # 6to4: an IPv4 address is inside
            "3fff::/20",  # for documents
            "ff00::/8",  # multicast
        ),
    )
)
_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet: not to us, our network, the provider's inside or a group."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, IPv6Address):
        inside = _inside(parsed)
        if inside is not None:
            return is_public(str(inside))
        if parsed not in _UNICAST:
            return False
    return parsed.is_global and not any(
        parsed in network for network in _NOT_OURS_TO_CALL if network.version == parsed.version
    )


def _inside(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a machine reaches by this one: mapped by its kernel, or by the network (NAT64)."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped
