"""Programs that the measurements need: brought as Debian packages, or named when they are missing."""

import os
import shutil
import subprocess

from tests.support.servers.packages import APT_GET, MissingSoftware

SEARCHED = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
"""Daemons lie where the search path of an ordinary user does not look."""


def ensure(program: str, package: str) -> str:
    """Where the program is; it is installed where it is missing and we may, else one line says what is missing."""
    found = shutil.which(program, path=SEARCHED)
    if found is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingSoftware(f"{program} is missing: install the Debian package {package}")
    print(f"Installing {package} with apt-get …")
    for arguments in (("update",), ("install", "--yes", "--no-install-recommends", package)):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run([*APT_GET, *arguments], check=False, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise MissingSoftware(f"{done.stdout}{done.stderr}apt-get {' '.join(arguments)} failed")
    found = shutil.which(program, path=SEARCHED)
    if found is None:
        raise MissingSoftware(f"{package} was installed without {program}")
    return found
