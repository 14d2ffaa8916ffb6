"""Visitors: hashed, anonymised, and remembered within bounds."""

import hashlib
from ipaddress import ip_address
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.services.links.redirect.visitors import Visitors

SALT = "a-salt-of-tests"


@pytest.mark.parametrize(
    ("address", "anonymized"),
    [
        ("203.0.113.77", "203.0.113.0"),
        ("255.255.255.255", "255.255.255.0"),
        ("2001:db8:85a3:8d3:1319:8a2e:370:7348", "2001:db8:85a3::"),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff::"),
        ("::1", "::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:203.0.113.77", "203.0.113.0"),
        ("", ""),
        ("unix", ""),
        ("203.0.113.77:80", ""),
        ("\ud800", ""),
    ],
)
def test_the_last_part_of_an_address_is_gone(address: str, anonymized: str) -> None:
    assert Visitors(SALT).of(address).anonymized == anonymized


def test_the_hash_is_of_address_and_salt() -> None:
    visitor = Visitors(SALT).of("203.0.113.77")
    assert visitor.ip_hash == hashlib.sha256(f"203.0.113.77{SALT}".encode()).hexdigest()
    assert Visitors("another salt").of("203.0.113.77").ip_hash != visitor.ip_hash


@given(st.one_of(st.ip_addresses().map(str), st.text()))
def test_the_fragment_is_the_two_fields(address: str) -> None:
    visitor = Visitors(SALT).of(address)
    fields = msgspec.json.decode(b"{%b}" % visitor.fragment)
    assert fields == {"ip_hash": visitor.ip_hash, "ip_anonymized": visitor.anonymized}


@given(st.ip_addresses())
def test_who_comes_again_is_the_same_and_nothing_raw_is_told(address: object) -> None:
    visitors = Visitors(SALT)
    first = visitors.of(str(address))
    assert visitors.of(str(address)) is first
    if ip_address(str(address)) != ip_address(first.anonymized):
        assert str(address).encode() not in first.fragment.replace(first.ip_hash.encode(), b"")


def test_the_oldest_are_forgotten() -> None:
    visitors = Visitors(SALT, capacity=3)
    first, second, third = (visitors.of(f"203.0.113.{number}") for number in range(3))
    visitors.of("203.0.113.3")
    assert len(visitors._known) == 3
    assert visitors.of("203.0.113.1") is second
    assert visitors.of("203.0.113.2") is third
    assert visitors.of("203.0.113.0") is not first
    assert visitors.of("203.0.113.0").ip_hash == first.ip_hash


def test_addresses_that_differ_have_hashes_that_differ() -> None:
    visitors = Visitors(SALT)
    hashes = sorted(visitors.of(f"203.0.113.{number}").ip_hash for number in range(256))
    assert all(one != other for one, other in pairwise(hashes))
