"""The gateway's memory of API keys: bounded, by hash, for a minute at most, and without what was taken back."""

from datetime import timedelta

import pytest

from refract.services.gateway.domain.callers import Asked, Caller, Offer
from refract.services.gateway.domain.keys import (
    LATELY,
    LONGEST_KNOWN,
    MAX_REFUSED,
    REFUSED_SECONDS,
    KeyRefused,
    KnownKey,
    KnownKeys,
    key_hash,
)
from tests.support.clocks import ManualClock

KEY = "refract_" + "aB3" * 13 + "z"


def key(number: int = 1, user: str = "u-1") -> KnownKey:
    return KnownKey(f"hash-{number}", number, frozenset({"links:read"}), Caller(user, "", str(number), "token"))


class Memory:
    """A memory, and the clock that it goes by."""

    def __init__(self, limit: int = 4096) -> None:
        self.clock = ManualClock()
        self.known = KnownKeys(self.clock, limit)

    def learn(self, *keys: KnownKey, seconds: float = 60.0) -> None:
        for one in keys:
            self.known.learn(one, self.clock.now() + timedelta(seconds=seconds))

    def knows(self, one: KnownKey) -> bool:
        return self.known.find(one.key_hash) is one


def test_the_hash_is_that_of_the_whole_key() -> None:
    # As `b2sum -l 256` prints it.
    assert key_hash(KEY) == "4bd4d89434ce17673e0e2605de10a595aa9d8d3b5c5875a70bea68a36c41e60d"
    assert key_hash(KEY) != key_hash(KEY[:-1] + "y")


@pytest.mark.parametrize(
    "text", ["", "refract_", KEY[:-1], KEY + "a", KEY + "\n", "Refract_" + KEY[8:], KEY[:-1] + "ß", KEY[:-1] + "_"]
)
def test_what_can_be_no_key_has_no_hash(text: str) -> None:
    with pytest.raises(KeyRefused):
        key_hash(text)


@pytest.mark.parametrize(("seconds", "lasts"), [(60, 60), (7.5, 7.5), (3600, LONGEST_KNOWN), (0, 0), (-1, 0)])
def test_a_key_is_known_until_its_time_and_for_a_minute_at_most(seconds: float, lasts: float) -> None:
    memory, one = Memory(), key()
    memory.learn(one, seconds=seconds)
    if lasts:
        memory.clock.advance(lasts - 0.001)
        assert memory.knows(one)
        memory.clock.advance(0.001)
    assert memory.known.find(one.key_hash) is None
    assert len(memory.known) == 0


def test_what_is_learned_again_lives_anew_and_never_twice() -> None:
    memory, one, renewed = Memory(), key(), key()
    memory.learn(one)
    memory.clock.advance(50)
    memory.learn(renewed, seconds=20)
    memory.clock.advance(15)
    assert memory.knows(renewed)
    memory.learn(renewed, seconds=-1)
    assert not memory.knows(renewed)


def test_the_memory_is_bounded_and_the_oldest_gives_way() -> None:
    memory = Memory(limit=3)
    keys = [key(number) for number in range(4)]
    memory.learn(*keys[:3])
    memory.learn(keys[0])  # learned again, it is the youngest
    memory.learn(keys[3])
    assert [memory.knows(one) for one in keys] == [True, False, True, True]
    assert len(memory.known) == 3


def test_a_refusal_is_known_for_a_few_seconds_and_they_are_bounded() -> None:
    memory, one = Memory(), key()
    memory.learn(one)
    memory.known.refuse(one.key_hash)
    with pytest.raises(KeyRefused):
        memory.known.find(one.key_hash)
    memory.clock.advance(REFUSED_SECONDS)
    assert memory.known.find(one.key_hash) is None
    memory.known.refuse("the first")
    for number in range(MAX_REFUSED):
        memory.known.refuse(str(number))
    assert len(memory.known._refused) == MAX_REFUSED
    assert memory.known.find("the first") is None


def test_what_was_refused_before_is_no_news() -> None:
    memory, one = Memory(), key()
    memory.learn(one)
    assert [memory.known.refuse(hashed) for hashed in (one.key_hash, "other", one.key_hash)] == [True, True, False]
    memory.clock.advance(3600)
    assert memory.known.find(one.key_hash) is None
    assert not memory.known.refuse(one.key_hash)
    for number in range(MAX_REFUSED):
        memory.known.refuse(str(number))
    assert memory.known.refuse(one.key_hash), "nobody remembers it any more"


