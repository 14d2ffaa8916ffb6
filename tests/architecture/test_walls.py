"""The six import contracts hold, and each one refuses the breaches it is there for."""

import configparser
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "importlinter.ini"
LINTER = Path(sys.executable).with_name("lint-imports")


@dataclass(frozen=True)
class Breach:
    """A line added to a module, and the ground it needs: modules that are allowed to exist, made where they do not."""

    contract: str
    module: str
    line: str
    ground: tuple[str, ...] = ()


BREACHES = {
    "kernel looks up to runtime": Breach(
        "storeys", "kernel.planted", "import refract.runtime.planted", ("kernel.planted", "runtime.planted")
    ),
    "runtime looks up to a service": Breach(
        "storeys", "runtime.planted", "import refract.services.links.api", ("runtime.planted",)
    ),
    "a service looks up to apps": Breach(
        "storeys", "services.links.service", "import refract.apps", ("services.links.service",)
    ),
    "a module that belongs to no storey": Breach("storeys", "utils", ""),
    "a room looks up": Breach(
        "rooms",
        "services.links.store",
        "import refract.services.links.http",
        ("services.links.store", "services.links.http"),
    ),
    "a room looks into the one beside it": Breach(
        "rooms",
        "services.sms.queries",
        "import refract.services.sms.commands",
        ("services.sms.queries", "services.sms.commands"),
    ),
    "a room that no other service has": Breach("rooms", "services.identity.extras", ""),
    "a service climbs into another's store": Breach(
        "doors",
        "services.analytics.store",
        "from refract.services.links import store",
        ("services.analytics.store", "services.links.store"),
    ),
    "the gateway climbs into another's store": Breach(
        "doors",
        "services.gateway.service",
        "from refract.services.identity.store import planted",
        ("services.gateway.service", "services.identity.store"),
    ),
    "a service knows the embedded mode": Breach(
        "modes", "services.links.store", "import refract.runtime.embedded", ("services.links.store",)
    ),
    "a service knows the distributed mode through another module": Breach(
        "modes",
        "runtime.planted",
        "import refract.runtime.distributed",
        ("runtime.planted", "services.projects.store"),
    ),
    "web knows a mode": Breach("modes", "web.planted", "import refract.runtime.distributed", ("web.planted",)),
    "embedded leans on distributed": Breach(
        "twins", "runtime.embedded.planted", "import refract.runtime.distributed", ("runtime.embedded.planted",)
    ),
    "distributed leans on embedded": Breach(
        "twins", "runtime.distributed.planted", "import refract.runtime.embedded", ("runtime.distributed.planted",)
    ),
    "kernel uses a driver": Breach("pure", "kernel.planted", "import asyncpg", ("kernel.planted",)),
    "kernel uses the event loop": Breach("pure", "kernel.planted", "import asyncio.locks", ("kernel.planted",)),
    "a domain uses a driver": Breach("pure", "services.links.domain", "import asyncpg", ("services.links.domain",)),
    "an api uses a framework": Breach("pure", "services.links.api", "from litestar import get"),
}
# What the ground says beside its docstring, where an empty module would not do.
FURNISHED = {"services.projects.store": "import refract.runtime.planted\n"}


def lint(root: Path) -> tuple[dict[str, bool], str]:
    """Which contract is kept by the package under root, and what the linter says of it."""
    process = subprocess.run(
        [LINTER, "--config", CONFIGURATION, "--no-cache", "--no-logo"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "src"), "COLUMNS": "300", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    configuration = configparser.ConfigParser()
    configuration.read(CONFIGURATION)
    names = {
        section["name"]: identifier.removeprefix("importlinter:contract:")
        for identifier, section in configuration.items()
        if identifier.startswith("importlinter:contract:")
    }
    verdicts = re.findall(r"^(.+) (KEPT|BROKEN)", process.stdout, re.MULTILINE)
    kept = {names[name]: verdict == "KEPT" for name, verdict in verdicts}
    assert len(kept) == len(names) == 6, process.stdout + process.stderr
    assert (process.returncode == 0) == all(kept.values())
    return kept, process.stdout


def broken(root: Path) -> set[str]:
    return {contract for contract, kept in lint(root)[0].items() if not kept}


def module_file(root: Path, module: str) -> Path:
    place = root / "src" / "refract" / Path(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def prepare(root: Path, module: str) -> None:
    """Make a module exist, and give it what it needs."""
    with module_file(root, module).open("a") as file:
        file.write(f'\n"""Planted."""\n{FURNISHED.get(module, "")}')


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package on which anything may be planted."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return tmp_path


def test_the_walls_stand() -> None:
    kept, report = lint(ROOT)
    assert all(kept.values()), report
    assert kept.keys() == {breach.contract for breach in BREACHES.values()}, "a contract has no breach to be tried on"


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES)
def test_a_planted_breach_is_refused_by_its_own_wall_alone(copy: Path, breach: Breach) -> None:
    for module in breach.ground:
        prepare(copy, module)
    before = broken(copy)
    assert breach.contract not in before
    with module_file(copy, breach.module).open("a") as file:
        file.write(f"\n{breach.line}\n")
    assert broken(copy) == before | {breach.contract}


def test_the_doors_are_open(copy: Path) -> None:
    prepare(copy, "services.analytics.store")
    with module_file(copy, "services.analytics.store").open("a") as file:
        file.write("from refract.services.links.api import UrlClicked\n")
    assert "doors" not in broken(copy)
