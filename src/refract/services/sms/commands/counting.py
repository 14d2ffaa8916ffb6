"""Counting sends in the database, which is what admits them: those of all users that wait, in one transaction."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from refract.kernel.clock import Clock
from refract.kernel.ids import new_event_id
from refract.runtime.ports import Database, Transaction
from refract.runtime.together import Together
from refract.services.sms.commands.uncounted import Uncounted
from refract.services.sms.domain.limits import Limit, decide
from refract.services.sms.domain.sends import SendKey
from refract.services.sms.store.keys import KeptKey, claim_keys, find_keys, mark_sent
from refract.services.sms.store.limits import Seen, keep_counts, lock_limits

Word = Literal["admitted", "counted before", "sent before", "key reused", "refused", "unknown user", "not published"]


class Claim(Struct, frozen=True, gc=False):
    """A send that asks to be counted."""

    user_id: int
    key: SendKey | None = None


class Verdict(Struct, frozen=True, gc=False):
    """What the database says to a claim."""

    word: Word
    message_id: str = ""
    retry_after: float = 0.0
    key: SendKey | None = None

    @property
    def to_publish(self) -> bool:
        """Whether its message has to go to the log: it was counted now, or before without being confirmed."""
        return self.word in {"admitted", "counted before"}


UNKNOWN_USER = Verdict("unknown user")


class Judgement(Struct, frozen=True):
    """A verdict for each claim, in their order, and the limits that are different after them."""

    verdicts: list[Verdict]
    changed: dict[int, Limit]


async def hear(tx: Transaction, claims: Sequence[Claim], now: datetime) -> tuple[dict[int, Seen], dict[str, KeptKey]]:
    """Lock the limits of all claims, and then read what their keys stand for: with the lock, that stays as it is."""
    limits = await lock_limits(tx, sorted({claim.user_id for claim in claims}), now)
    keys = await find_keys(tx, [(claim.user_id, claim.key) for claim in claims if claim.key is not None], now)
    return limits, keys


def judge(claims: Sequence[Claim], limits: Mapping[int, Seen], keys: Mapping[str, KeptKey]) -> Judgement:
    """Decide for each user in the order in which the claims came; what a key stands for already is not counted."""
    verdicts: list[Verdict] = []
    asking: dict[int, list[int]] = {}
    for number, claim in enumerate(claims):
        seen = limits.get(claim.user_id)
        verdict = UNKNOWN_USER if seen is None else _by_key(claim, keys)
        verdicts.append(verdict)
        if verdict.word == "admitted":
            asking.setdefault(claim.user_id, []).append(number)
    changed: dict[int, Limit] = {}
    for user_id, numbers in asking.items():
        seen = limits[user_id]
        decision = decide(seen.limit, seen.now, len(numbers))
        if decision.limit != seen.limit:
            changed[user_id] = decision.limit
        refused = Verdict("refused", retry_after=_seconds(decision.free_at - seen.now))
        for number in numbers[decision.admitted :]:
            verdicts[number] = refused
    return Judgement(verdicts, changed)


def recalled(key: SendKey, kept: KeptKey) -> Verdict:
    """What a key that is remembered says to a send."""
    if kept.key.fingerprint != key.fingerprint:
        return Verdict("key reused")
    return Verdict("sent before" if kept.status == "sent" else "counted before", kept.key.message_id, key=kept.key)


def _by_key(claim: Claim, keys: Mapping[str, KeptKey]) -> Verdict:
    """Admitted, as far as the key is concerned, or what it stands for already."""
    if claim.key is None:
        return Verdict("admitted", new_event_id())
    kept = keys.get(claim.key.key_hash)
    if kept is None:
        return Verdict("admitted", claim.key.message_id, key=claim.key)
    if not kept.over:
        return recalled(claim.key, kept)
    # Readers may still know the message id of the old one, and would take the new one for it.
    key = replace(claim.key, message_id=new_event_id())
    return Verdict("admitted", key.message_id, key=key)


def _seconds(duration: timedelta) -> float:
    return max(0.0, duration.total_seconds())


def keys_of(claims: Sequence[Claim], verdicts: Sequence[Verdict], word: Word) -> list[tuple[int, SendKey]]:
    """The keys of the claims to which this was said."""
    return [
        (claim.user_id, verdict.key)
        for claim, verdict in zip(claims, verdicts, strict=True)
        if verdict.word == word and verdict.key is not None
    ]


class Counter:
    """Counts before the log is asked: what is counted stays so, whatever becomes of the message."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        uncounted: Uncounted,
        learn: Callable[[datetime], None] | None = None,
    ) -> None:
        """`learn` is told the database's time whenever it is heard."""
        self._database = database
        self._clock = clock
        self._uncounted = uncounted
        self._learn = learn
        self._counting = Together("counted sends", self._count)
        self._marking = Together("sent keys", self._mark, writers=1)

    async def count(self, claim: Claim) -> Verdict:
        """The verdict on a claim, which is in the database when it is known; raises Unavailable."""
        return await self._counting.add(claim)

    async def mark_sent(self, user_id: int, key: SendKey) -> None:
        """Remember that the message is in the log; raises Unavailable."""
        await self._marking.add((user_id, key))

    async def recall(self, user_id: int, key: SendKey) -> Verdict | None:
        """What a key stands for; None where it is free."""
        kept = (await find_keys(self._database, [(user_id, key)], self._clock.now())).get(key.key_hash)
        return None if kept is None or kept.over else recalled(key, kept)

    async def _count(self, claims: Sequence[Claim]) -> Sequence[Verdict]:
        await self._uncounted.count()
        async with self._database.transaction() as tx:
            now = self._clock.now()  # after the wait for a turn
            limits, keys = await hear(tx, claims, now)
            if limits and self._learn is not None:
                # Here, before a commit that may take its time: what is heard late makes that clock look slow. And the
                # last one, because each row has the time of its own lock.
                self._learn(max(seen.now for seen in limits.values()))
            await self._uncounted.check(limits)
            judgement = judge(claims, limits, keys)
            await keep_counts(tx, judgement.changed)
            await claim_keys(tx, keys_of(claims, judgement.verdicts, "admitted"), "counted", now)
        return judgement.verdicts

    async def _mark(self, keys: Sequence[tuple[int, SendKey]]) -> Sequence[None]:
        async with self._database.transaction() as tx:
            await mark_sent(tx, keys)
        return [None] * len(keys)
