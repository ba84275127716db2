"""HeldOutputs: last outputs of requests that are for other engines, held until these can read the blocks.

A block that could not be stored is not waited for: the output then names the blocks before it.
"""

from __future__ import annotations

from dataclasses import replace

from ..api import EngineOutput
from ..core.block_store import BlockStore
from ..step import StepOutputs


class HeldOutputs:
    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._held: list[EngineOutput] = []

    def __len__(self) -> int:
        return len(self._held)

    def forget(self, request_id: str) -> None:
        self._held = [output for output in self._held if output.request_id != request_id]

    def exchange(self, outputs: StepOutputs) -> StepOutputs:
        """The outputs of a step without those that must wait, and with those that need not wait any more."""
        new = [output for output in outputs.records if output.stored is not None]
        if not new and not self._held:
            return outputs
        records = [output for output in outputs.records if output.stored is None]
        held: list[EngineOutput] = []
        for output in self._held + new:
            (held if self._must_wait(output) else records).append(output)
        self._held = held
        return replace(outputs, records=records)

    def _must_wait(self, output: EngineOutput) -> bool:
        assert output.stored is not None
        hashes = output.stored.hashes
        if any(map(self._store.is_saving, hashes)):
            return True
        output.stored = self._store.stored(hashes)
        return False
