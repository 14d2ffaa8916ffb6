"""Which addresses belong to the public internet, in every form in which another address can hide."""

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.kernel.public_addresses import is_public

PUBLIC = ["8.8.8.8", "1.1.1.1", "93.184.216.34", "172.32.0.1", "11.0.0.1", "2606:4700::1111", "2a00:1450:4001::1"]
INSIDE = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
    "169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1",
    "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250",
    "240.0.0.1", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::127.0.0.1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
    "2001:db8::1", "100::1", "2001::1", "2001:10::1", "2002::1", "2002:7f00:1::", "2002:808:808::", "3fff::1",
    "5f00::1",
    "64:ff9b:1::808:808", "64:ff9b::", "4000::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", INSIDE)
def test_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", [one for one in PUBLIC + INSIDE if "." in one and ":" not in one])
def test_an_address_in_another_is_judged_as_itself(address: str) -> None:
    number = int(IPv4Address(address))
    for prefix in ("::ffff:0:0", "64:ff9b::"):
        assert is_public(str(IPv6Address(int(IPv6Address(prefix)) + number))) is is_public(address)
    for hidden in (f"::{address}", str(IPv6Address((0x2002 << 112) + (number << 80)))):
        assert not is_public(hidden)


@pytest.mark.parametrize(
    "text", ["", "localhost", "127.1", "0x7f.0.0.1", "2130706433", "1.1.1.1.1", "[::1]", " 8.8.8.8", "%", "8.8.8.8/32"]
)
def test_what_is_no_address_is_not_public(text: str) -> None:
    assert not is_public(text)


_PRIVATE = [
    ip_network(one) for one in ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
]


@given(st.sampled_from(_PRIVATE), st.integers(0, 2**32 - 1))
def test_nothing_of_a_private_network_is_public(network: object, number: int) -> None:
    address = network[number % network.num_addresses]  # type: ignore[index,attr-defined]
    assert not is_public(str(address))
    assert not is_public(f"::ffff:{address}")


@given(st.text())
def test_any_text_is_answered(text: str) -> None:
    assert is_public(text) in {True, False}
