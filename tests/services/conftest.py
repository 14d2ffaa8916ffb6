"""Fixtures that several files of tests of services use."""

from tests.support.fronts import front, proxied

__all__ = ["front", "proxied"]
