"""The broker's jars, brought once by Maven into the user's cache, with an archive of its classes for a quick start."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = "4.1.0"
LOGGING_VERSION = "1.7.36"
SECONDS_TO_DOWNLOAD = 600

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>refract</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>{LOGGING_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"


class NoJars(Exception):
    """They are not in the cache and cannot be brought; the text says what Maven said."""


def folder() -> Path:
    """Where they are kept between runs, outside the repository."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "refract" / f"kafka-{VERSION}"


def archive() -> Path:
    """The classes as the virtual machine has them in memory; it starts in a third of the time from there."""
    return folder() / "classes.jsa"


def present() -> bool:
    """Whether they have been brought."""
    return (folder() / "jars").is_dir()


def class_path() -> str:
    """All jars, always in the same order: the archive is good for no other."""
    return os.pathsep.join(str(jar) for jar in sorted((folder() / "jars").glob("*.jar")))


def bring() -> None:
    """Have them in the cache; whoever comes while another process brings them waits for it."""
    if present():
        return
    folder().mkdir(parents=True, exist_ok=True)
    with _one_at_a_time():
        if not present():
            _download()


def _download() -> None:
    if shutil.which("mvn") is None:
        raise NoJars("Maven is not installed")
    print(f"Bringing Kafka {VERSION} with Maven …", flush=True)
    with tempfile.TemporaryDirectory(dir=folder()) as draft:
        (Path(draft) / "pom.xml").write_text(_POM)
        command = ["mvn", "-q", "-B", "-f", f"{draft}/pom.xml", _COPY, f"-DoutputDirectory={draft}/jars"]
        try:
            done = subprocess.run(
                [*command, "-DincludeScope=runtime"],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS_TO_DOWNLOAD,
            )
        except subprocess.TimeoutExpired:
            raise NoJars(f"Maven took longer than {SECONDS_TO_DOWNLOAD} s") from None
        if done.returncode != 0:
            raise NoJars("\n".join(done.stdout.splitlines()[-5:]))
        (Path(draft) / "jars").rename(folder() / "jars")


@contextmanager
def making_archive() -> Iterator[Path | None]:
    """Where to write the archive that is missing; None when it is there, or somebody else is about to make it."""
    if archive().exists():
        yield None
        return
    with (folder() / "archive.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        draft = archive().with_suffix(".new")
        yield draft
        if draft.exists():
            draft.replace(archive())


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    with (folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
