"""Events of the KV cache as a subscriber sees them, over real sockets."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgpack
import pytest
import zmq
from tests.fake_runner import build_core
from tests.kv_event_consumer import Consumer, View, as_map

from stoker.config.schema.kv_events import KVEventsConfig
from stoker.engine.api import CacheScope, EngineRequest, QueueFull, RequestInputs, SamplingParams
from stoker.engine.core.block_events import BlocksCleared, BlocksRemoved, BlocksStored
from stoker.engine.kv_events import publisher as publisher_module
from stoker.engine.kv_events.payloads import CacheView, EventPayloads
from stoker.engine.kv_events.publisher import CannotPublish, EventPublisher
from stoker.engine.loop.engine_core import EngineCore

SIZE = 4
H = [bytes([index]) * 32 for index in range(9)]


def payloads(encoding: str = "map", windows: tuple[int | None, ...] = (None,)) -> EventPayloads:
    return EventPayloads(block_size=SIZE, windows=windows, medium="CPU", encoding=encoding)  # type: ignore[arg-type]


@contextmanager
def published(folder: Path, **options: object) -> Iterator[EventPublisher]:
    values = {"endpoint": f"ipc://{folder}/e", "replay_endpoint": f"ipc://{folder}/r", **options}
    publisher = EventPublisher(KVEventsConfig.model_validate(values), clock=lambda: 1.5)
    try:
        publisher.start(payloads(str(options.get("encoding", "map"))))
        yield publisher
    finally:
        publisher.close()


@contextmanager
def following(folder: Path, topic: str = "", hwm: int = 0) -> Iterator[Consumer]:
    consumer = Consumer(f"ipc://{folder}/e", f"ipc://{folder}/r", topic, hwm)
    try:
        yield consumer
    finally:
        consumer.close()


def stored(*hashes: bytes, parent: bytes | None = None) -> BlocksStored:
    return BlocksStored(0, parent, list(hashes), list(range(SIZE * len(hashes))), [None] * len(hashes))


class Traffic:
    """An engine whose requests share prefixes, on a cache that is too small for all of them."""

    def __init__(self, publisher: EventPublisher, seed: int = 0, num_blocks: int = 40) -> None:
        settings = {"num_blocks": num_blocks, "records_block_events": True, "max_num_seqs": 8}
        self.core: EngineCore = build_core(json.dumps(settings), lambda _: None)
        self.core.publish_events(publisher)
        self._random = random.Random(seed)
        self._count = 0
        self.epoch = 0

    def run(self, num_requests: int) -> None:
        for _ in range(num_requests):
            self._count += 1
            family = self._random.randrange(5)
            length = self._random.randrange(1, 60)
            prompt = [1 + family * 100 + index for index in range(length)]
            if self._random.random() < 0.5:
                prompt = prompt[: length // 2] + [self._random.randrange(1, 999) for _ in range(length)]
            sampling = SamplingParams(max_tokens=self._random.randrange(1, 12), ignore_eos=True)
            with suppress(QueueFull):
                self.core.add(
                    EngineRequest(
                        request_id=str(self._count),
                        inputs=RequestInputs(prompt, sampling, CacheScope(epoch=self.epoch)),
                    )
                )
            self.core.step()
        while self.core.has_work:
            self.core.step()

    @property
    def hashes(self) -> set[bytes]:
        events = self.core.block_events
        assert events is not None
        return events.reported[0]


def follow(folder: Path, num_requests: int, rounds: int) -> int:
    with published(folder, buffer_steps=1_000_000) as publisher, following(folder) as consumer:
        traffic = Traffic(publisher)
        for epoch in range(rounds):
            traffic.epoch = epoch
            traffic.run(num_requests)
            consumer.replay()
            assert consumer.view.hashes() == traffic.hashes
            with following(folder) as late:
                late.snapshot()
                assert late.view.blocks == consumer.view.blocks
                assert late.next == consumer.next
        assert len(traffic.hashes) > 5
        for (group, _), (parent, _) in consumer.view.blocks.items():
            assert group == 0
            assert parent is None or len(parent) == 32
        return consumer.view.num_events


@pytest.mark.effect("kv_events.replay_endpoint")
def test_a_view_made_of_the_events_equals_the_cache_after_evictions_and_resets(tmp_path: Path):
    assert follow(tmp_path, 100, 3) > 300


@pytest.mark.slow
def test_a_view_made_of_20_000_events_equals_the_cache(tmp_path: Path):
    assert follow(tmp_path, 2_400, 5) > 20_000


@pytest.mark.effect("kv_events.endpoint", "kv_events.topic", "kv_events.publisher")
def test_a_subscriber_gets_batches_in_order_under_its_topic(tmp_path: Path):
    with published(tmp_path, topic="kv@pod@model") as publisher, following(tmp_path, "kv@pod") as consumer:
        consumer.snapshot()
        for index in range(200):  # a subscriber that has just connected misses the first ones
            publisher.put([stored(H[1])] if index % 2 == 0 else [BlocksRemoved(0, [H[1]])])
        publisher.put([stored(H[2], H[3])])
        while consumer.topics != {b"kv@pod@model"}:  # until one has arrived, and no longer by replay
            publisher.put([BlocksCleared()])
            consumer.receive(consumer.next + 1)
        publisher.put([stored(H[4], H[5])])
        consumer.replay()
        assert consumer.view.hashes() == {H[4], H[5]}
        assert consumer.view.blocks[0, H[5]] == (H[4], (4, 5, 6, 7))


@pytest.mark.effect("kv_events.encoding")
def test_both_encodings_have_the_same_values_in_the_documented_order(tmp_path: Path):
    events = [
        BlocksStored(1, H[0], [H[1], H[2]], list(range(8)), [None, [("image", -2)]]),
        BlocksStored(0, None, [H[3]], [7, 7, 7, 7], [["abcd"]]),
        BlocksRemoved(0, [H[3]]),
        BlocksCleared(),
    ]
    both = [msgpack.unpackb(payloads(name, (None, 99)).encode(events, 1.5)) for name in ("map", "array")]
    assert [(time, rank) for time, _, rank in both] == [(1.5, 0), (1.5, 0)]
    assert both[0][1][0] == {
        "type": "BlockStored",
        "block_hashes": [H[1], H[2]],
        "parent_block_hash": H[0],
        "token_ids": [0, 1, 2, 3, 4, 5, 6, 7],
        "block_size": 4,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": None,
        "extra_keys": [None, [["image", -2]]],
        "group_idx": 1,
        "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 99,
    }
    assert both[0][1][1]["extra_keys"] == [["abcd"]]
    assert both[0][1][1]["kv_cache_spec_kind"] == "full_attention"
    assert both[1][1][2] == ["BlockRemoved", [H[3]], "CPU", 0]
    assert list(map(as_map, both[1][1])) == both[0][1]


@pytest.mark.effect("kv_events.buffer_steps")
def test_replay_sends_what_is_kept_from_a_number_on(tmp_path: Path):
    with published(tmp_path, buffer_steps=3) as publisher, following(tmp_path) as consumer:
        for index in range(5):
            publisher.put([stored(H[index])])
        kept = [int.from_bytes(sequence) for sequence, _ in consumer.ask((0).to_bytes(8, "big"))]
        assert kept == [3, 4, 5]  # 0 says that nothing is cached
        assert [int.from_bytes(sequence) for sequence, _ in consumer.ask((5).to_bytes(8, "big"))] == [5]
        assert consumer.ask((6).to_bytes(8, "big")) == []


def test_a_wrong_request_is_dropped_and_a_req_socket_is_answered(tmp_path: Path):
    with published(tmp_path), following(tmp_path) as consumer:
        consumer._asking.send_multipart((b"", b"what"))
        consumer._asking.send_multipart((b"",))
        with zmq.Context() as context, context.socket(zmq.REQ) as asking:
            asking.linger = 0
            asking.connect(f"ipc://{tmp_path}/r")
            asking.send((0).to_bytes(8, "big"))
            assert asking.poll(10_000)
            sequence, payload = asking.recv_multipart()
        assert sequence == bytes(8)
        assert msgpack.unpackb(payload) == [1.5, [{"type": "AllBlocksCleared"}], 0]
        assert len(consumer.ask(bytes(8))) == 1


def test_after_a_restart_numbers_and_identity_are_new_and_nothing_is_cached(tmp_path: Path):
    with following(tmp_path) as consumer:
        seen = []
        for hashes in ([H[1], H[2]], [H[3]]):
            with published(tmp_path) as publisher:
                publisher.put([stored(*hashes)])
                consumer.snapshot()
                seen.append((consumer.next, consumer.publisher, consumer.view.hashes()))
        assert [(number, hashes) for number, _, hashes in seen] == [(2, {H[1], H[2]}), (2, {H[3]})]
        assert seen[0][1] != seen[1][1]
        assert len(seen[0][1]) == 16


@pytest.mark.effect("kv_events.hwm")
def test_a_subscriber_that_stops_reading_holds_nobody_up_and_sees_a_gap(tmp_path: Path):
    big = [BlocksStored(0, None, [H[1]], list(range(100_000, 104_000)), [None]), BlocksRemoved(0, [H[1]])]
    with published(tmp_path, hwm=2, buffer_steps=1) as publisher, following(tmp_path) as reader:
        with following(tmp_path, hwm=1) as stopped:
            publisher.put([BlocksCleared()])
            stopped._events.poll(50)
            for _ in range(400):
                publisher.put(big)
            reader.snapshot()  # the thread has sent all of them
            first = reader.next
            assert first >= 402
            numbers = []
            while stopped._events.poll(200):
                numbers.append(int.from_bytes(stopped._events.recv_multipart()[1]))
            assert len(numbers) < 402
        publisher.put([stored(H[2])])  # and one that is gone
        reader.snapshot()
        assert reader.view.hashes() == {H[2]}


@pytest.mark.effect("kv_events.max_queue_size")
def test_a_full_queue_is_replaced_by_an_empty_cache(tmp_path: Path):
    values = {"endpoint": f"ipc://{tmp_path}/e", "replay_endpoint": f"ipc://{tmp_path}/r", "max_queue_size": 3}
    publisher = EventPublisher(KVEventsConfig.model_validate(values))
    for index in range(5):  # nothing is sent before `start`
        publisher.put([stored(H[index])])
    publisher.start(payloads())  # has the queue's third place
    with following(tmp_path) as consumer:
        consumer.replay()
        publisher.close()
    assert consumer.view.hashes() <= {H[3], H[4]}


@pytest.mark.parametrize("option", ["endpoint", "replay_endpoint"])
def test_a_port_in_use_is_an_error_that_names_the_option(option: str, tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        values = {"endpoint": f"ipc://{tmp_path}/e", option: address.replace("127.0.0.1", "0.0.0.0")}
        with pytest.raises(CannotPublish, match=rf"`kv_events\.{option}`: cannot use tcp://.*: address already in use"):
            EventPublisher(KVEventsConfig.model_validate(values))


def test_a_path_is_not_taken_from_a_publisher_that_runs_but_from_one_that_was_killed(tmp_path: Path):
    values = KVEventsConfig(endpoint=f"ipc://{tmp_path}/e")
    with published(tmp_path), pytest.raises(CannotPublish, match="address already in use"):
        EventPublisher(values)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(f"{tmp_path}/left")  # the file is left
    EventPublisher(KVEventsConfig(endpoint=f"ipc://{tmp_path}/left")).close()


def test_the_publisher_connects_to_a_subscriber_that_listens(tmp_path: Path):
    with zmq.Context() as context, context.socket(zmq.SUB) as listening:
        listening.setsockopt(zmq.SUBSCRIBE, b"")
        port = listening.bind_to_random_port("tcp://127.0.0.1")
        publisher = EventPublisher(KVEventsConfig(endpoint=f"tcp://127.0.0.1:{port}"))
        publisher.start(payloads())
        while not listening.poll(20):  # until the connection is there
            publisher.put([BlocksCleared()])
        assert msgpack.unpackb(listening.recv_multipart()[2])[1] == [{"type": "AllBlocksCleared"}]
        publisher.close()


def test_each_replica_has_addresses_and_a_rank_of_its_own():
    config = KVEventsConfig(endpoint="tcp://*:5557", replay_endpoint="ipc:///r")
    assert config.at_rank(0).addresses == ("tcp://*:5557", "ipc:///r")
    assert config.at_rank(3).addresses == ("tcp://*:5560", "ipc:///r_dp3")
    assert KVEventsConfig(endpoint="tcp://[::]:*").at_rank(2).endpoint == "tcp://[::]:*"
    layout = EventPayloads(block_size=SIZE, windows=(None,), medium="GPU", encoding="map", rank=3)
    assert msgpack.unpackb(layout.encode([], 2.5)) == [2.5, [], 3]


def test_a_snapshot_in_pieces_has_parents_before_their_blocks():
    view = CacheView(num_groups=2)
    salted = BlocksStored(1, None, [H[1]], [1, 2, 3, 4], [["salt"]])
    view.apply([stored(H[3], parent=H[2]), stored(H[1], H[2]), salted], SIZE)
    for most in (1, 2, 100):
        again, order = View(), []
        for piece in view.events(most):
            assert sum(len(event.block_hashes) for event in piece if isinstance(event, BlocksStored)) <= most
            order += [one for event in piece if isinstance(event, BlocksStored) for one in event.block_hashes]
            again.apply(payloads(windows=(None, 8)).encode(piece, 0.0))
        assert order == [H[1], H[2], H[3], H[1]]
        assert again.hashes(0) == {H[1], H[2], H[3]}
        assert again.blocks[0, H[3]] == (H[2], (0, 1, 2, 3))


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.SUB])
def test_a_long_frame_ends_its_connection_before_it_is_received(tmp_path: Path, kind: int):
    """One frame of 1.4 GB was received into the engine's memory."""
    with published(tmp_path), zmq.Context() as context, context.socket(kind) as reader:
        ends = reader.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        reader.linger = 0
        reader.connect(f"ipc://{tmp_path}/{'r' if kind == zmq.DEALER else 'e'}")
        if kind == zmq.DEALER:
            reader.send(b"x" * 100_000)
        else:
            reader.setsockopt(zmq.SUBSCRIBE, b"x" * 100_000)
        assert ends.poll(60_000)
        reader.disable_monitor()
        ends.close()


