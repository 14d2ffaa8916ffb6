"""A private Kafka: one node, broker and controller in one, from the published jars."""

import base64
import secrets
import shutil
import sys
from pathlib import Path
from signal import SIGKILL, SIGTERM

from tests.support.servers import kafka_jars, kafka_wire
from tests.support.servers.places import free_port
from tests.support.servers.process import OwnedProcess
from tests.support.servers.server import SECONDS_TO_STOP, Server

JAVA = (
    "-Xms128m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # tests are over before the better compiler has paid for itself
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # After a kill the node waits until its own former session is over. A busy machine must not end a living one.
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "controlled.shutdown.enable": "false",
}


class Kafka(Server):
    """Kafka as published. Where its jars cannot be had a mock stands in, which keeps nothing over a kill."""

    name = "Kafka"
    variable = "TEST_KAFKA_BOOTSTRAP"
    package = "maven"  # which brings a Java with it

    def __init__(self) -> None:
        super().__init__()
        self._controller_port = free_port()
        self._why_not_real = ""

    @classmethod
    def installed(cls) -> bool:
        return shutil.which("java") is not None and (kafka_jars.present() or shutil.which("mvn") is not None)

    @staticmethod
    def version_at(address: str) -> str:
        return kafka_wire.release_at(address)

    @property
    def real(self) -> bool:
        """Whether it is the real broker."""
        return not self._why_not_real

    @property
    def address(self) -> str:
        if self.real:
            return f"127.0.0.1:{self.port}"
        return self._stand_in_address.read_text()

    def version(self) -> str:
        """The jars know it to the last digit; the wire does not say."""
        if self.real:
            return kafka_jars.VERSION
        return f"is NOT real here but librdkafka's mock cluster, because its jars cannot be had: {self._why_not_real}"

    @property
    def _stand_in_address(self) -> Path:
        return self.folder / "address"

    def _prepare(self) -> None:
        try:
            kafka_jars.bring()
        except kafka_jars.NoJars as error:
            self._why_not_real = " ".join(str(error).split())
            print(f"Kafka {self.version()}", file=sys.stderr, flush=True)
            return
        (self.folder / "data").mkdir()
        self._format()
        self._make_archive()

    def _format(self) -> None:
        """What `kafka-storage format` would write, without a second virtual machine for it."""
        marks = {"version": "1", "cluster.id": _new_id(), "node.id": "1", "directory.id": _new_id()}
        _write(self.folder / "data" / "meta.properties", marks)
        listeners = f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}"
        places = {
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "log.dirs": str(self.folder / "data"),
        }
        _write(self.folder / "server.properties", {**SETTINGS, **places})

    def _make_archive(self) -> None:
        """Once on this machine: run the broker, and have the virtual machine keep its classes when it ends."""
        with kafka_jars.making_archive() as draft:
            if draft is None:
                return
            self._process = self._run(f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
            self._wait_until_ready()
            self._process.signal(SIGTERM)
            self._process.wait(SECONDS_TO_STOP)

    def _launch(self) -> OwnedProcess:
        if not self.real:
            self._stand_in_address.unlink(missing_ok=True)
            script = Path(__file__).with_name("kafka_stand_in.py")
            return self._own([sys.executable, str(script), str(self._stand_in_address)])
        archive = kafka_jars.archive()
        return self._run(*([f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"] if archive.exists() else []))

    def _run(self, *options: str) -> OwnedProcess:
        settings = str(self.folder / "server.properties")
        return self._own(["java", *JAVA, *options, "-cp", kafka_jars.class_path(), "kafka.Kafka", settings])

    def _own(self, command: list[str]) -> OwnedProcess:
        return OwnedProcess(command, folder=self.folder, log=self.log, last_signal=SIGKILL)

    def _ready(self) -> bool:
        """The broker opens its port when it may be used; the mock says where it is."""
        try:
            kafka_wire.release_at(self.address)
        except OSError:
            return False
        return True


def _new_id() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("-", "_")


def _write(file: Path, properties: dict[str, str]) -> None:
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
