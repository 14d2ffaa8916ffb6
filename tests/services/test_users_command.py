"""`refract users`: accounts by hand, in both modes, and no password where others could read it."""

import asyncio
import os
import pty
import re
import stat
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from refract.apps.data_directory import DataDirectory
from refract.runtime.statements import Statement
from tests.support.commands import COMMAND, refract
from tests.support.databases import Location, open_database
from tests.support.stack import inherited

PASSWORD = "a password of some length"
HASHES = Statement("hashes", "Reads the hashes.", "SELECT password_hash, email FROM users ORDER BY email")


@dataclass(frozen=True)
class Place:
    """An instance as the command line is told of it."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    database: Location

    async def run(self, *command: str, said: str = "") -> tuple[int, str, str]:
        done = await asyncio.to_thread(
            refract, "users", *command, *self.arguments, variables=self.variables, standard_input=said
        )
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(params=["embedded", "distributed"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "embedded":
        directory = DataDirectory(tmp_path / "data")
        return Place(("--data-dir", str(directory.path)), {}, directory.database("identity"))
    dsn: str = request.getfixturevalue("fresh_database")
    return Place((), {"DATABASE_DSN": dsn, "SERVICE_NAME": "user-service"}, dsn)


async def test_accounts_from_their_first_day_to_their_last(place: Place) -> None:
    status, made, trouble = await place.run("create", "Root@example.org", "--administrator", said=f"{PASSWORD}\r\n")
    assert (status, trouble) == (0, "")
    found = re.fullmatch(r"root@example\.org is an administrator now, with id ([0-9a-f-]{36})\n", made)
    assert found
    await place.run("create", "ann@example.org", said=PASSWORD)

    database = await open_database(place.database)
    try:
        rows = await database.fetch(HASHES)
    finally:
        await database.close()
    assert [row["email"] for row in rows] == ["ann@example.org", "root@example.org"]
    assert all(re.match(r"\$2[ab]\$12\$", row["password_hash"]) for row in rows), "cost 12, as the service itself"

    assert await place.run("suspend", "ann@example.org") == (0, "ann@example.org is suspended now\n", "")
    assert await place.run("suspend", "ann@example.org") == (0, "ann@example.org is suspended already\n", "")
    said = "root@example.org is a user from the next sign-in on\n"
    assert await place.run("promote", found[1], "--undo") == (0, said, "")
    listed = (await place.run("list"))[1].splitlines()
    assert [line.split()[1:4] for line in listed] == [
        ["user", "suspended", "ann@example.org"],
        ["user", "active", "root@example.org"],
    ]
    assert listed[1].endswith(found[1])
    assert (await place.run("list", "--limit", "1"))[1].splitlines() == listed[:1]


async def test_an_account_is_deleted_for_good_and_its_address_is_free(place: Place) -> None:
    made = (await place.run("create", "ann@example.org", said=PASSWORD))[1]
    ann = made.split()[-1]
    await place.run("create", "root@example.org", "--administrator", said=PASSWORD)
    asked = "FATAL: nobody is there to be asked; --yes deletes the account without a question\n"
    assert await place.run("delete", "ann@example.org", said="yes\n") == (1, "", asked)
    deleted = f"the account {ann} is deleted, and its links stop in a moment\n"
    assert await place.run("delete", "ANN@example.org", "--yes") == (0, deleted, "")
    assert await place.run("delete", ann, "--yes") == (0, f"the account {ann} is deleted already\n", "")
    nobody = "FATAL: no account signs in here with that address\n"
    assert await place.run("delete", "ann@example.org", "--yes") == (1, "", nobody)
    for command in ("suspend", "promote"):
        assert await place.run(command, ann, "--undo") == (1, "", "FATAL: the account is deleted\n")
    last = "FATAL: the last administrator cannot be deleted: make another one first\n"
    assert await place.run("delete", "root@example.org", "--yes") == (1, "", last)
    assert (await place.run("create", "ann@example.org", said=PASSWORD))[0] == 0
    listed = [line.split()[1:4] for line in (await place.run("list"))[1].splitlines()]
    assert ["user", "deleted", f"deleted_{ann}"] in listed
    assert ["user", "active", "ann@example.org"] in listed


@pytest.mark.parametrize(("answer", "status"), [("yes", 0), ("no", 1), ("", 1)])
def test_a_terminal_is_asked_before_an_account_is_deleted(tmp_path: Path, answer: str, status: int) -> None:
    place = ("--data-dir", str(tmp_path))
    assert refract("users", "create", "ann@example.org", *place, standard_input=PASSWORD).returncode == 0
    terminal, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "users", "delete", "ann@example.org", *place],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=inherited(),
        start_new_session=True,
    ) as process:
        os.close(theirs)
        shown = read_until(terminal, b"(yes/no) ")
        os.write(terminal, f"{answer}\n".encode())
        shown += read_until(terminal, b"no more: it is closed")
        os.close(terminal)
        assert process.wait(30) == status
    assert b"Delete ann@example.org and all their links, for good?" in shown
    assert (b"FATAL: nothing was deleted" in shown) is (status == 1)
    assert ("active" in refract("users", "list", *place).stdout) is (status == 1)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "there is no password on standard input"),
        ("\nlater", "there is no password on standard input"),
        ("short\n", "password must be at least 8 characters"),
    ],
)
def test_without_a_password_there_is_no_account(tmp_path: Path, said: str, words: str) -> None:
    place = ("--data-dir", str(tmp_path))
    done = refract("users", "create", "ann@example.org", *place, standard_input=said)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"FATAL: {words}\n")


def test_a_password_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    command = [*COMMAND, "users", "create", "ann@example.org", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, input=b"\xff\xfe\n", env=inherited(), capture_output=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"FATAL: the password on standard input is not UTF-8\n"


@pytest.mark.parametrize(("again", "status"), [(PASSWORD, 0), ("another password", 1)])
def test_a_terminal_is_asked_twice_and_shows_nothing(tmp_path: Path, again: str, status: int) -> None:
    command = [*COMMAND, "users", "create", "ann@example.org", "--data-dir", str(tmp_path)]
    terminal, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=inherited(), start_new_session=True
    ) as process:
        os.close(theirs)
        shown = b""
        for question, answer in ((b"Password: ", PASSWORD), (b"again: ", again)):
            shown += read_until(terminal, question)
            os.write(terminal, f"{answer}\n".encode())
        shown += read_until(terminal, b"no more: it is closed")
        os.close(terminal)
        assert process.wait(30) == status
    assert PASSWORD.encode() not in shown
    assert again.encode() not in shown
    assert (b"is a user now" in shown) is (status == 0)
    assert (b"FATAL: the two passwords differ" in shown) is (status == 1)


def read_until(terminal: int, mark: bytes) -> bytes:
    """What a terminal shows, up to a text or to its end, which is an error here."""
    shown = b""
    with suppress(OSError):
        while mark not in shown:
            shown += os.read(terminal, 1024)
    return shown


def test_a_password_is_no_argument() -> None:
    help_page = refract("users", "create", "--help").stdout
    assert "--password" not in help_page
    assert "first line of standard input" in " ".join(help_page.split())
    assert refract("users", "create", "ann@example.org", PASSWORD).returncode == 2


@pytest.mark.parametrize(
    "command",
    [("list",), ("promote", "a@b.example"), ("suspend", "a@b.example"), ("delete", "a@b.example", "--yes")],
)
def test_an_instance_that_is_not_there_is_named_and_not_made(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = refract("users", *command, "--data-dir", str(tmp_path / "none"))
    assert done.returncode == 1
    assert done.stderr == f'FATAL: there is no instance in "{tmp_path / "none"}"; name its place with --data-dir\n'
    assert not (tmp_path / "none").exists()


def test_the_environment_of_another_service_is_refused() -> None:
    variables = {"DATABASE_DSN": "postgres://user:hunter2@127.0.0.1:1/links", "SERVICE_NAME": "url-service"}
    done = refract("users", "list", variables=variables)
    expected = 'FATAL: environment variable "SERVICE_NAME" is "url-service"; expected "user-service"\n'
    assert (done.returncode, done.stderr) == (1, expected)


def test_the_files_of_the_first_account_are_for_their_owner_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    refract("users", "create", "ann@example.org", "--data-dir", str(data), standard_input=PASSWORD)
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert {file.stat().st_mode & 0o077 for file in data.iterdir()} == {0}


def test_nobody_is_an_answer(tmp_path: Path) -> None:
    refract("migrate", "identity", "--data-dir", str(tmp_path))
    done = refract("users", "list", "--data-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "No accounts.\n")
    lost = refract("users", "promote", "ann@example.org", "--data-dir", str(tmp_path))
    assert (lost.returncode, lost.stderr) == (1, "FATAL: no account signs in here with that address\n")
