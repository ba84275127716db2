"""Adapters that PEFT has made and written, and requests that name them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
from transformers import PreTrainedModel

from stoker.config import Resolved
from stoker.config.checkpoint.adapter_files import adapter_digest
from stoker.engine.api import AdapterRef, CacheScope, EngineOutput, EngineRequest, RequestInputs, SamplingParams

from .engine import GREEDY, Engine, resolved


@dataclass
class Adapter:
    ref: AdapterRef
    merged: PreTrainedModel  # the model with the adapter in its weights, by PEFT
    unmerged: PreTrainedModel  # the model that computes it beside them


def adapter(
    model: PreTrainedModel,
    folder: Path,
    seed: int,
    size: float = 2.0,
    save_embedding_layers: bool | str = "auto",
    **config: Any,
) -> Adapter:
    """Random matrices on top of a model. size: of the elements of B."""
    defaults: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    made = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(**{**defaults, **config}))
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_A" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=random) / parameter.shape[-1] ** 0.5)
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=random) * size / parameter.shape[-1])
            if name.endswith("lora_B.default.bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=random) * size)
            if parameter.requires_grad and not name.rpartition("lora_")[1]:  # biases, rows of tokens, whole modules
                deviation = 0.3 * parameter.std() + 0.02 if parameter.numel() > 1 else 0.1
                parameter += torch.randn(parameter.shape, generator=random) * deviation
            if "lora_embedding_" in name:
                width = parameter.shape[-1] if name.endswith("B.default") else 4.0
                parameter.copy_(torch.randn(parameter.shape, generator=random) / width)
            if "lora_magnitude_vector" in name:
                parameter *= 1 + 0.3 * torch.randn(parameter.shape, generator=random)
    made.save_pretrained(folder, save_embedding_layers=save_embedding_layers)
    ref = AdapterRef(folder.name, adapter_digest(folder), str(folder))
    if config.get("ensure_weight_tying"):  # PEFT cannot copy it
        return Adapter(ref, made.get_base_model(), made.get_base_model())
    unmerged = copy.deepcopy(made).get_base_model()
    return Adapter(ref, made.merge_and_unload(), unmerged)


def with_lora(folder: Path, place: Path, lora: dict[str, Any] | None = None, **sections: Any) -> Resolved:
    """A deployment that serves adapters. lora: options that differ."""
    own = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 64, "max_cpu_loras": 4, **(lora or {})}
    return resolved(folder, place, **{**sections, "lora": own})


def inputs_of(prompt: list[int], adapter: Adapter | None, sampling: SamplingParams = GREEDY) -> RequestInputs:
    ref = None if adapter is None else adapter.ref
    return RequestInputs(prompt, sampling, CacheScope(adapter="" if ref is None else ref.digest), ref)


def outputs(
    engine: Engine,
    prompts: Sequence[list[int]],
    adapters: Sequence[Adapter | None],
    sampling: SamplingParams = GREEDY,
) -> list[EngineOutput]:
    """The output for each prompt with its adapter, all in one batch."""
    requests = [
        EngineRequest(request_id=str(index), inputs=inputs_of(prompt, own, sampling))
        for index, (prompt, own) in enumerate(zip(prompts, adapters, strict=True))
    ]
    done = engine.run(requests)
    return [done[request.request_id] for request in requests]


def answers(engine: Engine, prompts: Sequence[list[int]], adapters: Sequence[Adapter | None]) -> list[list[int]]:
    return [output.token_ids for output in outputs(engine, prompts, adapters)]
