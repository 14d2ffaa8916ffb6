"""Where a click came from on the map: a database of cities that the operator gives, or else a table of countries."""

import logging
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refract.kernel.clock import Clock
from refract.services.analytics.domain.clicks import bounded

if TYPE_CHECKING:
    from maxminddb import Reader

logger = logging.getLogger("refract.geography")

Place = tuple[str, str, str, float | None, float | None]
"""Country, region, city, latitude and longitude, in the order of a click."""

NOWHERE: Place = ("", "", "", None, None)

LOOK_SECONDS = 60.0
"""How often a new edition of the database is looked for: they come every week, and nobody restarts for one."""

_COUNTRY = re.compile(r"[A-Z]{2}")

_Edition = tuple[int, int, int]


class Geography:
    """Finds places. A database that is missing or broken costs a warning and the cities, never a click.

    The table of countries comes from the lists of the five internet registries, which say to which country an address
    was given: right for about nineteen in twenty, and free.
    """

    def __init__(self, path: Path | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._reader: Reader | None = None
        self._edition: _Edition | None = None
        self._look_at = -math.inf
        self._complained = False

    def renew(self) -> bool:
        """Open the database, or its new edition; whether there is one. Asked before every batch, looked at at times.

        A new edition has to be renamed into its place, as the usual tools do: the old one is mapped into memory.
        """
        if self._path is None or self._clock.monotonic() < self._look_at:
            return False
        self._look_at = self._clock.monotonic() + LOOK_SECONDS
        try:
            edition = _edition(self._path)
            if edition == self._edition:
                return False
            self._edition, self._complained = edition, False
            reader = _opened(self._path)
            kind = bounded(str(reader.metadata().database_type))
        except Exception as error:  # noqa: BLE001  # a bad byte in it may come out as anything
            self._complain(error)
            return False
        self._reader = reader
        logger.info("places come from a database", extra={"path": str(self._path), "kind": kind})
        return True

    def place_of(self, address: str) -> Place:
        """The place of an address, or of no address; of a private one nothing is known."""
        place = self._in_database(address)
        return place if place[0] else (_country_in_table(address), *place[1:])

    def _in_database(self, address: str) -> Place:
        reader = self._reader
        if reader is None or not address or (":" in address and reader.metadata().ip_version == 4):
            return NOWHERE
        try:
            return place_in(reader.get(address))
        except Exception as error:  # noqa: BLE001  # broken at this place, perhaps not at others
            self._complain(error)
            return NOWHERE

    def _complain(self, error: Exception) -> None:
        """Once for an edition: what is broken in one place is broken in many."""
        if not self._complained:
            self._complained = True
            logger.warning(
                "the database of GEOIP_DB cannot be read; without it only countries are known",
                extra={"path": str(self._path), "error": bounded(f"{type(error).__name__}: {error}")},
            )


def place_in(record: Any) -> Place:
    """The place in a record of a database: as MaxMind writes it, or flat, as others do."""
    if not isinstance(record, dict):
        return NOWHERE
    location = record.get("location")
    spot = location if isinstance(location, dict) else record
    latitude, longitude = _degrees(spot.get("latitude"), 90.0), _degrees(spot.get("longitude"), 180.0)
    if latitude is None or longitude is None:
        latitude = longitude = None
    divisions = record.get("subdivisions")
    region = divisions[0] if isinstance(divisions, list) and divisions else record.get("region")
    return _code(record), _name(region), _name(record.get("city")), latitude, longitude


def _code(record: dict[str, Any]) -> str:
    for key in ("country", "registered_country", "country_code"):
        found = record.get(key)
        if isinstance(found, dict):
            found = found.get("iso_code")
        if isinstance(found, str) and _COUNTRY.fullmatch(found.upper()):
            return found.upper()
    return ""


def _name(found: Any) -> str:
    """The English name, or another, or the code."""
    if isinstance(found, dict):
        names = found.get("names")
        if isinstance(names, dict) and names:
            found = names.get("en", next(iter(names.values())))
        else:
            found = found.get("iso_code")
    return bounded(found) if isinstance(found, str) else ""


def _degrees(found: Any, most: float) -> float | None:
    try:
        degrees = float(found)
    except (TypeError, ValueError):
        return None
    return round(degrees, 4) if abs(degrees) <= most else None


def _edition(path: Path) -> _Edition:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _opened(path: Path) -> "Reader":
    """By the reader in Python: the one in C takes a twentieth of the time, and a bad byte can kill the process with it.

    Places are remembered, so that the time is paid once for a network.
    """
    import maxminddb  # noqa: PLC0415  # only who has a database pays for its reader

    return maxminddb.open_database(path, maxminddb.MODE_MMAP)


def _country_in_table(address: str) -> str:
    if not address:
        return ""
    import iptocc  # noqa: PLC0415  # a table of two megabytes, which nobody pays for before a click

    return iptocc.country_code(address) or ""
