"""The command `python -m tests.support.servers`: servers for one command (run), or kept up (up, down, status)."""

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.support.servers import kept
from tests.support.servers.packages import MissingSoftware
from tests.support.servers.selection import SERVERS, environment, in_use, started
from tests.support.servers.server import ServerError

FORWARDED = {signal.SIGINT, signal.SIGTERM}
SENT_BY_TERMINAL = 0x80  # SI_KERNEL: the terminal has sent it to the command as well


def run(command: Sequence[str]) -> int:
    """Run the command with servers; afterwards name them and pass on its status."""
    with in_use() as used:
        status = _supervise(command, {**os.environ, **environment(used)})
    for one in used:
        print(one)
    return status


def up() -> int:
    """Keep servers up; print the lines a shell needs to use them."""
    for variable, address in kept.up().items():
        print(f"export {variable}={shlex.quote(address)}")
    return 0


def down() -> int:
    """Stop the servers that are kept up."""
    print("Servers stopped." if kept.down() else "No servers were up.")
    return 0


def status() -> int:
    """Say which servers are kept up."""
    addresses = kept.addresses()
    if not addresses:
        print("No servers are up; `make servers` starts them.")
        return 1
    for server in SERVERS:
        address = addresses.get(server.variable)
        print(f"{server.name} {server.version_at(address)} at {address}" if address else f"{server.name} is not up")
    return 0


def hold() -> int:
    """Own the kept servers until told to stop (what `up` starts in the background)."""
    with started(SERVERS) as servers:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        kept.announce({server.variable: server.address for server in servers})
        signal.sigwait(FORWARDED)
    return 0


def _supervise(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Wait for the command, passing on the signals meant for it; from here on none of them can keep us from tidying."""
    awaited = {*FORWARDED, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = subprocess.Popen(
        command,
        env=variables,
        # No thread runs by now, and the command must not be born deaf to the signals held back here.
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited),  # noqa: PLW1509
    )
    while child.poll() is None:
        arrived = signal.sigwaitinfo(awaited)
        if arrived.si_signo in FORWARDED and arrived.si_code != SENT_BY_TERMINAL:
            child.send_signal(arrived.si_signo)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def main(arguments: Sequence[str]) -> int:
    """Do what the first argument says."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.servers", description=__doc__)
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("run", help=run.__doc__).add_argument("command", nargs="+")
    simple = {"up": up, "down": down, "status": status, "hold": hold}
    for name, task in simple.items():
        tasks.add_parser(name, help=task.__doc__)
    options = parser.parse_args(arguments)
    try:
        return run(options.command) if options.task == "run" else simple[options.task]()
    except (MissingSoftware, ServerError, kept.NotKept) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
