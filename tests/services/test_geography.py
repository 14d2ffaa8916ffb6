"""Places: from a database of cities, from the table of countries, and from nothing at all."""

import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from refract.services.analytics.adapters.geography import LOOK_SECONDS, NOWHERE, Geography, Place, place_in
from tests.support.clocks import ManualClock
from tests.support.maps import BERLIN, write_map

GOOGLE = "8.8.8.0"
"""In the table of countries, and a round address: the last part is gone."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What we said ourselves: asyncio speaks of a task that failed in another test whenever it is collected."""
    return [record for record in caplog.records if record.name.startswith("refract")]


def opened(path: Path | None, clock: ManualClock) -> Geography:
    geography = Geography(path, clock)
    geography.renew()
    return geography


def test_a_city_is_found_with_its_region_and_its_coordinates(tmp_path: Path, clock: ManualClock) -> None:
    geography = opened(write_map(tmp_path / "cities.mmdb", {"203.0.113.0/24": BERLIN}), clock)

    assert geography.place_of("203.0.113.0") == ("DE", "State of Berlin", "Berlin", 52.5196, 13.4069)


def test_a_city_is_found_by_its_ipv6_network(tmp_path: Path, clock: ManualClock) -> None:
    geography = opened(write_map(tmp_path / "cities.mmdb", {"2001:db8:7::/48": BERLIN}), clock)

    assert geography.place_of("2001:db8:7::")[2] == "Berlin"
    assert geography.place_of("2001:db8:8::") == NOWHERE


