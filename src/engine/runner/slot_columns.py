"""SlotColumn: a value of each running sequence, by slot, that is written when the sequence takes the slot.

A line in SLOT_COLUMNS is all that a column needs: the tables of the host (slot_table.py) and of the device
(cuda/slot_arena.py) have it by its name, and a step finds the value of a row at its slot (`StepInput.seq_slots`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..api import PoolingParams
from ..sampling.sampling_table import SamplingTable
from ..step.plan import NO_ADAPTER, Admission


@dataclass(frozen=True, slots=True)
class SlotColumn:
    name: str
    dtype: type[np.int64] | type[np.int32] | type[np.float32]  # 32 bits on a device
    value: Callable[[Admission, SamplingTable], float]  # at admission; the sampling table has the sequence already
    on_host: bool = True
    on_device: bool = True


def _sampling(
    name: str, dtype: type[np.int32] | type[np.float32], value: Callable[[SamplingTable, int], float]
) -> SlotColumn:
    """A column of the sampler's kernels, by slot. The host samples from the sampling table itself."""
    return SlotColumn(name, dtype, lambda admission, table: value(table, admission.slot), on_host=False)


def _second_text(admission: Admission) -> int:
    task = admission.inputs.task
    second = task.second if isinstance(task, PoolingParams) else None
    return NO_SECOND_TEXT if second is None else second


def _seed_half(table: SamplingTable, slot: int, half: int) -> int:
    return int(table.seed[slot : slot + 1].view(np.int32)[half])


ADAPTER_SLOT = "adapter_slot"
SECOND_TEXT = "second_text"
NO_SECOND_TEXT = 2**31 - 1

# A greedy sequence ignores what changes the choice of a token at random.
SLOT_COLUMNS = (
    # One more than the slot of its adapter, 0 without one.
    SlotColumn(ADAPTER_SLOT, np.int32, lambda admission, _: admission.adapter_slot - NO_ADAPTER, on_device=False),
    # The first token of the second of two texts.
    SlotColumn(SECOND_TEXT, np.int64, lambda admission, _: _second_text(admission)),
    SlotColumn("num_prompt_tokens", np.int64, lambda admission, _: admission.num_prompt_tokens, on_device=False),
    _sampling("temperature", np.float32, lambda table, slot: 0.0 if table.is_greedy[slot] else table.temperature[slot]),
    _sampling("top_p", np.float32, lambda table, slot: 1.0 if table.is_greedy[slot] else table.top_p[slot]),
    _sampling("min_p", np.float32, lambda table, slot: 0.0 if table.is_greedy[slot] else table.min_p[slot]),
    _sampling("repetition", np.float32, lambda table, slot: table.repetition[slot]),
    _sampling("frequency", np.float32, lambda table, slot: table.frequency[slot]),
    _sampling("presence", np.float32, lambda table, slot: table.presence[slot]),
    _sampling("top_k", np.int32, lambda table, slot: 0 if table.is_greedy[slot] else table.top_k[slot]),
    _sampling("seed_low", np.int32, lambda table, slot: _seed_half(table, slot, 0)),
    _sampling("seed_high", np.int32, lambda table, slot: _seed_half(table, slot, 1)),
    _sampling("has_bias", np.int32, lambda table, slot: table.has_bias[slot] or slot in table.ending_ids),
    _sampling("has_penalties", np.int32, lambda table, slot: table.has_penalties[slot]),
)
