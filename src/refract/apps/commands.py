"""The commands of `refract`. Each imports what it needs when it runs, so that none pays for another's start."""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from refract import __version__
from refract.kernel.errors import Misconfigured, RefractError
from refract.runtime.environment import Environment

app = typer.Typer(
    help="Refract, a self-hosted link platform.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
dead = typer.Typer(help="Messages that could not be handled.", no_args_is_help=True)
outbox = typer.Typer(help="Events saved with the writes that caused them.", no_args_is_help=True)
users = typer.Typer(help="Accounts: the first administrator is made here.", no_args_is_help=True)
app.add_typer(users, name="users")
app.add_typer(dead, name="dead")
app.add_typer(outbox, name="outbox")

DataDir = Annotated[Path, typer.Option("--data-dir", help="Where an embedded instance keeps its data.")]
Host = Annotated[str | None, typer.Option(help="Address to listen on; HOST or 127.0.0.1 if not given.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; PORT or 8080 if not given.")]
DATA = Path("data")
PRIVATE = 0o077
"""The umask of what makes an instance's files: nobody else reads them, whatever the directory allows."""
T = TypeVar("T")


@app.callback(invoke_without_command=True)
def root(*, version: Annotated[bool, typer.Option("--version", help="Say the version.")] = False) -> None:
    """Refract, a self-hosted link platform."""
    if version:
        typer.echo(f"refract {__version__}")
        raise typer.Exit


@app.command()
def serve(data_dir: DataDir = DATA, host: Host = None, port: Port = None) -> None:
    """Run everything in one process, with its data in one directory."""
    from refract.apps.embedded import serve as run  # noqa: PLC0415

    os.umask(PRIVATE)
    _run_long(run(_environment(host, port), data_dir))


@app.command()
def run(service: Annotated[str, typer.Argument(help="links, url-service, gateway, …")]) -> None:
    """Run one service over PostgreSQL, Redis and RabbitMQ, as the environment says."""
    from refract.apps.distributed import run as run_service  # noqa: PLC0415

    _run_long(run_service(_service(service), _environment()))


@app.command()
def migrate(
    service: Annotated[str | None, typer.Argument(help="One service; all of an embedded instance if left out.")] = None,
    data_dir: DataDir = DATA,
) -> None:
    """Bring databases to the newest schema; what is up to date stays as it is."""
    from refract.apps.upkeep import migrate as bring_up_to_date  # noqa: PLC0415

    os.umask(PRIVATE)
    for line in _run(bring_up_to_date(_environment(), service and _service(service), data_dir)):
        typer.echo(line)


@app.command()
def doctor(
    service: Annotated[str | None, typer.Argument(help="Check as this service; without it, by what is set.")] = None,
    data_dir: DataDir = DATA,
    host: Host = None,
    port: Port = None,
) -> None:
    """Say what is reachable, which versions run, and what is misconfigured."""
    from refract.apps.doctor import examine  # noqa: PLC0415

    findings = _run(examine(_environment(host, port), service and _service(service), data_dir))
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = typer.style("ok   ", fg="green") if finding.ok else typer.style("wrong", fg="red")
        typer.echo(f"{mark}  {finding.subject:{width}}  {finding.words}")
    raise typer.Exit(0 if all(finding.ok for finding in findings) else 1)


@users.command("create")
def create_user(
    email: Annotated[str, typer.Argument(help="The address by which they sign in.")],
    *,
    administrator: Annotated[
        bool, typer.Option("--administrator", help="With the rights of an administrator.")
    ] = False,
    data_dir: DataDir = DATA,
) -> None:
    """Make an account. The password is asked for, or is the first line of standard input.

    The address counts as verified, since you vouch for it.
    """
    from refract.apps.users import create, read_password  # noqa: PLC0415

    os.umask(PRIVATE)
    with _trouble_in_one_line():
        password = read_password()
    typer.echo(_run(create(_environment(), email, password, administrator=administrator, data_dir=data_dir)))


@users.command("promote")
def promote_user(
    who: Annotated[str, typer.Argument(help="The address, or the id, of an account.")],
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Make them a user like others again.")] = False,
    data_dir: DataDir = DATA,
) -> None:
    """Make somebody an administrator, from their next sign-in on."""
    from refract.apps.users import promote  # noqa: PLC0415

    typer.echo(_run(promote(_environment(), who, undo=undo, data_dir=data_dir)))


@users.command("suspend")
def suspend_user(
    who: Annotated[str, typer.Argument(help="The address, or the id, of an account.")],
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Let them in again.")] = False,
    data_dir: DataDir = DATA,
) -> None:
    """Shut somebody out: they cannot sign in, and all their tokens are dead within a second."""
    from refract.apps.users import suspend  # noqa: PLC0415

    typer.echo(_run(suspend(_environment(), who, undo=undo, data_dir=data_dir)))


@users.command("delete")
def delete_user(
    who: Annotated[str, typer.Argument(help="The address, or the id, of an account.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether it is meant.")] = False,
    data_dir: DataDir = DATA,
) -> None:
    """Delete an account for good: its tokens are dead, its links stop, its address is forgotten. Counts stay."""
    from refract.apps.users import confirm_deletion, delete  # noqa: PLC0415

    if not yes:
        with _trouble_in_one_line():
            confirm_deletion(who)
    typer.echo(_run(delete(_environment(), who, data_dir=data_dir)))


@users.command("list")
def list_users(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, the newest first.")] = 100,
    data_dir: DataDir = DATA,
) -> None:
    """List accounts: when they were made, role, status, address, id."""
    from refract.apps.users import accounts  # noqa: PLC0415

    found = _run(accounts(_environment(), limit, data_dir))
    for account in found:
        when = f"{account.created_at:%Y-%m-%dT%H:%M:%SZ}"
        typer.echo(f"{when}  {account.role:13}  {account.status:9}  {account.email}  {account.id}")
    if not found:
        typer.echo("No accounts.")


@dead.command("list")
def list_dead(
    queue: Annotated[str | None, typer.Argument(help="One queue; all of them if left out.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many of each queue.")] = 100,
    data_dir: DataDir = DATA,
) -> None:
    """List messages that were given up, with the reason."""
    from refract.apps.upkeep import dead_letters  # noqa: PLC0415

    letters = _run(dead_letters(_environment(), queue, limit, data_dir))
    for letter in letters:
        message = letter.message
        when = f"{letter.buried_at:%Y-%m-%dT%H:%M:%SZ}"
        typer.echo(f"{when}  {letter.queue}  {message.message_id}  {message.routing_key}  {letter.reason}")
    if not letters:
        typer.echo("No dead letters.")


@dead.command("replay")
def replay_dead(
    queue: Annotated[str, typer.Argument(help="The queue they were meant for.")],
    message: Annotated[list[str] | None, typer.Option("--id", help="Only this message; may be given again.")] = None,
    data_dir: DataDir = DATA,
) -> None:
    """Put dead letters back into their queue. What was handled before has no second effect."""
    from refract.apps.upkeep import replay_dead_letters  # noqa: PLC0415

    replayed = _run(replay_dead_letters(_environment(), queue, message or None, data_dir))
    typer.echo(f"{replayed} replayed to {queue}")


@outbox.command("replay")
def replay_outbox(
    service: Annotated[str, typer.Argument(help="Whose events.")],
    since: Annotated[datetime, typer.Option(help="Announced at or after this moment (UTC).")],
    until: Annotated[datetime | None, typer.Option(help="Announced before this moment (UTC); now if left out.")] = None,
    data_dir: DataDir = DATA,
) -> None:
    """Publish events of a period again. Readers that handled them recognise them."""
    from refract.apps.upkeep import replay_period  # noqa: PLC0415

    begin = since.replace(tzinfo=UTC)
    end = until.replace(tzinfo=UTC) if until else datetime.now(UTC)
    replayed = _run(replay_period(_environment(), _service(service), begin, end, data_dir))
    typer.echo(f"{replayed} will be published again")


def _environment(host: str | None = None, port: int | None = None) -> Environment:
    options = {"HOST": host or "", "PORT": "" if port is None else str(port)}
    return Environment(os.environ, options)


def _service(name: str) -> str:
    from refract.apps.directory import SERVICES, find_service  # noqa: PLC0415

    entry = find_service(name)
    if entry is None:
        _fail(f'FATAL: there is no service "{name}"; expected one of {", ".join(SERVICES)}')
    return entry.name


def _run(task: Coroutine[Any, Any, T]) -> T:
    """Run to the end."""
    import uvloop  # noqa: PLC0415

    # What goes wrong is said by the command itself; those that run on configure their own log.
    logging.getLogger().addHandler(logging.NullHandler())
    with _trouble_in_one_line():
        return uvloop.run(task)


@contextmanager
def _trouble_in_one_line() -> Iterator[None]:
    """Trouble that we foresaw is one line and status 1."""
    try:
        yield
    except Misconfigured as error:
        _fail(str(error))
    except RefractError as error:
        _fail(f"FATAL: {error}")
    except OSError as error:
        if error.filename is None:
            raise
        _fail(f'FATAL: "{error.filename}" cannot be used: {error.strerror}')
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)


def _run_long(task: Coroutine[Any, Any, None]) -> None:
    """Run until a signal comes. A reader of the log that goes away takes the log with it, and nothing else."""
    logging.raiseExceptions = False
    _run(task)


def _fail(line: str) -> NoReturn:
    typer.echo(line, err=True)
    raise typer.Exit(1)
