"""Brings missing servers as Debian packages, or says which are missing; never a silent skip."""

import os
import shutil
import subprocess
from collections.abc import Iterable

from tests.support.servers.server import Server

APT_GET = ("apt-get", "-o", "DPkg::Lock::Timeout=300")


class MissingSoftware(Exception):
    """One line for each thing that is missing and cannot be installed from here."""


def ensure(servers: Iterable[type[Server]]) -> None:
    """Install what the servers need and this machine lacks."""
    missing = [server for server in servers if not server.installed()]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingSoftware("\n".join(f"{server.name} is missing: {_advice(server)}" for server in missing))
    names = [server.package for server in missing]
    print(f"Installing {', '.join(names)} with apt-get …", flush=True)
    _apt_get("update")
    _apt_get("install", "--yes", "--no-install-recommends", *names)
    if absent := [server for server in missing if not server.installed()]:
        raise MissingSoftware("\n".join(f"{server.package} was installed without {server.name}" for server in absent))


def _advice(server: type[Server]) -> str:
    return f"install the Debian package {server.package}, or name a server in {server.variable}"


def _apt_get(*arguments: str) -> None:
    """Quiet unless it fails. Should it start a daemon, that daemon is none of our business."""
    done = subprocess.run(
        [*APT_GET, *arguments],
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        raise MissingSoftware(f"{done.stdout}apt-get {' '.join(arguments)} failed with status {done.returncode}")