def test_a_key_was_good_lately_for_some_minutes_and_until_it_is_bad() -> None:
    memory = Memory(limit=3)
    keys = [key(number) for number in range(4)]

    def good_lately() -> list[bool]:
        return [memory.known.was_good_lately(one.key_hash) for one in keys]

    memory.learn(*keys[:2])
    memory.clock.advance(LATELY - 60)
    memory.learn(keys[1])
    memory.clock.advance(59.9)
    assert good_lately() == [True, True, False, False]
    memory.known.forget_user("u-1")
    memory.known.forget_all()
    assert good_lately() == [True, True, False, False], "it only has to be asked for again"
    memory.clock.advance(0.1)
    assert good_lately() == [False, True, False, False]
    memory.learn(keys[0], keys[1], keys[2], keys[3])
    assert good_lately() == [False, True, True, True], "and they are bounded"
    memory.known.refuse(keys[1].key_hash)
    memory.known.forget(keys[2].key_hash)
    assert good_lately() == [False, False, False, True]


def test_what_is_taken_back_is_forgotten_and_the_rest_is_not() -> None:
    memory = Memory()
    keys = [key(1, "u-1"), key(2, "u-1"), key(3, "u-2"), key(4, "u-3")]
    memory.learn(*keys)
    memory.known.forget("hash-4")
    assert [memory.knows(one) for one in keys] == [True, True, True, False]
    memory.known.forget_user("u-1")
    assert [memory.knows(one) for one in keys] == [False, False, True, False]
    memory.known.forget_all()
    assert [memory.knows(one) for one in keys] == [False] * 4


def test_a_question_is_overtaken_by_what_concerns_it_while_it_is_under_way() -> None:
    known = Memory().known
    known.forget("hash-1")
    known.forget_user("u-1")
    inquiry = known.begin("hash-1")
    assert not inquiry.is_overtaken("u-1"), "what was before is known to whoever answers"
    known.forget("hash-2")
    known.forget_user("u-2")
    assert (inquiry.is_overtaken("u-1"), inquiry.is_overtaken("u-2")) == (False, True)
    known.forget("hash-1")
    assert inquiry.is_overtaken("u-1")
    other = known.begin("hash-3")
    known.forget_all()
    assert other.is_overtaken("u-1")
    ended = known.begin("hash-4")
    known.end(ended)
    known.forget("hash-4")
    assert not ended.is_overtaken("u-1")


def test_uses_are_taken_once_and_come_back_where_nobody_heard_of_them() -> None:
    known = Memory().known
    for one in (key(1), key(2), key(1), key(1)):
        known.count_use(one)
    assert known.take_uses("hash-1") == {"hash-1": (1, 3)}
    assert known.take_uses("hash-1") == known.take_uses("unknown") == {}
    known.give_back({"hash-1": (1, 3)})
    known.count_use(key(1))
    known.give_back({"hash-1": (1, 3)})
    assert known.take_uses() == {"hash-1": (1, 7), "hash-2": (2, 1)}
    assert known.take_uses() == {}


@pytest.mark.parametrize(
    ("fields", "offered"),
    [
        ([("authorization", f"Bearer {KEY}")], Offer(KEY, is_key=True)),
        ([("x-api-key", KEY)], Offer(KEY, is_key=True)),
        ([("x-api-key", KEY), ("authorization", f"Bearer {KEY}")], Offer(KEY, is_key=True)),
        ([("x-api-key", KEY), ("x-api-key", KEY[::-1])], Offer(KEY, is_key=True)),  # the other is not for us
        ([("x-api-key", KEY), ("x-api-key", KEY[:-1])], Offer("", is_key=True)),
        ([("x-api-key", KEY), ("authorization", "Bearer a.b.c")], Offer("", is_key=True)),
        ([("x-api-key", "another"), ("authorization", "Bearer a.b.c")], Offer("a.b.c")),
        ([("x-api-key", "another"), ("cookie", "refract_session=a.b.c")], Offer("a.b.c", is_session=True)),
        ([("x-api-key", KEY), ("cookie", "refract_session=a.b.c")], Offer(KEY, is_key=True)),
        ([("authorization", f"bearer {KEY}")], Offer("")),
        ([("authorization", KEY)], Offer("")),
        ([("x-api-key", "")], None),
        ([], None),
    ],
)
def test_what_header_fields_offer(fields: list[tuple[str, str]], offered: Offer | None) -> None:
    asked = Asked.of([(name.encode(), value.encode()) for name, value in fields], "http")
    assert asked.offer() == offered
