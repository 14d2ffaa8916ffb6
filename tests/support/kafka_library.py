"""What Kafka's library keeps for tests and Python does not show: fatal errors on request, and brokers that refuse."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka import Consumer, TopicPartition

OUT_OF_ORDER_SEQUENCE = 45
NOT_LEADER = 6
PRODUCE = 0
"""The number that the protocol gives to a request to publish."""

_PRODUCER = 0


def _library() -> ctypes.CDLL:
    [path] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, restype, argtypes in (
        ("rd_kafka_name", text, [pointer]),
        ("rd_kafka_test_fatal_error", number, [pointer, number, text]),
        ("rd_kafka_conf_new", pointer, []),
        ("rd_kafka_conf_set", number, [pointer, text, text, text, ctypes.c_size_t]),
        ("rd_kafka_new", pointer, [number, pointer, text, ctypes.c_size_t]),
        ("rd_kafka_destroy", None, [pointer]),
        ("rd_kafka_handle_mock_cluster", pointer, [pointer]),
        ("rd_kafka_mock_cluster_bootstraps", text, [pointer]),
        ("rd_kafka_mock_start_request_tracking", None, [pointer]),
        ("rd_kafka_mock_get_requests", ctypes.POINTER(pointer), [pointer, ctypes.POINTER(ctypes.c_size_t)]),
        ("rd_kafka_mock_request_api_key", ctypes.c_int16, [pointer]),
        ("rd_kafka_mock_request_destroy_array", None, [ctypes.POINTER(pointer), ctypes.c_size_t]),
        ("rd_kafka_mock_topic_create", number, [pointer, text, number, number]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = restype, argtypes
    return library


def break_for_good(producer: confluent_kafka.Producer) -> None:
    """Have the library find a fatal error, by its own function for tests."""
    library = _library()
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__).value  # the first field of the object
    assert library.rd_kafka_name(handle).startswith(b"refract#producer")
    assert library.rd_kafka_test_fatal_error(handle, OUT_OF_ORDER_SEQUENCE, b"the test says so") == 0


class MockCluster:
    """One broker in memory that does as it is told; like a real one it takes whatever sequence it sees first."""

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self._cluster = library.rd_kafka_handle_mock_cluster(handle)
        self.bootstrap: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create(self, topic: str, partitions: int) -> None:
        """Have a topic."""
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0

    def stored(self, topic: str) -> list[bytes | None]:
        """What its first partition holds."""
        place = TopicPartition(topic, 0, 0)
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "nobody"})
        try:
            _, end = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([place])
            return [message.value() for message in consumer.consume(end, timeout=10)]
        finally:
            consumer.close()

    def refuse_next(self, request: int, error: int, *, after_milliseconds: int) -> None:
        """Answer the next request of a kind with an error, after a while; requests are counted from now on."""
        self._library.rd_kafka_mock_start_request_tracking(self._cluster)
        answers = ctypes.c_size_t(1), ctypes.c_int(error), ctypes.c_int(after_milliseconds)
        pushed = self._library.rd_kafka_mock_broker_push_request_error_rtts(
            ctypes.c_void_p(self._cluster), ctypes.c_int32(1), ctypes.c_int16(request), *answers
        )
        assert pushed == 0

    def received(self, request: int) -> int:
        """How many requests of a kind there were."""
        count = ctypes.c_size_t()
        requests = self._library.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        kinds = [self._library.rd_kafka_mock_request_api_key(requests[index]) for index in range(count.value)]
        self._library.rd_kafka_mock_request_destroy_array(requests, count)
        return kinds.count(request)


@contextmanager
def mock_cluster() -> Iterator[MockCluster]:
    """A cluster of one broker, gone at the end."""
    library = _library()
    reason = ctypes.create_string_buffer(512)
    settings = library.rd_kafka_conf_new()
    assert library.rd_kafka_conf_set(settings, b"test.mock.num.brokers", b"1", reason, len(reason)) == 0, reason.value
    handle = library.rd_kafka_new(_PRODUCER, settings, reason, len(reason))
    assert handle, reason.value
    try:
        yield MockCluster(library, handle)
    finally:
        library.rd_kafka_destroy(handle)
