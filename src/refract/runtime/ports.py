"""The six ports. A service sees these and nothing behind them; each has an embedded and a distributed twin."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from refract.kernel.errors import NotPublished
from refract.kernel.events import Event
from refract.runtime.caching import CacheEntry
from refract.runtime.messages import Binding, DeadLetter, Delivery, Message, Queue
from refract.runtime.records import ReceivedRecord, Record, Topic
from refract.runtime.statements import Statement
from refract.runtime.transitions import Transition
from refract.runtime.windows import Policy, Verdict

Row = Mapping[str, Any]


class Reads(Protocol):
    """What can be asked of a database, inside a transaction or outside."""

    async def fetch(self, statement: Statement, **parameters: Any) -> list[Row]:
        """All rows."""

    async def fetch_one(self, statement: Statement, **parameters: Any) -> Row | None:
        """The first row, if there is one."""


class Transaction(Reads, Protocol):
    """One unit of work: everything in it is kept, or nothing."""

    async def execute(self, statement: Statement, **parameters: Any) -> int:
        """Run a statement; returns how many rows it touched. A taken key raises UniqueViolation."""

    async def execute_many(self, statement: Statement, parameters: Sequence[Mapping[str, Any]]) -> None:
        """Run one statement for each set of parameters."""

    async def insert_many(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write many rows the fastest way the engine has."""

    async def announce(self, *events: Event) -> None:
        """Save events with this write; they are sent after the commit, and only then."""

    async def post(self, *messages: Message) -> None:
        """The same for bodies that are encoded already, such as a batch of clicks."""


class Database(Reads, Protocol):
    """A service's own database. Reads outside a transaction see what is committed."""

    @property
    def dialect(self) -> Literal["postgresql", "sqlite"]:
        """Which engine it is: for migrations and for `doctor`, never for a use case."""

    @property
    def reads_at_once(self) -> int:
        """So many reads of this process run at a time, and more wait: what may be long should not take them all."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Begin; commit at the end of the block, roll back when it raises."""

    async def post(self, *messages: Message, held: float = 0.0) -> list[str]:
        """Save messages in a transaction of their own, the short road of a group commit; returns the ids of their rows.

        Those that are `held` are for the caller to send: nobody is woken for them, and no relay takes them before so
        many seconds are over.
        """

    async def announced(self, timeout: float) -> None:
        """Return when something was announced, here or in another process, or after `timeout` seconds."""

    async def ping(self) -> None:
        """Return if it answers; raise Unavailable if not."""

    async def close(self) -> None:
        """Give everything back. What runs is finished first."""


class QueueReader(Protocol):
    """One reader's hold on a queue."""

    async def next_batch(self) -> list[Delivery]:
        """Wait for messages; returns at least one, and as many as are there up to the queue's prefetch."""

    def holds(self, delivery: Delivery) -> bool:
        """Whether it is still ours to settle; one of a connection that is gone will come again."""

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """They are handled and committed. Of a connection that is gone they will come again, which is no error."""

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """They were not handled: they come again, marked as redelivered."""

    async def bury(self, delivery: Delivery, reason: str) -> None:
        """Move it to the queue's dead letters: first safe there, then gone here.

        Kept is the body that its message has now: of an array perhaps only the part that could not be handled.
        """


class EventBus(Protocol):
    """Topic exchanges and durable queues: at least once, in any order, possibly twice."""

    async def publish(self, message: Message) -> None:
        """Return once the bus has it safe; raise NotPublished (Unroutable when no queue takes a mandatory one)."""

    async def publish_all(self, messages: Sequence[Message]) -> list[NotPublished | None]:
        """Publish many at once; the outcome of each, in their order. Never takes longer than PUBLISH_TIMEOUT."""

    async def declare(self, queue: Queue) -> None:
        """Make the queue, its exchanges, its bindings and its dead letters exist, now and after every reconnect."""

    def reader(self, queue: Queue) -> AbstractAsyncContextManager[QueueReader]:
        """Declare the queue and read from it, sharing it with every other reader of the same name."""

    async def listen(
        self, bindings: Collection[Binding], hear: Callable[[Message], None], gap: Callable[[], None]
    ) -> None:
        """Hear messages from now on, in this process only; `gap` is called whenever some may have been missed."""

    async def dead_letters(self, queue: str, limit: int) -> list[DeadLetter]:
        """Look at the dead letters of a queue without removing them, oldest first."""

    async def replay(self, queue: str, message_ids: Collection[str] | None = None) -> int:
        """Put dead letters back into their queue, all or those named; returns how many."""

    async def ping(self) -> None:
        """Return if it answers; raise Unavailable if not."""

    async def close(self) -> None:
        """Stop reading and give everything back."""


