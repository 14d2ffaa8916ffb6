"""What it costs to check a bearer token that was never seen, and one that is remembered."""

import secrets
from collections.abc import Callable
from functools import partial

from benchmarks.doors import signed
from benchmarks.figures import Rounds, json_line, table, verdict
from benchmarks.timing import microseconds
from benchmarks.workshop import Workshop
from refract.kernel.clock import SystemClock
from refract.runtime.tokens import TokenRefused, TokenSigner, TokenVerifier

TOKENS = 2_000
AGAIN = 20
TARGET_MICROSECONDS, TARGET_REMEMBERED = 40.0, 2.0
FRESH, REMEMBERED = "never seen", "remembered"


def measure(workshop: Workshop) -> None:
    """Print the figures."""
    rounds = workshop.options.rounds
    print(f"tokens: {TOKENS:,} tokens, those that are remembered {AGAIN} times over, {rounds} rounds; processor time")
    secret, previous = secrets.token_urlsafe(48), secrets.token_urlsafe(48)
    ours = [signed(secret) for _ in range(TOKENS)]
    older = [signed(previous) for _ in range(TOKENS)]
    forged = [signed(secrets.token_urlsafe(48)) for _ in range(TOKENS)]
    signer = TokenSigner(secret, SystemClock())
    seen: dict[str, list[float]] = {}
    for _ in range(rounds):
        verifier = TokenVerifier([secret, previous], SystemClock())
        works: dict[str, tuple[Callable[[str], object], list[str]]] = {
            FRESH: (verifier.verify, ours),
            REMEMBERED: (verifier.verify, ours * AGAIN),
            "never seen, by the previous secret": (verifier.verify, older),
            "forged": (partial(_refused, verifier), forged),
            "signing": (lambda _: signer.sign("somebody", "somebody@example.com"), ours),
        }
        for name, (work, items) in works.items():
            seen.setdefault(name, []).append(microseconds(work, items))
    figures = {name: Rounds.of(values) for name, values in seen.items()}
    print(table(("", "µs each"), [(name, figure.shown()) for name, figure in figures.items()]))
    for name, target in ((FRESH, TARGET_MICROSECONDS), (REMEMBERED, TARGET_REMEMBERED)):
        print(verdict(f"{name}: under {target:g} µs", met=figures[name].median < target))
    print(json_line("tokens", {"us": {name: figure.as_json() for name, figure in figures.items()}}))


def _refused(verifier: TokenVerifier, token: str) -> None:
    try:
        verifier.verify(token)
    except TokenRefused:
        return
    raise RuntimeError("a forged token was accepted")
