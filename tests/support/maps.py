"""Databases of places for tests, written in MaxMind's format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmdb_writer import MMDBWriter
from netaddr import IPSet  # type: ignore[import-untyped]

BERLIN = {
    "city": {"names": {"de": "Berlin", "en": "Berlin"}},
    "country": {"iso_code": "DE", "names": {"en": "Germany"}},
    "location": {"latitude": 52.5196, "longitude": 13.4069, "time_zone": "Europe/Berlin"},
    "subdivisions": [{"iso_code": "BE", "names": {"en": "State of Berlin"}}],
}


def write_map(path: Path, places: Mapping[str, Any], *, ip_version: int = 6) -> Path:
    """A database of networks and what is known of each."""
    writer = MMDBWriter(
        ip_version=6 if ip_version == 6 else 4,
        ipv4_compatible=ip_version == 6,
        database_type="Refract-Test-City",
        languages=["en"],
        float_type="f64",
    )
    for network, record in places.items():
        writer.insert_network(IPSet([network]), record)
    partial = path.with_suffix(".partial")
    writer.to_db_file(str(partial))
    return partial.replace(path)
