"""The way without Redis: sends behind the locks of their rows, counted once the log has confirmed them."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from refract.kernel.clock import Clock
from refract.runtime.ports import Database, RecordLog
from refract.runtime.records import Record
from refract.runtime.together import Together
from refract.services.sms.api import OUTBOUND
from refract.services.sms.commands.counting import Claim, Judgement, Verdict, hear, judge, keys_of
from refract.services.sms.commands.delivering import CORRELATION_ID, MESSAGE_ID
from refract.services.sms.commands.uncounted import Uncounted
from refract.services.sms.domain.limits import Limit, decide
from refract.services.sms.domain.sends import SendRequest
from refract.services.sms.store.keys import claim_keys, mark_sent
from refract.services.sms.store.limits import Seen, keep_counts

AT_ONCE = 100
"""Sends that share a transaction: each is judged as if it came alone, one after the other."""
CONNECTIONS = 3
"""Of the ten of a process: however many send, to however hot a user, whoever reads finds one."""


class Outgoing(Struct, frozen=True, gc=False):
    """A claim, and what leaves if it is admitted."""

    claim: Claim
    request: SendRequest
    correlation_id: str

    def record(self, message_id: str) -> Record:
        """What is written to the log. The key keeps one user's messages in order."""
        headers = {MESSAGE_ID: message_id, CORRELATION_ID: self.correlation_id}
        return Record(OUTBOUND.name, str(self.request.user_id), self.request.value, headers)


class RowLock:
    """Sends wait their turn before they take a connection. Locks are had in one order: nobody waits in a ring."""

    def __init__(self, database: Database, records: RecordLog, clock: Clock, uncounted: Uncounted) -> None:
        self._database = database
        self._records = records
        self._clock = clock
        self._uncounted = uncounted
        self._sends = Together("sends behind locks", self._take_turn, at_once=AT_ONCE, writers=CONNECTIONS)

    async def send(self, outgoing: Outgoing) -> Verdict:
        """Judge, publish and count in one transaction; raises Unavailable."""
        return await self._sends.add(outgoing)

    async def _take_turn(self, sends: Sequence[Outgoing]) -> Sequence[Verdict]:
        """Everything in it is undone if it fails, but what is in the log by then: that is counted by the next one."""
        await self._uncounted.count()
        claims = [outgoing.claim for outgoing in sends]
        with self._uncounted.departing() as departure:
            async with self._database.transaction() as tx:
                now = self._clock.now()  # after the wait for a turn
                limits, known = await hear(tx, claims, now)
                await self._uncounted.check(limits)
                judgement = await self._publish(sends, limits, judge(claims, limits, known))
                keys = keys_of(claims, judgement.verdicts, "admitted")
                departure.add(limits, _admitted(claims, judgement.verdicts), keys)
                await keep_counts(tx, judgement.changed)
                await claim_keys(tx, keys, "sent", now)
                if again := keys_of(claims, judgement.verdicts, "counted before"):
                    await mark_sent(tx, again)
        return judgement.verdicts

    async def _publish(self, sends: Sequence[Outgoing], limits: dict[int, Seen], judgement: Judgement) -> Judgement:
        """Publish what was admitted; what the log does not take was never counted."""
        verdicts = list(judgement.verdicts)
        leaving = [number for number, verdict in enumerate(verdicts) if verdict.to_publish]
        if not leaving:
            return judgement
        outcomes = await self._records.publish_all([sends[n].record(verdicts[n].message_id) for n in leaving])
        failed = [number for number, outcome in zip(leaving, outcomes, strict=True) if outcome is not None]
        if not failed:
            return judgement
        for number in failed:
            verdicts[number] = replace(verdicts[number], word="not published")
        return Judgement(verdicts, _counted(limits, _admitted([send.claim for send in sends], verdicts)))


def _admitted(claims: Sequence[Claim], verdicts: Sequence[Verdict]) -> Counter[int]:
    """How many sends of each user were."""
    return Counter(claim.user_id for claim, verdict in zip(claims, verdicts, strict=True) if verdict.word == "admitted")


def _counted(limits: dict[int, Seen], confirmed: Mapping[int, int]) -> dict[int, Limit]:
    """The limits after so many sends of each user."""
    return {
        user_id: decide(limits[user_id].limit, limits[user_id].now, sends).limit for user_id, sends in confirmed.items()
    }
