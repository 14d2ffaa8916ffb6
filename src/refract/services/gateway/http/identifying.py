"""Who calls: the token of a request is checked as its row demands, before anything else is done for it."""

from refract.kernel.errors import Forbidden, RefractError, Unauthenticated
from refract.runtime.tokens import Claims, TokenRefused, TokenVerifier
from refract.services.gateway.api import Route
from refract.services.gateway.domain.callers import (
    NOBODY,
    SAFE_METHODS,
    Asked,
    Caller,
    CrossOrigin,
    Offer,
    Origins,
    SessionOver,
)
from refract.services.gateway.domain.revocations import Revocations

MAX_LET_IN = 4096


class Callers:
    """Lets in whom a row is for. Signature and expiry are checked again behind it, revocation only here."""

    def __init__(self, tokens: TokenVerifier, revocations: Revocations | None, origins: Origins) -> None:
        self._tokens = tokens
        self._revocations = revocations
        self._origins = origins
        self._let_in: dict[str, None] = {}
        """Tokens that were good lately, the oldest first."""

    def identify(self, route: Route, method: str, asked: Asked) -> Caller | None:
        """Who calls, NOBODY where that is allowed, None where an API key says so, which has to be looked up.

        Raises Unauthenticated, Forbidden or CrossOrigin.
        """
        if route.own_origin and b"origin" in asked.fields and not self._origins.sent_by_us(asked):
            raise CrossOrigin
        if route.token == "none":  # noqa: S105  # a word of the table
            return NOBODY
        offer = asked.offer()
        if offer is None:
            if route.token == "optional":  # noqa: S105
                return NOBODY
            raise Unauthenticated
        if offer.is_key:
            return None
        if offer.is_session and method not in SAFE_METHODS and not self._origins.sent_by_us(asked):
            raise CrossOrigin
        caller = self._let_in_with(offer, route)
        if offer.token not in self._let_in:
            if len(self._let_in) >= MAX_LET_IN:
                del self._let_in[next(iter(self._let_in))]
            self._let_in[offer.token] = None
        return caller

    def recognize(self, route: Route, offer: Offer | None) -> Caller | None:
        """For the hot path and methods that change nothing: who calls, as `identify` says; None where it must be asked.

        A token that was never good goes there: what it takes to find that out is spent once.
        """
        if route.own_origin:
            return None
        if route.token == "none" or (offer is None and route.token == "optional"):  # noqa: S105
            return NOBODY
        if offer is None or offer.token not in self._let_in:
            return None
        try:
            return self._let_in_with(offer, route)
        except RefractError:
            return None

    def _let_in_with(self, offer: Offer, route: Route) -> Caller:
        claims = self._checked(offer)
        if route.token == "administrator" and not claims.is_administrator:  # noqa: S105
            raise Forbidden
        return Caller(claims.subject, claims.email, "", offer.token if offer.is_session else "")

    def _checked(self, offer: Offer) -> Claims:
        dead = SessionOver if offer.is_session else Unauthenticated
        if not offer.token:
            raise dead
        try:
            claims = self._tokens.verify(offer.token)
        except TokenRefused as refused:
            raise dead from refused
        if claims.api_key is not None:
            raise dead  # it is for services, in the place of the key: nobody outside has ever seen one
        if self._revocations is not None and self._revocations.is_revoked(claims):
            raise dead
        return claims


def oddity(error: RefractError) -> str:
    """What was wrong with a token, for the log. That one is missing or has expired happens to everybody."""
    refused = error.__cause__
    return refused.reason if isinstance(refused, TokenRefused) and refused.reason != "expired" else ""
