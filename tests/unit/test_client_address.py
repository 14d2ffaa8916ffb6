"""Whose address is believed."""

from ipaddress import ip_network

import pytest

from refract.runtime.client_address import ClientAddresses

PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "expected"),
    [
        pytest.param("203.0.113.7", [], "203.0.113.7", id="peer"),
        pytest.param("203.0.113.7", [b"1.2.3.4"], "203.0.113.7", id="claim of a stranger"),
        pytest.param("10.0.0.1", [], "10.0.0.1", id="proxy that says nothing"),
        pytest.param("10.0.0.1", [b"203.0.113.7"], "203.0.113.7", id="client of a proxy"),
        pytest.param("10.0.0.1", [b"1.2.3.4, 203.0.113.7"], "203.0.113.7", id="forged hop before the client"),
        pytest.param("10.0.0.1", [b"1.2.3.4", b"203.0.113.7"], "203.0.113.7", id="two fields are one list"),
        pytest.param("10.0.0.1", [b"203.0.113.7, 10.0.0.2,10.0.0.3"], "203.0.113.7", id="chain of proxies"),
        pytest.param("10.0.0.1", [b"10.0.0.9, 10.0.0.2"], "10.0.0.9", id="client inside our network"),
        pytest.param("10.0.0.1", [b"1.2.3.4, unknown, 10.0.0.2"], "10.0.0.2", id="left of a hop that is no address"),
        pytest.param("10.0.0.1", [b"1.2.3.4, \xff"], "10.0.0.1", id="last hop that is no address"),
        pytest.param("10.0.0.1", [b"1.2.3.4, "], "10.0.0.1", id="last hop that is empty"),
        pytest.param("10.0.0.1", [b"nonsense"], "10.0.0.1", id="nothing but nonsense"),
        pytest.param("10.0.0.1", [b"203.0.113.7:4711"], "203.0.113.7", id="port"),
        pytest.param("10.0.0.1", [b"[2001:db8::7]:4711"], "2001:db8::7", id="IPv6 with port"),
        pytest.param("10.0.0.1", [b"2001:DB8:0::7"], "2001:db8::7", id="one spelling of an IPv6 address"),
        pytest.param("::ffff:203.0.113.7", [], "203.0.113.7", id="IPv4 inside IPv6"),
        pytest.param("::ffff:10.0.0.1", [b"::ffff:203.0.113.7"], "203.0.113.7", id="proxy as IPv4 inside IPv6"),
        pytest.param("fd00::1", [b"203.0.113.7"], "203.0.113.7", id="IPv6 proxy"),
        pytest.param("fe80::1%eth0", [], "fe80::1", id="zone"),
    ],
)
def test_finds_the_client(peer: str, forwarded_for: list[bytes], expected: str) -> None:
    assert ClientAddresses(PROXIES).find(peer, forwarded_for) == expected


def test_believes_nobody_by_default() -> None:
    assert ClientAddresses().find("127.0.0.1", [b"1.2.3.4"]) == "127.0.0.1"
