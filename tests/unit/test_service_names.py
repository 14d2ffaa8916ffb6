"""The services' names and ports, as the table of the architecture has them."""

from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("name", "wire_name", "port"),
    [
        ("gateway", "gateway", 8080),
        ("links", "url-service", 8081),
        ("analytics", "analytics-service", 8082),
        ("identity", "user-service", 8083),
        ("notifications", "notification-service", 8084),
        ("sms", "sms-gateway", 8085),
        ("projects", "project-service", 8086),
    ],
)
def test_names_and_ports(name: str, wire_name: str, port: int) -> None:
    api = import_module(f"refract.services.{name}.api")
    assert (name, wire_name, port) == (api.NAME, api.WIRE_NAME, api.PORT)
