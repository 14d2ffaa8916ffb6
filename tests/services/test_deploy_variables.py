"""Variables and secrets of the containers: each is read, documented, and given; no secret is written down."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from refract.apps.directory import SERVICES
from tests.support.compose import (
    DEPLOY,
    DEVELOPMENT,
    FILES,
    PLACEHOLDER,
    PRODUCTION,
    compose,
    required,
    some_secrets,
)

ROOT = Path(__file__).parents[2]

READERS = {
    "text",
    "integer",
    "number",
    "flag",
    "choice",
    "secret",
    "host",
    "address",
    "addresses",
    "url",
    "endpoint",
    "networks",
    "has",
}
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
# Where the names are not written at the call: the table of the services' addresses, which the directory has, too.
READS_BY_TABLE = {"services/gateway/settings.py"}
# Where to listen in a container, and another spelling of what is given.
NOT_IN_COMPOSE = {"HOST", "REDIS_HOST", "REDIS_PORT"}


def test_no_secret_is_written_down() -> None:
    model = compose(PRODUCTION)
    only_from_outside = re.compile(r"\$\{[A-Z_]+(:\?[^}]+|:-)\}")
    for name, container in model["services"].items():
        for variable, value in container["environment"].items():
            if re.search("PASS|SECRET|AUTH", variable):
                assert only_from_outside.fullmatch(value), f"{name}: {variable}"
            for credentials in re.findall(r"//[^@/:]+:(.+)@", value):
                assert only_from_outside.fullmatch(credentials), f"{name}: {variable}"
    command = model["services"]["redis"]["command"]
    assert only_from_outside.fullmatch(command[command.index("--requirepass") + 1])
    written = dict(re.findall(r"(?m)^([A-Z_]+)=(.*)$", (DEPLOY / ".env.example").read_text()))
    assert required() - {"REFRACT_VERSION"} <= set(written)
    assert not any(written.values()), "the example has no values that somebody could keep"


def test_the_command_of_the_readme_makes_every_secret(tmp_path: Path) -> None:
    script = re.findall(r"```sh\n(\(umask.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)[0]
    shutil.copy(DEPLOY / ".env.example", tmp_path)
    subprocess.run(["sh", "-euc", script], cwd=tmp_path, check=True)
    made = dict(re.findall(r"(?m)^([A-Z_]+)=(.*)$", (tmp_path / ".env").read_text()))
    filled = {name: value for name, value in made.items() if value}
    assert set(filled) == required() - {"REFRACT_VERSION"}
    assert all(re.fullmatch(r"[0-9a-f]{64}", value) for value in filled.values())
    assert len(set(filled.values())) == len(filled)
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    compose(DEVELOPMENT, made)


def read_by_the_code() -> set[str]:
    """The names in calls such as `environment.text("PORT")`, and those of the services' addresses."""
    names = {entry.url_variable for entry in SERVICES.values() if entry.url_variable}
    package = ROOT / "src" / "refract"
    for file in package.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            if call.func.attr not in READERS:
                continue
            name = call.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and VARIABLE.fullmatch(name.value):
                names.add(name.value)
            elif ast.unparse(call.func.value).endswith("environment"):
                where = file.relative_to(package).as_posix()
                assert where in READS_BY_TABLE, (
                    f"{where}:{call.lineno} reads a variable whose name is not written there"
                )
    return names


def read_by_compose() -> set[str]:
    return {name for file in PRODUCTION for name, _, _ in PLACEHOLDER.findall(file.read_text())}


def documented() -> tuple[set[str], set[str]]:
    """The variables in the two tables of the documentation: what processes read, and what only Compose does."""
    processes, _, compose_alone = (
        (ROOT / "docs" / "configuration.md").read_text().partition("## What only Compose reads")
    )
    row = re.compile(r"(?m)^\| `([A-Z0-9_]+)` \|")
    return set(row.findall(processes)), set(row.findall(compose_alone))


def test_the_documentation_names_what_the_code_and_compose_read() -> None:
    code = read_by_the_code()
    assert documented() == (code, read_by_compose() - code)


def test_the_example_names_what_the_code_and_compose_read() -> None:
    named = re.findall(r"(?m)^(?:# )?([A-Z0-9_]+)=", (DEPLOY / ".env.example").read_text())
    assert sorted(named) == sorted(read_by_the_code() | read_by_compose())


def test_containers_are_given_only_variables_that_the_code_reads() -> None:
    code = read_by_the_code()
    for entry in SERVICES.values():
        given = set(compose(PRODUCTION)["services"][entry.wire_name]["environment"])
        assert given <= code, f"{entry.wire_name}: {sorted(given - code)}"


def test_containers_are_given_every_variable_that_the_code_reads() -> None:
    """Whoever sets one in `.env` finds it set in a container."""
    services = compose(PRODUCTION)["services"]
    given = {name for entry in SERVICES.values() for name in services[entry.wire_name]["environment"]}
    assert read_by_the_code() - given == NOT_IN_COMPOSE


@pytest.mark.parametrize(("variable", "name"), [("GEOIP_DB", "analytics-service"), ("SAFETY_BLOCKLIST", "url-service")])
def test_a_file_that_a_variable_names_can_be_read_in_the_container(variable: str, name: str) -> None:
    chosen = f"/files/{variable.lower()}"
    for files in (DEVELOPMENT, PRODUCTION):
        container = compose(files, some_secrets() | {variable: chosen})["services"][name]
        assert container["environment"][variable] == chosen
        assert FILES in container["volumes"]
    readme = DEPLOY / "files" / "README.md"
    assert readme.is_file(), "else Docker makes the folder, and it is root's"
    assert f"{variable}=/files/" in readme.read_text()
