"""Builds the rooms of identity into one service."""

from typing import Any

from refract.runtime.fairness import Turns
from refract.runtime.ports import RateLimiter
from refract.runtime.request_log import RequestLog
from refract.runtime.service import Foundation, Service, Task, compose
from refract.runtime.settings import derived_secret
from refract.runtime.tokens import TokenSigner
from refract.services.identity.adapters.hashing import AT_A_TIME, Hasher
from refract.services.identity.api import WIRE_NAME
from refract.services.identity.commands.confirming import Confirming
from refract.services.identity.commands.deleting import Deleting
from refract.services.identity.commands.forgetting import Forgetting
from refract.services.identity.commands.key_uses import KeyUses
from refract.services.identity.commands.keys import Keys
from refract.services.identity.commands.leaving import Leaving
from refract.services.identity.commands.mailing import MailLimits, Mails
from refract.services.identity.commands.passwords import ChangingPassword
from refract.services.identity.commands.registering import Registering
from refract.services.identity.commands.resetting import AskingForReset, Resetting
from refract.services.identity.commands.resolving_keys import ResolvingKeys
from refract.services.identity.commands.signing_in import SigningIn
from refract.services.identity.commands.sweeping import Sweeper
from refract.services.identity.commands.throttling import Throttle
from refract.services.identity.commands.verifying import Verifying
from refract.services.identity.domain.passwords import common_passwords
from refract.services.identity.http.accounts import account_routes, own_routes
from refract.services.identity.http.fast import PATH, FastWhoAmI
from refract.services.identity.http.keys import inner_key_routes, key_routes
from refract.services.identity.http.leaving import leaving_routes, revocation_routes
from refract.services.identity.http.mail_tokens import mail_token_routes
from refract.services.identity.http.routes import identity_routes
from refract.services.identity.queries.keys import KeyQueries
from refract.services.identity.queries.revocations import RevocationQueries
from refract.services.identity.reactions import QUEUES, reset_requests
from refract.services.identity.settings import IdentitySettings


async def build_identity(
    foundation: Foundation,
    settings: IdentitySettings,
    limiter: RateLimiter,
    secret: str,
    *,
    hasher: Hasher | None = None,
) -> Service:
    """The service on the foundation it is given; it signs with `secret`, the first of those that tokens are known by.

    Addresses and accounts are counted under hashes with a salt that comes from the same secret.
    """
    if settings.password_policy == "strict":  # noqa: S105  # a word, not a password
        common_passwords()  # now, so that nobody waits for it later
    database, clock = foundation.database, foundation.clock
    hasher = hasher or Hasher(threads=settings.hashing_threads)
    salt = derived_secret(secret, "LOGIN_SALT")
    throttle, limits = Throttle(limiter, salt), MailLimits(limiter, salt)
    mails = Mails(clock, settings.base_url, dual_publish=settings.dual_publish)
    asking = AskingForReset(database, clock, limits, mails)
    at_a_time = max(AT_A_TIME, settings.hashing_threads)  # one client may use every processor, if nobody else does
    registering = Registering(database, clock, hasher, mails, limits, settings.password_policy, turns=Turns(at_a_time))
    signer = TokenSigner(secret, clock)
    signing_in = SigningIn(
        database,
        hasher,
        throttle,
        signer,
        turns=Turns(at_a_time),
        require_verified_email=settings.require_verified_email,
    )

    async def close() -> None:
        hasher.close()

    return compose(
        WIRE_NAME,
        foundation,
        routes=identity_routes(
            foundation.tokens,
            public=[
                *account_routes(registering, signing_in, settings.base_url),
                *_mail_routes(foundation, settings, hasher, asking),
                *revocation_routes(RevocationQueries(database, clock)),
                *_inner_key_routes(foundation, signer),
            ],
            for_users=[
                *own_routes(),
                *_leaving_routes(foundation, settings, hasher, throttle),
                *key_routes(Keys(database, clock), KeyQueries(database), clock),
            ],
        ),
        queues=QUEUES,
        reactions=[reset_requests(asking)],
        tasks=[Task("sweeper", Sweeper(database, clock).run, close), Task("forgetting", Forgetting(database).run)],
        fast_path=FastWhoAmI(foundation.tokens, RequestLog(WIRE_NAME, metrics=foundation.metrics, route=PATH)),
    )


def _mail_routes(
    foundation: Foundation, settings: IdentitySettings, hasher: Hasher, asking: AskingForReset
) -> list[Any]:
    database, clock = foundation.database, foundation.clock
    resetting = Resetting(database, clock, hasher, settings.password_policy)
    return mail_token_routes(Verifying(database, clock), asking, resetting)


def _inner_key_routes(foundation: Foundation, signer: TokenSigner) -> list[Any]:
    database, clock = foundation.database, foundation.clock
    uses = KeyUses(database, clock)
    return inner_key_routes(ResolvingKeys(database, clock, signer, uses), uses)


def _leaving_routes(
    foundation: Foundation, settings: IdentitySettings, hasher: Hasher, throttle: Throttle
) -> list[Any]:
    database, clock = foundation.database, foundation.clock
    confirming = Confirming(database, hasher, throttle)
    changing = ChangingPassword(database, clock, hasher, confirming, settings.password_policy)
    deleting = Deleting(database, clock, confirming)
    return leaving_routes(Leaving(database, clock), changing, deleting, settings.base_url)
