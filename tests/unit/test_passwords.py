"""What a password must be, and how it is hashed: bcrypt, every byte of it, in a few threads that give way."""

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import bcrypt
import pytest

from refract.kernel.errors import Invalid, Unavailable
from refract.services.identity.adapters import hashing
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.domain.passwords import check_password, common_passwords
from refract.services.identity.settings import Policy
from tests.support.waiting import eventually

POLICIES: tuple[Policy, ...] = ("length", "strict")


# The policy.


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("password", ["", "short", "1234567", "äöüäöüß"])
def test_a_password_has_at_least_eight_characters(password: str, policy: Policy) -> None:
    with pytest.raises(Invalid, match=r"^password must be at least 8 characters$"):
        check_password(password, policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("password", ["mjk0!vqz", "äöüäöüßx", "a long and quiet sentence", "x" * 1000, "        "])
def test_anything_else_will_do(password: str, policy: Policy) -> None:
    check_password(password, policy)


@pytest.mark.parametrize("password", ["password", "12345678", "QWERTYUIOP", "TrustNo1", "iloveyou"])
def test_the_strict_policy_refuses_common_passwords(password: str) -> None:
    check_password(password, "length")
    with pytest.raises(Invalid, match=r"^password is too common$"):
        check_password(password, "strict")


def test_the_list_is_long_and_in_lower_case() -> None:
    assert len(common_passwords()) > 10_000
    assert all(word == word.lower() and len(word) >= 8 for word in common_passwords())


def test_the_list_is_not_loaded_before_somebody_asks() -> None:
    script = (
        "import sys\n"
        "from refract.services.identity import service\n"
        "from refract.services.identity.domain.passwords import check_password\n"
        "check_password('password', 'length')\n"
        "assert 'zxcvbn' not in sys.modules\n"
        "check_password('mjk0!vqz', 'strict')\n"
        "assert 'zxcvbn' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=110)


# Hashing.


@pytest.fixture
def hasher() -> Iterator[Hasher]:
    hasher = Hasher(cost=4)
    yield hasher
    hasher.close()


async def test_a_hash_is_bcrypt_of_cost_12_unless_told_otherwise() -> None:
    hasher = Hasher()
    hashed = await hasher.hash("mypassword")
    assert re.fullmatch(r"\$2a\$12\$[./A-Za-z0-9]{53}", hashed)
    assert bcrypt.checkpw(b"mypassword", hashed.encode())
    hasher.close()


async def test_every_hash_has_a_salt_of_its_own(hasher: Hasher) -> None:
    assert await hasher.hash("same") != await hasher.hash("same")


async def test_only_the_right_password_compares(hasher: Hasher) -> None:
    hashed = await hasher.hash("correct horse")
    assert await hasher.compare("correct horse", hashed)
    for wrong in ("Correct horse", "correct horse ", "correct hors", ""):
        assert not await hasher.compare(wrong, hashed)


@pytest.mark.parametrize(
    ("password", "others"),
    [
        ("x" * 72, ["x" * 71, "x" * 73]),
        ("x" * 73, ["x" * 72, "x" * 74]),
        ("x" * 100 + "a", ["x" * 100 + "b"]),
        ("é" * 36, ["é" * 36 + "e", "é" * 35 + "e"]),
        ("é" * 37, ["é" * 36, "é" * 38]),
        ("one\0one", ["one", "one\0one\0one", "one\0two"]),
    ],
)
async def test_every_byte_counts(hasher: Hasher, password: str, others: list[str]) -> None:
    hashed = await hasher.hash(password)
    assert await hasher.compare(password, hashed)
    for other in others:
        assert not await hasher.compare(other, hashed)
        assert not await hasher.compare(password, await hasher.hash(other))


async def test_a_password_that_bcrypt_takes_whole_is_not_changed_before(hasher: Hasher) -> None:
    assert bcrypt.checkpw(b"x" * 72, (await hasher.hash("x" * 72)).encode())


async def test_nothing_compares_with_nothing(hasher: Hasher) -> None:
    for password in ("", "password", "." * 31, "x" * 100):
        assert not await hasher.compare_nothing(password)


async def test_nothing_costs_one_bcrypt_of_the_same_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(password: bytes, hashed: bytes) -> bool:
        compared.append(hashed)
        return bcrypt.hashpw(password, hashed) == hashed  # what the library does, which refuses a hash that is none

    monkeypatch.setattr("refract.services.identity.adapters.hashing.bcrypt.checkpw", compare)
    hasher = Hasher(cost=5)
    hashed = await hasher.hash("password")
    await hasher.compare("password", hashed)
    await hasher.compare_nothing("password")
    hasher.close()
    assert [one[:7] for one in compared] == [b"$2a$05$", b"$2a$05$"]
    assert [len(one) for one in compared] == [60, 60]


# The threads.


class Slow:
    """Stands in for bcrypt, and takes as long as the test wants."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.threads: list[tuple[str, int]] = []

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.threads.append((threading.current_thread().name, niceness_here()))
        assert self.go_on.wait(20)
        return True


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Slow]:
    slow = Slow()
    monkeypatch.setattr("refract.services.identity.adapters.hashing.bcrypt.checkpw", slow)
    yield slow
    slow.go_on.set()


async def test_a_few_threads_work_while_the_loop_goes_on(slow: Slow) -> None:
    hasher = Hasher(cost=4, threads=3)
    tasks = [asyncio.create_task(hasher.compare_nothing("password")) for _ in range(50)]
    await eventually(lambda: len(slow.threads) == 3 and hasher._users.waiting == 50)
    assert all(name.startswith("passwords") for name, _ in slow.threads)
    slow.go_on.set()
    assert await asyncio.gather(*tasks) == [False] * 50
    assert len(slow.threads) == 50
    hasher.close()


def niceness_here() -> int:
    """Of this thread, which on Linux has one of its own."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
@pytest.mark.parametrize("steps", [0, 3, 9, 12, 19])
def test_the_threads_step_back_and_the_loop_does_not(slow: Slow, steps: int) -> None:
    """Wherever the loop is: whoever starts the process with a low priority has it in a thread that steps back, too."""
    seen: list[tuple[int, int]] = []

    async def compare() -> None:
        hasher = Hasher(cost=4, threads=1)
        await hasher.compare_nothing("password")
        hasher.close()

    def run_a_loop() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(hashing.LOWEST, niceness_here() + steps))
        before = niceness_here()
        asyncio.run(compare())
        seen.append((before, niceness_here()))

    slow.go_on.set()
    loop_of_its_own = threading.Thread(target=run_a_loop)
    loop_of_its_own.start()
    loop_of_its_own.join()
    [(before, after)] = seen
    assert after == before
    assert [niceness for _, niceness in slow.threads] == [min(hashing.LOWEST, before + hashing.NICENESS)]


async def test_where_priorities_are_forbidden_passwords_are_hashed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", forbid)
    hasher = Hasher(cost=4)
    assert await hasher.compare("password", await hasher.hash("password"))
    hasher.close()


async def test_more_than_can_be_served_in_time_are_refused(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "MOST_WAITING", 5)
    hasher = Hasher(cost=4, threads=1)
    tasks = [asyncio.create_task(hasher.compare_nothing("password")) for _ in range(5)]
    await eventually(lambda: len(slow.threads) == 1)
    with pytest.raises(Unavailable):
        await hasher.compare_nothing("password")
    slow.go_on.set()
    await asyncio.gather(*tasks)
    assert await hasher.compare_nothing("password") is False  # there is room again
    hasher.close()


async def test_whoever_gave_up_waiting_makes_room(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "MOST_WAITING", 2)
    hasher = Hasher(cost=4, threads=1)
    first, second = (asyncio.create_task(hasher.compare_nothing("password")) for _ in range(2))
    await eventually(lambda: len(slow.threads) == 1)
    second.cancel()
    await asyncio.wait([second])
    third = asyncio.create_task(hasher.compare_nothing("password"))
    slow.go_on.set()
    await asyncio.gather(first, third)
    assert len(slow.threads) == 2  # nobody worked for the one who left
    hasher.close()


@pytest.fixture
async def slow_to_hash(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Slow]:
    """Passwords of people who register take as long as the test wants, and others no time."""
    slow = Slow()

    def hash_slowly(password: bytes, salt: bytes) -> bytes:
        return b"of a user" if password == b"of a user" or not slow(password, salt) else b"a hash"

    monkeypatch.setattr("refract.services.identity.adapters.hashing.bcrypt.hashpw", hash_slowly)
    yield slow
    slow.go_on.set()


async def test_a_flood_of_registrations_keeps_no_user_waiting(slow_to_hash: Slow) -> None:
    hasher = Hasher(cost=4, threads=1)
    tasks = [asyncio.create_task(hasher.hash("password")) for _ in range(500)]
    await eventually(lambda: len(slow_to_hash.threads) == 1 and sum(task.done() for task in tasks) > 0)
    assert await hasher.compare_nothing("password") is False
    assert await hasher.hash("of a user", of_user=True) == "of a user"
    slow_to_hash.go_on.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[: hashing.MOST_OF_STRANGERS] == ["a hash"] * hashing.MOST_OF_STRANGERS
    assert {type(outcome) for outcome in outcomes[hashing.MOST_OF_STRANGERS :]} == {Unavailable}
    hasher.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
async def test_people_who_register_step_back_behind_users(slow_to_hash: Slow) -> None:
    hasher = Hasher(cost=4)
    slow_to_hash.go_on.set()
    await hasher.hash("password")
    hasher.close()
    expected = min(hashing.LOWEST, niceness_here() + hashing.NICENESS_FOR_STRANGERS)
    assert [niceness for _, niceness in slow_to_hash.threads] == [expected]
    assert hashing.NICENESS < hashing.NICENESS_FOR_STRANGERS