class Cache(Protocol):
    """Copies that may be lost at any time. It never fails a caller: away means empty."""

    @property
    def keeps(self) -> bool:
        """Whether it keeps anything: where the database is as near, a copy need not even be made."""

    @property
    def misses_nothing(self) -> bool:
        """Whether every drop is heard for sure, so that what was not dropped is true for as long as one likes."""

    @property
    def hears(self) -> bool:
        """Whether every drop that the cache takes is heard at present; if one is missed, `gap` will be called."""

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values in the order of the keys; None where there is none."""

    async def set_many(self, entries: Sequence[CacheEntry]) -> None:
        """Keep copies, each unless a newer one, or the tombstone of a newer one, is there."""

    async def drop(self, orders: Mapping[str, int]) -> None:
        """Forget keys up to an order number, leave a short tombstone, and tell every process."""

    def on_invalidation(
        self,
        dropped: Callable[[Sequence[str]], None],
        gap: Callable[[], None],
        deaf: Callable[[], None] | None = None,
    ) -> None:
        """Call `dropped` with the keys that any process drops, and `gap` whenever some may have been missed.

        `deaf` is called once for each time that drops are no longer heard; when they are heard again, it is a gap.
        """

    async def ping(self) -> None:
        """Return if it answers; raise Unavailable if not."""

    async def close(self) -> None:
        """Give everything back."""


class RateLimiter(Protocol):
    """Counts hits so that no interval of a policy's length ever admits more than its limit."""

    async def hit(self, who: str, policy: Policy, cost: int = 1) -> Verdict:
        """Count `cost` hits if they fit, and say so. Refused hits do not count."""

    def hit_soon(self, who: str, policy: Policy, cost: int = 1) -> Verdict | None:
        """The same without awaiting, for the hot path; None where only `hit` can tell."""

    async def ping(self) -> None:
        """Return if the counter answers; raise Unavailable if not."""

    async def close(self) -> None:
        """Give everything back."""


class StateStore(Protocol):
    """Small hashes with a time to live and named atomic transitions. Away means Unavailable."""

    async def read(self, key: str) -> dict[str, str]:
        """All fields, or nothing when the key is absent or over."""

    async def write(self, key: str, fields: Mapping[str, str | int], ttl: float) -> None:
        """Set fields, keeping the others, and let the whole hash live `ttl` seconds from now."""

    async def apply(self, transition: Transition, key: str, *arguments: str | int) -> str:
        """Run a transition alone with the hash; returns its word for what happened."""

    async def delete(self, key: str) -> None:
        """Forget a hash."""

    async def ping(self) -> None:
        """Return if it answers; raise Unavailable if not."""

    async def close(self) -> None:
        """Give everything back."""


class RecordReader(Protocol):
    """One reader's share of a topic: some of its partitions, or all when it is alone in its group."""

    async def next_batch(self) -> list[ReceivedRecord]:
        """Wait for records; returns at least one and at most 500, those of one partition in their order."""

    async def commit(self, records: Sequence[ReceivedRecord]) -> None:
        """These, and what lies before them in their partitions, are handled: the group will not get them again.

        Those of a partition that went to another reader are passed over; they come again there, which is no error.
        """


class RecordLog(Protocol):
    """Topics of ordered records: those of one key stay in order, each reader group remembers how far it is."""

    async def publish(self, record: Record) -> None:
        """Return once the record is safe; raise NotPublished (BusAway when no other would fare better) in 5 s at most.

        A record that was refused for lack of an answer may still have been written.
        """

    async def publish_all(self, records: Sequence[Record]) -> list[NotPublished | None]:
        """Publish many at once; the outcome of each, in their order. Never takes longer than PUBLISH_TIMEOUT."""

    def publish_soon(self, record: Record) -> None:
        """Keep a record in a bounded line and see to it that it gets there. Never waits and never raises."""

    async def declare(self, topic: Topic) -> None:
        """Make the topic exist, with its partitions if it is new; while the log is away that is remembered."""

    def reader(self, topic: Topic, group: str) -> AbstractAsyncContextManager[RecordReader]:
        """Declare the topic and read it from where the group is, sharing it with the group's other readers."""

    async def drain(self, timeout: float) -> int:
        """Wait until the line of `publish_soon` is empty; returns how many records are left in it."""

    async def ping(self) -> None:
        """Return if it answers; raise Unavailable if not."""

    async def close(self) -> None:
        """Send what can be sent and give everything back."""
