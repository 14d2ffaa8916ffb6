"""`refract users`: accounts in the hands of whoever runs the instance, in both modes and while it runs."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from getpass import getpass
from pathlib import Path

from refract.apps.data_directory import DataDirectory
from refract.apps.service_database import service_database
from refract.kernel.clock import SystemClock
from refract.kernel.errors import Misconfigured
from refract.runtime.environment import Environment
from refract.runtime.migrations import migrate
from refract.runtime.settings import check_service_name, database_dsn
from refract.services.identity.adapters.hashing import Hasher
from refract.services.identity.api import NAME, WIRE_NAME
from refract.services.identity.commands.administering import Administering
from refract.services.identity.domain.accounts import User
from refract.services.identity.settings import IdentitySettings

MAX_LINE = 4096


def read_password() -> str:
    """A password from the terminal, asked for twice, or the first line of standard input; never an argument, which
    others on the machine could read."""
    if not sys.stdin.isatty():
        return _piped_password()
    password = getpass("Password: ")
    if getpass("The same again: ") != password:
        raise Misconfigured("FATAL: the two passwords differ")
    return password


def _piped_password() -> str:
    line = sys.stdin.buffer.readline(MAX_LINE)
    try:
        password = line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise Misconfigured("FATAL: the password on standard input is not UTF-8") from None
    if not password:
        raise Misconfigured("FATAL: there is no password on standard input")
    return password


async def create(environment: Environment, email: str, password: str, *, administrator: bool, data_dir: Path) -> str:
    """Make an account; also the first one of an instance that has not been started yet."""
    async with _accounts(environment, data_dir, make=True) as accounts:
        account = await accounts.create(email, password, role="administrator" if administrator else "user")
    return f"{account.email} is {_a(account)} now, with id {account.id}"


async def promote(environment: Environment, who: str, *, undo: bool, data_dir: Path) -> str:
    """Make somebody an administrator, or a user like others again."""
    async with _accounts(environment, data_dir) as accounts:
        account, changed = await accounts.change_role(who, "user" if undo else "administrator")
    if not changed:
        return f"{account.email} is {_a(account)} already"
    return f"{account.email} is {_a(account)} from the next sign-in on"


async def suspend(environment: Environment, who: str, *, undo: bool, data_dir: Path) -> str:
    """Shut somebody out at once, or let them in again."""
    async with _accounts(environment, data_dir) as accounts:
        account, changed = await accounts.change_status(who, "active" if undo else "suspended")
    if not changed:
        return f"{account.email} is {account.status} already"
    return f"{account.email} is {account.status} now"


def confirm_deletion(who: str) -> None:
    """Ask at the terminal whether it is meant; a program has to say so beforehand."""
    if not sys.stdin.isatty():
        raise Misconfigured("FATAL: nobody is there to be asked; --yes deletes the account without a question")
    try:
        answer = input(f"Delete {who} and all their links, for good? (yes/no) ")
    except EOFError:
        answer = ""
    if answer.strip().lower() != "yes":
        raise Misconfigured("FATAL: nothing was deleted")


async def delete(environment: Environment, who: str, *, data_dir: Path) -> str:
    """End an account for good."""
    async with _accounts(environment, data_dir) as accounts:
        account, changed = await accounts.delete(who)
    if not changed:
        return f"the account {account.id} is deleted already"
    return f"the account {account.id} is deleted, and its links stop in a moment"


async def accounts(environment: Environment, limit: int, data_dir: Path) -> list[User]:
    """The newest accounts."""
    async with _accounts(environment, data_dir) as found:
        return await found.newest(limit)


def _a(account: User) -> str:
    return "an administrator" if account.role == "administrator" else "a user"


@asynccontextmanager
async def _accounts(environment: Environment, data_dir: Path, *, make: bool = False) -> AsyncIterator[Administering]:
    """The accounts of the database that the environment names, else of the instance in the directory."""
    # What links in mails begin with is not needed here, and need not be set.
    settings = IdentitySettings.from_environment(environment, base_url="http://localhost")
    if environment.has("SERVICE_NAME"):
        check_service_name(environment, WIRE_NAME)  # another service's DATABASE_DSN has no accounts
    if environment.has("DATABASE_DSN"):
        await migrate(NAME, database_dsn(environment))
    elif make:
        directory = DataDirectory(data_dir)
        directory.prepare()
        await migrate(NAME, directory.database(NAME))
    hasher = Hasher(threads=1)
    try:
        async with service_database(environment, NAME, data_dir) as database:
            yield Administering(database, hasher, settings.password_policy, SystemClock())
    finally:
        hasher.close()
