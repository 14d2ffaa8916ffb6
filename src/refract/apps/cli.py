"""The `refract` command. Each command imports what it needs when it runs, so that none pays for another's start."""

import asyncio
import os
import sys
from collections.abc import Coroutine
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
app.add_typer(dead, name="dead")
app.add_typer(outbox, name="outbox")

DataDir = Annotated[Path, typer.Option("--data-dir", help="Where an embedded instance keeps its data.")]
DATA = Path("data")
T = TypeVar("T")


def main() -> None:
    """Run the command line."""
    app()


@app.callback(invoke_without_command=True)
def root(*, version: Annotated[bool, typer.Option("--version", help="Say the version.")] = False) -> None:
    """Refract, a self-hosted link platform."""
    if version:
        typer.echo(f"refract {__version__}")
        raise typer.Exit


@app.command()
def serve(
    data_dir: DataDir = DATA,
    host: Annotated[str | None, typer.Option(help="Address to listen on; HOST or 127.0.0.1 if not given.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; PORT or 8080 if not given.")] = None,
) -> None:
    """Run everything in one process, with its data in one directory."""
    from refract.apps.embedded import serve as run  # noqa: PLC0415

    variables = dict(os.environ)
    if host is not None:
        variables["HOST"] = host
    if port is not None:
        variables["PORT"] = str(port)
    _run(run(Environment(variables), data_dir))


@app.command()
def run(service: Annotated[str, typer.Argument(help="links, url-service, gateway, …")]) -> None:
    """Run one service over PostgreSQL, Redis and RabbitMQ, as the environment says."""
    from refract.apps.distributed import run as run_service  # noqa: PLC0415

    _run(run_service(_service(service), _environment()))


@app.command()
def migrate(
    service: Annotated[str | None, typer.Argument(help="One service; all of an embedded instance if left out.")] = None,
    data_dir: DataDir = DATA,
) -> None:
    """Bring databases to the newest schema; what is up to date stays as it is."""
    from refract.apps.upkeep import migrate as bring_up_to_date  # noqa: PLC0415

    for line in _run(bring_up_to_date(_environment(), service and _service(service), data_dir)):
        typer.echo(line)


@app.command()
def doctor(
    service: Annotated[str | None, typer.Argument(help="Check as this service; without it, by what is set.")] = None,
    data_dir: DataDir = DATA,
) -> None:
    """Say what is reachable, which versions run, and what is misconfigured."""
    from refract.apps.doctor import examine  # noqa: PLC0415

    findings = _run(examine(_environment(), service and _service(service), data_dir))
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = typer.style("ok   ", fg="green") if finding.ok else typer.style("wrong", fg="red")
        typer.echo(f"{mark}  {finding.subject:{width}}  {finding.words}")
    raise typer.Exit(0 if all(finding.ok for finding in findings) else 1)


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


def _environment() -> Environment:
    return Environment(os.environ)


def _service(name: str) -> str:
    from refract.apps.directory import SERVICES, find_service  # noqa: PLC0415

    entry = find_service(name)
    if entry is None:
        _fail(f'FATAL: there is no service "{name}"; expected one of {", ".join(SERVICES)}')
    return entry.name


def _run(task: Coroutine[Any, Any, T]) -> T:
    """Run to the end; trouble that we foresaw is one line and status 1."""
    import uvloop  # noqa: PLC0415

    try:
        return uvloop.run(task)
    except Misconfigured as error:
        _fail(str(error))
    except RefractError as error:
        _fail(f"FATAL: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)


def _fail(line: str) -> NoReturn:
    typer.echo(line, err=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    main()
