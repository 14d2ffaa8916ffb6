"""The address of a click, which says where somebody is and never who."""

from ipaddress import IPv4Address, IPv6Address, ip_address

_IPV4_KEPT = 0xFFFFFF00
_IPV6_KEPT = ((1 << 48) - 1) << 80


def network_of(address: str) -> str:
    """The address without its last octet, or its last 80 bits; nothing for what is no address.

    The redirect has cut it already. Whoever else may have sent a click, no whole address is stored here (decision 11).
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    if isinstance(parsed, IPv4Address):
        return str(IPv4Address(int(parsed) & _IPV4_KEPT))
    return str(IPv6Address(int(parsed) & _IPV6_KEPT))
