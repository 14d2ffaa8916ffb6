"""What stands in where the broker's jars cannot be had: librdkafka's mock cluster, in memory, gone with its process.

kafka_stand_in.py FILE writes its address into the file and serves until it is ended. It has no controller: nobody can
declare a topic: those of the services are there from the beginning, and a topic with a name of a test's own is not.
"""

import signal
import sys
from pathlib import Path

from confluent_kafka import Producer

from refract.services.sms.api import NOTIFICATION_EVENTS, OUTBOUND


def main(file: Path) -> None:
    """Serve one broker of the mock."""
    owner = Producer({"test.mock.num.brokers": 1, "allow.auto.create.topics": True})
    [broker] = owner.list_topics(timeout=30).brokers.values()
    for topic in (OUTBOUND, NOTIFICATION_EVENTS):
        made = owner.list_topics(topic.name, timeout=30).topics[topic.name]  # whoever asks for one gets it
        assert len(made.partitions) == topic.partitions
    draft = file.with_suffix(".new")
    draft.write_text(f"{broker.host}:{broker.port}")
    draft.replace(file)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(Path(sys.argv[1]))
