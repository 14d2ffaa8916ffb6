"""Builds the gateway's rooms into one object."""

import asyncio
import logging
from dataclasses import dataclass, field

from litestar.types import ASGIApp

from refract.services.gateway.api import TARGETS
from refract.services.gateway.http import build_http
from refract.services.gateway.ports import Services

logger = logging.getLogger("refract.gateway")