def test_a_database_of_ipv4_alone_leaves_ipv6_to_the_table(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    geography = opened(write_map(tmp_path / "cities.mmdb", {"203.0.113.0/24": BERLIN}, ip_version=4), clock)

    assert geography.place_of("2001:4860:4860::") == ("US", "", "", None, None)
    assert ours(caplog) == [], "there is nothing wrong with it"


def test_an_address_that_the_database_does_not_know_has_the_country_of_the_table(
    tmp_path: Path, clock: ManualClock
) -> None:
    geography = opened(write_map(tmp_path / "cities.mmdb", {"203.0.113.0/24": BERLIN}), clock)

    assert geography.place_of(GOOGLE) == ("US", "", "", None, None)


@pytest.mark.parametrize(("address", "country"), [(GOOGLE, "US"), ("2001:4860:4860::", "US"), ("193.0.0.0", "NL")])
def test_countries_are_known_without_a_database(clock: ManualClock, address: str, country: str) -> None:
    assert opened(None, clock).place_of(address) == (country, "", "", None, None)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "10.0.0.0",
            "127.0.0.0",
            "172.16.5.0",
            "192.168.1.0",
            "169.254.0.0",
            "100.64.0.0",
            "224.0.0.0",
            "0.0.0.0",
        ),
        *("::", "fe80::", "fc00::", "2001:db8::", "ff02::"),
    ],
)
def test_of_a_private_address_or_none_nothing_is_known(tmp_path: Path, clock: ManualClock, address: str) -> None:
    cities = write_map(tmp_path / "cities.mmdb", {"203.0.113.0/24": BERLIN})

    assert opened(cities, clock).place_of(address) == NOWHERE
    assert opened(None, clock).place_of(address) == NOWHERE


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "noise", "cut", "text"])
def test_a_database_that_cannot_be_read_costs_one_warning_and_the_cities(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    path = spoiled(tmp_path, kind)
    geography = Geography(path, clock)

    for _ in range(3):
        assert not geography.renew()
        clock.advance(LOOK_SECONDS)
        assert geography.place_of(GOOGLE) == ("US", "", "", None, None)

    assert [record.levelno for record in ours(caplog)] == [logging.WARNING]
    assert "GEOIP_DB" in caplog.text


def spoiled(folder: Path, kind: str) -> Path:
    path = folder / "cities.mmdb"
    good = write_map(folder / "good.mmdb", {"203.0.113.0/24": BERLIN}).read_bytes()
    contents = {
        "empty": b"",
        "noise": random.Random(1).randbytes(4096),
        "cut": good[: len(good) // 2],
        "text": b"{}" * 99,
    }
    if kind == "folder":
        path.mkdir()
    elif kind in contents:
        path.write_bytes(contents[kind])
    return path


def test_a_database_with_a_bad_byte_never_fails(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refract")
    good = write_map(tmp_path / "good.mmdb", {"203.0.113.0/24": BERLIN, "2001:db8:7::/48": BERLIN}).read_bytes()
    path = tmp_path / "cities.mmdb"
    chance = random.Random(7)
    read = 0
    for _ in range(400):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 8)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        path.unlink(missing_ok=True)
        path.write_bytes(bad)
        geography = Geography(path, clock)
        read += geography.renew()
        country, region, city, latitude, longitude = geography.place_of("203.0.113.0")
        assert all(len(text) <= 200 for text in (country, region, city))
        assert latitude is None or -90 <= latitude <= 90
        assert longitude is None or -180 <= longitude <= 180
        geography.place_of("2001:db8:7::")

        assert len(ours(caplog)) <= 2, "one line that it is open, one that it is broken"
        caplog.clear()

    assert 0 < read < 400, "some of them open, and some do not"


def test_it_is_read_by_python_because_the_reader_in_c_dies_of_a_bad_byte(tmp_path: Path, clock: ManualClock) -> None:
    geography = opened(write_map(tmp_path / "cities.mmdb", {"203.0.113.0/24": BERLIN}), clock)

    assert type(geography._reader).__module__ == "maxminddb.reader"


def test_a_new_edition_is_noticed_within_a_minute(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_map(tmp_path / "cities.mmdb", {"203.0.113.0/24": BERLIN})
    geography = Geography(path, clock)
    assert geography.renew()
    assert not geography.renew(), "it is looked at once a minute"
    write_map(path, {"203.0.113.0/24": {**BERLIN, "city": {"names": {"en": "Potsdam"}}}})

    assert not geography.renew()
    assert geography.place_of("203.0.113.0")[2] == "Berlin"
    clock.advance(LOOK_SECONDS)
    assert geography.renew()
    assert geography.place_of("203.0.113.0")[2] == "Potsdam"
    assert not [record for record in ours(caplog) if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", ["gone", "broken"])
def test_an_edition_that_cannot_be_read_leaves_the_one_before_it(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    path = write_map(tmp_path / "cities.mmdb", {"203.0.113.0/24": BERLIN})
    geography = opened(path, clock)
    path.unlink()
    if kind == "broken":
        path.write_bytes(b"not a database")
    clock.advance(LOOK_SECONDS)

    assert not geography.renew()
    assert geography.place_of("203.0.113.0")[2] == "Berlin"
    assert "GEOIP_DB" in caplog.text


def test_of_each_edition_that_cannot_be_read_one_warning_is_said(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cities.mmdb"
    geography = Geography(path, clock)
    for content in (b"not a database", b"not a database either"):
        path.write_bytes(content)
        for _ in range(3):
            geography.renew()
            clock.advance(LOOK_SECONDS)

    assert len(ours(caplog)) == 2


def test_a_database_that_comes_later_is_found(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "cities.mmdb"
    geography = opened(path, clock)
    assert geography.place_of("203.0.113.0") == NOWHERE
    write_map(path, {"203.0.113.0/24": BERLIN})
    clock.advance(LOOK_SECONDS)

    assert geography.renew()
    assert geography.place_of("203.0.113.0")[2] == "Berlin"


@pytest.mark.parametrize(
    ("record", "place"),
    [
        (None, NOWHERE),
        ("Berlin", NOWHERE),
        ([], NOWHERE),
        ({}, NOWHERE),
        ({"country": "de"}, ("DE", "", "", None, None)),
        ({"country_code": "DE", "country": "Germany"}, ("DE", "", "", None, None)),
        ({"registered_country": {"iso_code": "CH"}}, ("CH", "", "", None, None)),
        ({"country": {"iso_code": "DEU"}}, NOWHERE),
        ({"country": {"iso_code": 49}, "city": {"names": []}, "subdivisions": {}}, NOWHERE),
        ({"country": {"iso_code": "<script>"}}, NOWHERE),
        ({"city": "Bern", "region": "Bern", "latitude": "46.9", "longitude": "7.4"}, ("", "Bern", "Bern", 46.9, 7.4)),
        ({"city": {"names": {"de": "Zürich"}}}, ("", "", "Zürich", None, None)),
        ({"subdivisions": [{"iso_code": "ZH"}]}, ("", "ZH", "", None, None)),
        ({"subdivisions": []}, NOWHERE),
        ({"location": {"latitude": 91.0, "longitude": 7.0}}, NOWHERE),
        ({"location": {"latitude": 46.0}}, NOWHERE),
        ({"location": {"latitude": float("nan"), "longitude": float("inf")}}, NOWHERE),
        ({"location": {"latitude": True, "longitude": []}}, NOWHERE),
        ({"city": {"names": {"en": "x" * 300}}}, ("", "", "x" * 200, None, None)),
        ({"city": {"names": {"en": "a\0b"}}}, ("", "", "a\ufffdb", None, None)),
    ],
)
def test_a_record_is_read_as_far_as_it_makes_sense(record: Mapping[str, Any] | None, place: Place) -> None:
    assert place_in(record) == place
