"""The rules of the house as checks, each of them seen to fail on a small planted example."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("importing.py")

LONGEST_MODULE = 400
NAMELESS = {"utils", "helpers", "manager", "base", "common"}
LOCKS = ("requirements.lock", "requirements-dev.lock")

# Where a package comes from and where a checkout lies are matters of one machine. These patterns, and the examples that
# they are tried on, are written so that they are not found themselves.
INDEX = re.compile(r"--(?:extra-)?index[-]url[ =]|(?:extra-)?index[-]url\s*=|https?://[^\s\"'`<>]+/simple\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}~)*-])/(?:root|work|home/[\w.-]+|Users/[\w.-]+)/(?=[\w.])")


def modules(root: Path, *folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((root / folder).rglob("*.py"))


def kept_files(root: Path) -> Iterator[Path]:
    """Every file that is not ignored: .gitignore names folders and endings only, so that this needs no git."""
    lines = (root / ".gitignore").read_text().splitlines()
    patterns = [line.rstrip("/") for line in lines if line and not line.startswith("#")]
    waiting = [root]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if path.name == ".git" or any(path.match(pattern) for pattern in patterns):
                continue
            if path.is_dir():
                waiting.append(path)
            elif not path.is_symlink():
                yield path


def long_modules(root: Path) -> list[str]:
    lengths = {path: len(path.read_text().splitlines()) for path in modules(root, "src")}
    return [f"{path.relative_to(root)}: {length}" for path, length in lengths.items() if length > LONGEST_MODULE]


def undocumented_modules(root: Path) -> list[str]:
    """Modules that do not begin with one line which says their job."""
    found = []
    for path in modules(root, "src", "tests", "benchmarks"):
        docstring = ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""
        if not docstring.split("\n")[0].strip().endswith((".", "?", "!")):
            found.append(str(path.relative_to(root)))
    return found


def nameless_modules(root: Path) -> list[str]:
    found = []
    for path in modules(root, "src", "tests", "benchmarks"):
        names = {part.strip("_") for part in path.relative_to(root).with_suffix("").parts}
        if names & NAMELESS:
            found.append(str(path.relative_to(root)))
    return found


def machine_traces(root: Path) -> list[str]:
    """Lines of kept files that name a package index or a place on one machine."""
    found = []
    for path in kept_files(root):
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # an image or a database: not a place where a person writes such a name
        for number, line in enumerate(text.splitlines(), start=1):
            if INDEX.search(line) or MACHINE_PATH.search(line) or str(root) in line:
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()}")
    return found


def unlocked_requirements(lock: Path) -> list[str]:
    """Entries without an exact version and a hash, and lines that are neither entry, hash nor comment."""
    found = []
    for entry in re.sub(r"\\\n", " ", lock.read_text()).splitlines():
        text = entry.partition(" #")[0].strip()
        if not text or text.startswith("#"):
            continue
        exact = re.match(r"[a-z0-9][a-z0-9._-]*(\[[a-z0-9,._-]+\])?==\S+", text)
        if not exact or not re.search(r"--hash=sha256:[0-9a-f]{64}\b", text):
            found.append(text)
    return found


def effects_of_importing(source: Path, package: str) -> list[str]:
    """What importing every module did to the world, from a process of its own."""
    process = subprocess.run(
        [sys.executable, "-B", SCRIPT, source, package], capture_output=True, text=True, check=False, timeout=110
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout.splitlines()[-1])
    assert report["imported"] > 0
    effects: list[str] = report["effects"]
    return effects


def plant(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_no_module_is_too_long() -> None:
    assert long_modules(ROOT) == []


def test_a_long_module_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "src/fits.py", "x = 1\n" * LONGEST_MODULE)
    assert long_modules(tmp_path) == []
    plant(tmp_path, "src/long.py", "x = 1\n" * (LONGEST_MODULE + 1))
    assert long_modules(tmp_path) == ["src/long.py: 401"]


def test_every_module_says_its_job_in_its_first_line() -> None:
    assert undocumented_modules(ROOT) == []


def test_an_undocumented_module_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "src/good.py", '"""It does this."""\n')
    plant(tmp_path, "tests/longer.py", '"""It does this.\n\nAnd here is why.\n"""\n')
    assert undocumented_modules(tmp_path) == []
    for name, text in {
        "empty": "",
        "comment": "# It does this.\n",
        "late": '"""\nIt does this.\n"""\n',
        "unfinished": '"""It does\nthis."""\n',
    }.items():
        plant(tmp_path, f"src/{name}.py", text)
    assert undocumented_modules(tmp_path) == ["src/comment.py", "src/empty.py", "src/late.py", "src/unfinished.py"]


def test_nothing_is_called_by_a_name_that_says_nothing() -> None:
    assert nameless_modules(ROOT) == []


@pytest.mark.parametrize("name", ["utils.py", "runtime/helpers/__init__.py", "_base.py", "common.py", "manager.py"])
def test_a_name_that_says_nothing_is_found(tmp_path: Path, name: str) -> None:
    plant(tmp_path, "src/database.py", "")
    assert nameless_modules(tmp_path) == []
    plant(tmp_path, f"src/{name}", "")
    assert nameless_modules(tmp_path) == [f"src/{name}"]


def test_no_file_names_an_index_or_a_place_on_one_machine() -> None:
    assert machine_traces(ROOT) == []


@pytest.mark.parametrize(
    "line",
    [
        "--extra-index_url https://packages.example.com".replace("_", "-"),
        "index_url = https://packages.example.com".replace("_", "-"),
        "see https://packages.example.com" + "/simple/refract",
        "cd /" + "root/refract",
        'path = "/' + 'home/somebody/refract"',
        "/" + "Users/somebody/refract",
        "{root}",
    ],
)
def test_a_trace_of_one_machine_is_found(tmp_path: Path, line: str) -> None:
    plant(tmp_path, ".gitignore", "# what installing makes\n.venv/\n*.log\n")
    plant(
        tmp_path,
        "README.md",
        "GET /api/work/items, ./home/page/, https://example.com/home/x/y and --no-emit-index-url\n",
    )
    plant(tmp_path, "image.png", "").write_bytes(b"\xff\xfe")
    plant(tmp_path, ".venv/pip.conf", line.format(root=tmp_path))
    plant(tmp_path, "run.log", line.format(root=tmp_path))
    assert machine_traces(tmp_path) == []
    plant(tmp_path, "docs/install.md", f"first\n{line.format(root=tmp_path)}\n")
    assert [trace.rpartition(":2:")[0] for trace in machine_traces(tmp_path)] == ["docs/install.md"]


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_is_locked_with_its_hashes(name: str) -> None:
    assert unlocked_requirements(ROOT / name) == []


@pytest.mark.parametrize(
    "entry",
    [
        "second==2.0",
        "second>=2.0 \\\n    --hash=sha256:" + "b" * 64,
        "second==2.0 \\\n    --hash=sha256:short",
        "--index_url https://packages.example.com".replace("_", "-"),
        "--find-links wheels",
        "-e .",
    ],
)
def test_an_unlocked_requirement_is_found(tmp_path: Path, entry: str) -> None:
    good = "first[extra]==1.0 ; sys_platform != 'win32' \\\n    --hash=sha256:" + "a" * 64 + "\n    # via refract\n"
    lock = plant(tmp_path, "requirements.lock", good)
    assert unlocked_requirements(lock) == []
    plant(tmp_path, "requirements.lock", f"{good}{entry}\n")
    assert len(unlocked_requirements(lock)) == 1


def test_importing_has_no_effect() -> None:
    assert effects_of_importing(ROOT / "src", "refract") == []


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("import socket\nsocket.socket().close()\n", "socket.__new__"),
        ("import threading\nthreading.Thread(target=print).start()\n", "started a thread"),
        ("open(__file__ + '.log', 'w').close()\n", "for writing"),
        ("import sqlite3\nsqlite3.connect(':memory:').close()\n", "sqlite3.connect"),
        ("import pathlib\npathlib.Path(__file__ + '.d').mkdir()\n", "os.mkdir"),
        ("import subprocess\nsubprocess.run(['true'])\n", "subprocess.Popen"),
    ],
)
def test_an_effect_at_import_is_found(tmp_path: Path, text: str, effect: str) -> None:
    plant(tmp_path, "planted/__init__.py", "")
    plant(tmp_path, "planted/quiet.py", "print(open(__file__).read())\n")
    assert effects_of_importing(tmp_path, "planted") == []
    plant(tmp_path, "planted/loud.py", text)
    effects = effects_of_importing(tmp_path, "planted")
    assert effects
    assert all(found.startswith("planted.loud: ") for found in effects)
    assert effect in effects[0]
