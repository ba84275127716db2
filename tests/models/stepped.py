"""A model and its cache, without a runner: steps of rows that a test makes by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from stoker.config.checkpoint.layout import read_tensors
from stoker.engine.kernels import KernelSet, select_kernels
from stoker.engine.layers.step_input import StepInput
from stoker.engine.models.registry import make_model
from stoker.engine.runner.earlier_ids import with_earlier_ids
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.state_cache import StateCache
from stoker.engine.runner.weights import Checkpoint
from stoker.model.cache_groups import model_cache_groups
from stoker.model.spec import ModelSpec

from .engine import resolved

CPU = torch.device("cpu")
BLOCK_SIZE, BLOCKS_EACH = 8, 8
Row = tuple[int, list[int]]  # the number of computed tokens, and the tokens of the step


class SteppedModel:
    def __init__(
        self,
        folder: Path,
        place: Path,
        with_kernels: Callable[[KernelSet], KernelSet] = lambda kernels: kernels,
        num_rows: int = 3,
        blocks_each: int = BLOCKS_EACH,
        with_spec: Callable[[ModelSpec], ModelSpec] = lambda spec: spec,
        **sections: dict[str, Any],
    ) -> None:
        """with_kernels, with_spec: return the kernels and the description to use."""
        settings = resolved(folder, place, **sections)
        files = settings.model_files
        settings = settings.model_copy(update={"model_files": files.model_copy(update={"spec": with_spec(files.spec)})})
        self.spec = settings.model_spec
        self.kernels = with_kernels(select_kernels(CPU, torch.float32, self.spec.head_dims))
        self.model = make_model(settings, self.kernels, CPU)
        stored = read_tensors(folder, settings.model_files.weight_files)
        with torch.inference_mode():
            files = Checkpoint(folder, self.model.tensors(folder, stored))
            for part in self.model.loadables():
                part.load(files)
        self.cache = KVCache(
            model_cache_groups(self.spec, 64, is_hybrid=False),
            *(num_rows * blocks_each, BLOCK_SIZE, self.spec.keeps.tensors),
            torch.float32,
            states=StateCache(self.spec, num_rows, torch.float32),
            tensors_by_layer=[None if keeps is None else keeps.tensors for keeps in self.spec.kept_by_layer],
        )
        self._token_ids = torch.zeros(num_rows, blocks_each * BLOCK_SIZE, dtype=torch.int64)

    def forward(
        self, rows: Sequence[Row], needed: torch.Tensor | None = None, **fields: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute a step. needed: as `rows` of Decoder.forward. fields: of the StepInput."""
        with torch.inference_mode():
            for own, (first, tokens) in zip(self._token_ids, rows, strict=False):
                own[first : first + len(tokens)] = torch.tensor(tokens)
            step = with_earlier_ids(step_of(rows, **fields), self.spec, self._token_ids)
            steps = self.cache.views([step])
            return self.model.forward(self.cache.by_layer(steps), self.cache.layers, needed)

    def logits(self, rows: Sequence[Row], needed: torch.Tensor | None = None, **fields: Any) -> torch.Tensor:
        """[N, vocab_size]"""
        with torch.inference_mode():
            mix = fields.get("mix")
            mix = mix if mix is None or needed is None else mix.of_tokens(needed)
            return self.model.logits(*self.forward(rows, needed, **fields), mix)


def step_of(rows: Sequence[Row], **fields: Any) -> StepInput:
    """The blocks of row r are r * BLOCKS_EACH and those after it."""
    lengths = torch.tensor([len(tokens) for _, tokens in rows])
    positions = torch.cat([torch.arange(first, first + len(tokens)) for first, tokens in rows])
    contexts = torch.tensor([first + len(tokens) for first, tokens in rows], dtype=torch.int32)
    tables = torch.arange(len(rows) * BLOCKS_EACH, dtype=torch.int32).view(len(rows), BLOCKS_EACH)
    row_of = torch.arange(len(rows)).repeat_interleave(lengths)
    starts = torch.zeros(len(rows) + 1, dtype=torch.int32)
    starts[1:] = lengths.cumsum(0)
    made = {
        "token_ids": torch.tensor([token for _, tokens in rows for token in tokens]),
        "positions": positions,
        "slot_mapping": row_of * BLOCKS_EACH * BLOCK_SIZE + positions,
        "query_start": starts,
        "context_lens": contexts,
        "block_tables": tables,
        "max_query_len": int(lengths.max()),
        "max_context_len": int(contexts.max()),
        "seq_slots": torch.arange(len(rows), dtype=torch.int32),
    }
    return StepInput(**{**made, **fields})
