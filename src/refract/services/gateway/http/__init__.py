"""The face of the gateway: who asks, how often, and where the request goes."""

from refract.services.gateway.http.counting import Limits

__all__ = ["Limits"]
