"""HeldOutputs: a request for others ends when they can read its blocks, and not before."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engine.api import EngineOutput, FinishReason, StoredBlocks
from stoker.engine.core.block_store import Fetch
from stoker.engine.loop.held_outputs import HeldOutputs
from stoker.engine.step import StepOutputs


class Store:
    """Blocks that a test says are being saved, or saved."""

    def __init__(self) -> None:
        self.saving: set[bytes] = set()
        self.saved: set[bytes] = set()

    def has(self, block_hash: bytes) -> bool:
        return block_hash in self.saved

    def wants(self, block_hash: bytes, *, is_for_others: bool) -> bool:
        return not self.has(block_hash)

    def save(self, block_hash: bytes, content: memoryview, *, is_for_others: bool) -> None:
        raise NotImplementedError

    def fetch(self, hashes: Sequence[bytes], source: StoredBlocks | None) -> Fetch:
        raise NotImplementedError

    def drop(self, block_hash: bytes) -> None:
        raise NotImplementedError

    def is_saving(self, block_hash: bytes) -> bool:
        return block_hash in self.saving

    def stored(self, hashes: Sequence[bytes]) -> StoredBlocks:
        first = next((index for index, name in enumerate(hashes) if name not in self.saved), len(hashes))
        return StoredBlocks(tuple(hashes[:first]), "10.0.0.4", 5600)

    def close(self) -> None:
        raise NotImplementedError


def output(name: str, *hashes: bytes, is_for_others: bool = True) -> EngineOutput:
    stored = StoredBlocks(hashes) if is_for_others else None
    return EngineOutput(request_id=name, token_ids=[7], finish_reason=FinishReason.LENGTH, stored=stored)


def names(outputs: StepOutputs) -> list[str]:
    return [record.request_id for record in outputs.records]


def test_an_output_waits_for_its_blocks_and_others_pass_it():
    store = Store()
    held = HeldOutputs(store)
    store.saving = {b"b"}
    store.saved = {b"a"}
    assert names(held.exchange(StepOutputs([output("r", b"a", b"b"), output("s", is_for_others=False)]))) == ["s"]
    assert len(held) == 1
    assert names(held.exchange(StepOutputs([output("t", b"a")]))) == ["t"]
    store.saving, store.saved = set(), {b"a", b"b"}
    released = held.exchange(StepOutputs())
    assert names(released) == ["r"]
    assert released.records[0].stored == StoredBlocks((b"a", b"b"), "10.0.0.4", 5600)
    assert released.records[0].token_ids == [7]
    assert not held
    assert names(held.exchange(StepOutputs())) == []


def test_a_block_that_could_not_be_stored_is_not_waited_for():
    store = Store()
    store.saved = {b"a", b"c"}
    (released,) = HeldOutputs(store).exchange(StepOutputs([output("r", b"a", b"b", b"c")])).records
    assert released.stored == StoredBlocks((b"a",), "10.0.0.4", 5600)


def test_a_prompt_without_a_whole_block_does_not_wait():
    (released,) = HeldOutputs(Store()).exchange(StepOutputs([output("r")])).records
    assert released.stored is not None
    assert released.stored.hashes == ()


def test_an_output_that_is_not_wanted_any_more_is_forgotten():
    store = Store()
    held = HeldOutputs(store)
    store.saving = {b"a"}
    held.exchange(StepOutputs([output("r", b"a"), output("s", b"a")]))
    held.forget("r")
    held.forget("unknown")
    assert len(held) == 1
    store.saving = set()
    assert names(held.exchange(StepOutputs())) == ["s"]


def test_outputs_of_one_step_are_not_changed_by_those_held():
    """The plain tokens of a step go with its other outputs."""
    store, plain = Store(), StepOutputs([output("s", is_for_others=False)])
    assert HeldOutputs(store).exchange(plain) is plain
