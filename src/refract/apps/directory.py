"""Which services there are: their names, ports and needs, in one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from refract.runtime.settings import Engine
from refract.services.analytics import api as analytics
from refract.services.gateway import api as gateway
from refract.services.gateway.settings import URL_VARIABLES
from refract.services.identity import api as identity
from refract.services.links import api as links
from refract.services.notifications import api as notifications
from refract.services.projects import api as projects
from refract.services.sms import api as sms


@dataclass(frozen=True, slots=True)
class ServiceEntry:
    """One line of the table. `url_variable` is how the gateway is told where the service is."""

    name: str
    wire_name: str
    port: int
    needs: frozenset[Engine]
    url_variable: str = ""

    @property
    def has_database(self) -> bool:
        """Whether it owns a database."""
        return "database" in self.needs


def _entry(api: ModuleType, *needs: Engine) -> ServiceEntry:
    return ServiceEntry(api.NAME, api.WIRE_NAME, api.PORT, frozenset(needs), URL_VARIABLES.get(api.NAME, ""))


_ENTRIES = (
    _entry(links, "database", "bus", "redis"),
    _entry(analytics, "database", "bus"),
    _entry(identity, "database", "bus", "redis"),
    _entry(notifications, "database", "bus"),
    _entry(sms, "database", "bus", "redis", "kafka"),
    _entry(projects, "database", "bus", "redis"),
    _entry(gateway, "redis"),
)

SERVICES: Mapping[str, ServiceEntry] = {entry.name: entry for entry in _ENTRIES}


def find_service(name: str) -> ServiceEntry | None:
    """A service by its package name or by its wire name."""
    if name in SERVICES:
        return SERVICES[name]
    return next((entry for entry in _ENTRIES if entry.wire_name == name), None)
