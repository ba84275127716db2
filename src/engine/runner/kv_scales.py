"""Factors of the keys and values of each layer in an fp8 cache: a checkpoint's own, or computed when the model loads.

A number in fp8 has four significant bits, of whatever size between 2^-6 and 448. So a factor does not make usual keys
and values more exact: it keeps large ones from being clipped, and small ones from being lost.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ...config import ModelFilesError, Resolved
from ...config.checkpoint.kv_scales import kv_scale_tensors
from ...config.checkpoint.layout import read_tensors
from ..layers.attention import Attention
from ..layers.step_input import StepInput
from ..models.model import Model
from .earlier_ids import with_earlier_ids
from .kv_cache import KVCache
from .state_cache import StateCache
from .weights import Checkpoint

logger = logging.getLogger(__name__)

FP8_MAX = 448.0
_TOKENS = 512  # of the prompt from which factors are computed
_MARGIN = 2.0  # how much larger keys and values of other prompts may be without being clipped


@dataclass(frozen=True, slots=True)
class KVScales:
    keys: float
    values: float


def set_kv_scales(model: Model, resolved: Resolved, device: torch.device, states: StateCache | None) -> None:
    """Gives each attention layer its factors, if the cache is in fp8 and there are any.

    states: recurrent states of the model, of which one is overwritten; None if it has none.
    Raises ModelFilesError for a factor in the checkpoint that is none.
    """
    if resolved.cache.kv_cache_dtype != "fp8":
        return
    layers = model.attention_layers()
    if resolved.cache.calculate_kv_scales:
        found, source = _calculated(model, layers, resolved, device, states), "computed"
    else:
        found, source = _of_checkpoint(resolved), "of the checkpoint"
    sources = resolved.model_spec.keys_of
    used = 0
    for index, layer in layers.items():
        source_layer = sources[index]
        if (scales := found.get(index if source_layer is None else source_layer)) is not None:
            layer.set_kv_scales(scales.keys, scales.values)
            used += 1
    if found:
        logger.info("scales of the fp8 cache: %s, for %d of %d attention layers", source, used, len(layers))


def _of_checkpoint(resolved: Resolved) -> dict[int, KVScales]:
    files = resolved.model_files
    if resolved.load.load_format == "dummy" or files.weight_format == "gguf":
        return {}
    folder = Path(resolved.model_path)
    stored = read_tensors(folder, files.weight_files, resolved.load.pt_load_map_location)
    checkpoint = Checkpoint(folder, stored)

    def factor(name: str) -> float:
        numbers = torch.empty(stored[name].shape)
        checkpoint.read(name, numbers)
        if not numbers.numel() or not bool((numbers > 0).all()):
            raise ModelFilesError(
                f"{stored[name].file}: tensor `{name}`, a factor of the KV cache, must be greater than 0", code="M303"
            )
        return float(numbers.max())  # of several heads: with the largest none is clipped

    names = kv_scale_tensors(stored)
    return {layer: KVScales(factor(each.keys), factor(each.values)) for layer, each in names.items()}


def _calculated(
    model: Model,
    layers: Mapping[int, Attention],
    resolved: Resolved,
    device: torch.device,
    states: StateCache | None,
) -> dict[int, KVScales]:
    """Scales calculated from the largest key and value of a prompt of random tokens, kept in the model's dtype."""
    block_size, groups, spec = resolved.cache.block_size, resolved.cache_groups, resolved.model_spec
    num_tokens = min(_TOKENS, resolved.model.max_model_len, resolved.scheduler.max_num_batched_tokens)
    num_blocks = -(-num_tokens // block_size)
    cache = KVCache(
        groups,
        num_blocks * groups.num_groups,
        block_size,
        spec.keeps.tensors,
        getattr(torch, resolved.model.dtype),
        zeros=partial(torch.zeros, device=device),
        states=states,
        tensors_by_layer=[None if keeps is None else keeps.tensors for keeps in spec.kept_by_layer],
    )
    generator = torch.Generator().manual_seed(resolved.model.seed)
    token_ids = torch.randint(spec.vocab_size, (num_tokens,), generator=generator)
    steps = [
        with_earlier_ids(
            _step(token_ids, range(num_blocks * group, num_blocks * (group + 1)), block_size, device),
            spec,
            token_ids[None].to(device),
        )
        for group in range(groups.num_groups)
    ]
    by_layer = cache.by_layer(cache.views(steps))
    with torch.inference_mode():
        model.forward(by_layer, cache.layers, torch.tensor([num_tokens - 1], device=device))
        found = {}
        for index, layer in layers.items():
            if layer.shape.num_kv_heads:
                slots = by_layer[index].slot_mapping
                keys, values = (
                    _factor(tensor[slots // block_size, :, slots % block_size]) for tensor in cache.layers[index][:2]
                )
                found[index] = KVScales(keys, values)
    return found


def _step(token_ids: torch.Tensor, blocks: range, block_size: int, device: torch.device) -> StepInput:
    count = len(token_ids)
    positions = torch.arange(count, device=device)
    table = torch.tensor(blocks, dtype=torch.int32, device=device)
    return StepInput(
        token_ids=token_ids.to(device),
        positions=positions,
        slot_mapping=table[positions // block_size].long() * block_size + positions % block_size,
        query_start=torch.tensor([0, count], dtype=torch.int32, device=device),
        context_lens=torch.tensor([count], dtype=torch.int32, device=device),
        block_tables=table[None],
        max_query_len=count,
        max_context_len=count,
        seq_slots=torch.zeros(1, dtype=torch.int32, device=device),
    )


def _factor(heads: torch.Tensor) -> float:
    largest = float(heads.abs().amax())
    return largest * _MARGIN / FP8_MAX if math.isfinite(largest) and largest > 0 else 1.0
