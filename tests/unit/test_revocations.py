"""What the gateway knows of tokens that died early: exact, in any order, within bounds, and forgotten in time."""

import itertools
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refract.runtime.tokens import Claims
from refract.services.gateway.domain.revocations import Revocation, Revocations
from tests.support.clocks import START

ALICE, BOB = "alice", "bob"
DAY = timedelta(days=1)


def token(user: str = ALICE, token_id: str = "t1", generation: int = 0, expires_at: datetime = START + DAY) -> Claims:
    return Claims(user, f"{user}@example.com", expires_at - DAY, expires_at, token_id, generation=generation)


def one(token_id: str = "t1", user: str = ALICE, until: datetime = START + DAY) -> Revocation:
    return Revocation(user, until, token_id=token_id)


def below(generation: int, user: str = ALICE, until: datetime = START + DAY) -> Revocation:
    return Revocation(user, until, generation=generation)


def knowing(*revocations: Revocation, limit: int = 100) -> Revocations:
    known = Revocations(limit)
    for revocation in revocations:
        known.apply(revocation)
    return known


def test_nothing_is_dead_that_nobody_took_back() -> None:
    assert not Revocations().is_revoked(token())
    assert not Revocations().is_revoked(token(token_id=""))


def test_one_token_dies_and_no_other() -> None:
    known = knowing(one("t1"))
    assert known.is_revoked(token(token_id="t1"))
    assert known.is_revoked(token(token_id="t1", generation=5))
    assert not known.is_revoked(token(token_id="t2"))
    assert not known.is_revoked(token(token_id=""))
    assert not known.is_revoked(token(BOB, "t1"))


def test_every_token_below_a_generation_dies_and_none_above() -> None:
    known = knowing(below(2))
    assert [known.is_revoked(token(token_id="", generation=generation)) for generation in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert not known.is_revoked(token(BOB))


def test_a_revocation_that_says_nothing_kills_nothing() -> None:
    known = knowing(Revocation(ALICE, START + DAY))
    assert not known.is_revoked(token())
    assert not known.is_revoked(token(token_id=""))


def test_order_and_repetition_do_not_matter() -> None:
    told = [below(1), below(3), below(2), one("t1"), one("t2", until=START + 2 * DAY), one("t2")]
    tokens = [token(token_id=name, generation=number) for name in ("t1", "t2", "t3") for number in range(5)]
    expected = [known_dead.token_id in {"t1", "t2"} or known_dead.generation < 3 for known_dead in tokens]
    for order in itertools.permutations(told):
        known = knowing(*order, *order)
        assert [known.is_revoked(shown) for shown in tokens] == expected
        assert len(known) == 3


def test_it_forgets_within_a_minute_after_the_end_and_never_before() -> None:
    until = START + timedelta(hours=3, seconds=20)
    known = knowing(one(until=until), below(1, BOB, until), one("t2", until=until + timedelta(minutes=5)))
    known.forget(until - timedelta(seconds=1))
    assert len(known) == 3
    known.forget(until + timedelta(seconds=60))
    assert len(known) == 1
    assert known.is_revoked(token(token_id="t2"))


def test_the_later_end_counts_whenever_it_was_heard() -> None:
    for first, second in itertools.permutations([below(1, until=START + DAY), below(2, until=START + 2 * DAY)]):
        known = knowing(first, second)
        known.forget(START + DAY + timedelta(hours=1))
        assert known.is_revoked(token(generation=1))
    # Told in the other pairing, neither the generation nor the end goes back.
    known = knowing(below(2, until=START + DAY), below(1, until=START + 2 * DAY))
    known.forget(START + DAY + timedelta(hours=1))
    assert known.is_revoked(token(generation=1))


def test_a_full_memory_stays_within_its_bound_and_lets_no_dead_token_live() -> None:
    known = Revocations(limit=50)
    dead = []
    for number in range(500):
        expires_at = START + timedelta(minutes=number)
        dead.append(token(token_id=f"t{number}", expires_at=expires_at))
        known.apply(one(f"t{number}", until=expires_at))
        assert len(known) <= 50
    assert all(known.is_revoked(claims) for claims in dead)
    # Whoever has a younger token notices nothing of it; whoever has one of the oldest signs in again.
    assert not known.is_revoked(token(BOB, "b", expires_at=START + timedelta(minutes=455)))
    assert known.is_revoked(token(BOB, "b", expires_at=START + timedelta(minutes=440)))


def test_a_flood_within_one_minute_is_bounded_as_well() -> None:
    known = knowing(*(one(f"t{number}") for number in range(500)), limit=50)
    assert len(known) <= 50
    assert all(known.is_revoked(token(token_id=f"t{number}")) for number in range(500))


def test_what_gave_way_is_no_burden_once_its_time_is_over() -> None:
    known = knowing(*(one(f"t{number}", until=START + timedelta(minutes=number)) for number in range(60)), limit=50)
    known.forget(START + DAY)
    assert len(known) == 0
    assert not known.is_revoked(token(expires_at=START + DAY))


@pytest.mark.parametrize("limit", [1, 3, 100])
@given(st.data())
def test_it_agrees_with_a_list_of_all_that_was_said(limit: int, data: st.DataObject) -> None:
    """Nothing that is on the list is ever let in; with room for all, nothing else is refused either."""
    minutes = st.integers(1, 30)
    known, said = Revocations(limit), []
    for _ in range(data.draw(st.integers(0, 20))):
        revocation = Revocation(
            data.draw(st.sampled_from([ALICE, BOB])),
            START + timedelta(minutes=data.draw(minutes)),
            data.draw(st.sampled_from(["", "t1", "t2"])),
            data.draw(st.integers(0, 3)),
        )
        if revocation.token_id:
            revocation = Revocation(revocation.user_id, revocation.until, revocation.token_id)
        known.apply(revocation)
        said.append(revocation)
    now = START + timedelta(minutes=data.draw(minutes))
    known.forget(now)
    assert len(known) <= limit
    for user, token_id, generation in itertools.product([ALICE, BOB], ["", "t1", "t2"], range(4)):
        claims = token(user, token_id, generation, expires_at=now + timedelta(seconds=1))
        alone = [end.until for end in said if (end.user_id, end.token_id) == (user, token_id) and token_id]
        together = [end for end in said if (end.user_id, end.token_id) == (user, "")]
        dead = any(until > now for until in alone) or any(
            end.until > now and generation < end.generation for end in together
        )
        assert known.is_revoked(claims) or not dead
        if limit == 100:  # with room for all, nothing else is refused; the later end holds for all of a user's
            generations = [end.generation for end in together if any(end.until > now for end in together)]
            assert known.is_revoked(claims) == (dead or generation < max(generations, default=0))
