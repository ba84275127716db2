"""Adapters that PEFT has made and written, and engines that serve them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
from transformers import PreTrainedModel

from stoker.config.checkpoint.adapter_files import adapter_digest
from stoker.engine.api import AdapterRef, CacheScope, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.core.adapter_slots import AdapterSettings
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.runner.load_runner import load_runner

from .engine import GREEDY, Engine, resolved


@dataclass
class Adapter:
    ref: AdapterRef
    merged: PreTrainedModel  # the model with the adapter in its weights, by PEFT


def adapter(model: PreTrainedModel, folder: Path, seed: int, size: float = 0.5, **config: Any) -> Adapter:
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
    made.save_pretrained(folder)
    return Adapter(AdapterRef(folder.name, adapter_digest(folder), str(folder)), made.merge_and_unload())


class AdapterEngine(Engine):
    def __init__(self, folder: Path, place: Path, lora: dict[str, Any] | None = None, **sections: Any) -> None:
        own_lora = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 64, "max_cpu_loras": 4, **(lora or {})}
        settings = resolved(folder, place, **{**sections, "lora": own_lora})
        self.runner = load_runner(settings)
        self.runner.warm_up()
        adapters = self.runner.loaded.adapters
        assert adapters is not None
        own_settings = AdapterSettings(adapters.places.num_slots, adapters.load)
        self.scheduler = Scheduler(scheduler_settings(settings, adapters=own_settings))
        self.num_mixed_steps = 0

    def answers(
        self,
        prompts: list[list[int]],
        refs: list[AdapterRef | None],
        sampling: SamplingParams = GREEDY,
    ) -> list[list[int]]:
        """The tokens of each prompt with its adapter, all in one batch."""
        requests = [
            EngineRequest(request_id=str(index), inputs=inputs_of(prompt, ref, sampling))
            for index, (prompt, ref) in enumerate(zip(prompts, refs, strict=True))
        ]
        done = self.run(requests)
        return [done[request.request_id].token_ids for request in requests]


def inputs_of(prompt: list[int], ref: AdapterRef | None, sampling: SamplingParams = GREEDY) -> RequestInputs:
    return RequestInputs(prompt, sampling, CacheScope(adapter="" if ref is None else ref.digest), ref)