@pytest.mark.parametrize("option", ["endpoint", "replay_endpoint"])
def test_one_connection_more_than_the_limit_is_closed(tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch):
    """1500 connections were all accepted, each with a queue of its own."""
    monkeypatch.setattr(publisher_module, "MAX_CONNECTIONS", 3)
    address = f"ipc://{tmp_path}/{option}"
    with published(tmp_path, **{option: address}):
        opened = [greeted(address) for _ in range(5)]
        try:
            assert sorted(each.recv(1) for each in opened[3:]) == [b"", b""]
            assert [is_open(each) for each in opened[:3]] == [True] * 3
            opened[0].close()
            while not is_open(again := greeted(address)):  # until it is known that the first has gone
                again.close()
            opened.append(again)
        finally:
            for each in opened:
                each.close()


def greeted(address: str) -> socket.socket:
    """A connection to a ZMQ socket, after the first byte of its greeting, or after its end."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    made.connect(address.removeprefix("ipc://"))
    made.recv(64)
    return made


def is_open(connection: socket.socket) -> bool:
    """Within a tenth of a second in which it is not closed."""
    connection.settimeout(0.1)
    try:
        return connection.recv(64) != b""
    except TimeoutError:
        return True


def test_wrong_requests_write_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with published(tmp_path), zmq.Context() as context, context.socket(zmq.DEALER) as reader:
        reader.linger = 0
        reader.connect(f"ipc://{tmp_path}/r")
        for _ in range(50):
            reader.send(b"wrong")
        reader.send((0).to_bytes(8, "big"))
        assert reader.poll(60_000)  # the answer to the last one
    assert len([record for record in caplog.records if "neither" in record.getMessage()]) == 1
