"""Which addresses are one client's."""

import pytest

from refract.runtime.client_address import client_of, hashes_with


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::7", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a peer that has no address", "a peer that has no address"),
    ],
)
def test_an_ipv6_client_has_a_network_and_others_an_address(address: str, client: str) -> None:
    assert client_of(address) == client


def test_a_client_has_one_hash_whatever_its_address() -> None:
    who = hashes_with("salt")
    assert who("2001:db8:1:2::7") == who("2001:db8:1:2:ffff::1") != who("2001:db8:1:3::7")
    assert who("203.0.113.7") != who("203.0.113.8")
