"""The README's walk-through, run as it stands: every command works, and prints what it is said to print."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.commands import COMMAND, running
from tests.support.servers.places import free_port
from tests.support.stack import inherited

README = Path(__file__).parents[2] / "README.md"
PROGRAM = ".venv/bin/refract"
ADDRESS = "http://127.0.0.1:8080"
MARK = "--- step ---"
HEADINGS = ("## Five minutes with curl", "### Text messages")


@dataclass(frozen=True)
class Step:
    """A command, and the lines that its output has, in this order; `…` stands for anything."""

    command: str
    expected: tuple[str, ...]


def steps(heading: str) -> list[Step]:
    """The commands below a heading. A comment before the first command of a paragraph is prose."""
    text = README.read_text().partition(f"{heading}\n")[2]
    block = text.partition("```sh\n")[2].partition("```")[0]
    found = []
    for paragraph in block.strip().split("\n\n"):
        lines = paragraph.replace("\\\n", " ").splitlines()
        while lines[0].startswith("#"):
            lines.pop(0)
        expected = tuple(line.removeprefix("# ") for line in lines if line.startswith("# "))
        found.append(Step("\n".join(line for line in lines if not line.startswith("#")), expected))
    return found


def outputs(commands: list[str], folder: Path) -> list[str]:
    """What each command prints, all run by one shell, because later ones use what earlier ones found."""
    script = "\n".join(["set -eu", *(f"{command}\necho; echo '{MARK}'" for command in commands)])
    shell = shutil.which("bash")
    assert shell is not None
    ended = subprocess.run(
        [shell, "-c", script], cwd=folder, env=inherited(), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split(MARK)[:-1]


def pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split("…")))


def test_the_walk_through_does_what_it_says(tmp_path: Path) -> None:
    walk = [step for heading in HEADINGS for step in steps(heading)]
    assert len(walk) >= 20, "the blocks were found"
    port = free_port()
    address, data = f"http://127.0.0.1:{port}", tmp_path / "data"
    commands = [step.command.replace(ADDRESS, address).replace(PROGRAM, " ".join(COMMAND)) for step in walk]
    with running("serve", "--data-dir", str(data), "--port", str(port), address=address, folder=tmp_path / "logs"):
        printed = outputs(commands, tmp_path)
    for step, output in zip(walk, printed, strict=True):
        rest = output.replace("\r", "").replace(address, ADDRESS)
        for line in step.expected:
            found = re.search(rf"^{pattern(line)}$", rest, re.MULTILINE)
            assert found, f"{step.command}\nprints\n{output}\nwithout\n{line}"
            rest = rest[found.end() :]
    assert (tmp_path / "spring.svg").read_text().startswith("<")
