"""The real scheduler and the real runner, stepped by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.config import (
    MachineSpec,
    Resolved,
    load_deployment,
    read_machine_spec,
    read_model_files,
    resolve_deployment,
)
from stoker.config.cpu_kernels import keeps_codes
from stoker.config.resolve.gpu import interpreted_gpu
from stoker.engine.api import EngineOutput, EngineRequest, FinishReason, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.core.adapter_slots import AdapterSettings
from stoker.engine.core.block_store import BlockStore
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.loop.adapter_reader import AdapterReader
from stoker.engine.runner.load_runner import load_runner
from stoker.engine.runner.runner import Runner
from stoker.engine.structured.grammars import Grammars

MACHINE = MachineSpec(
    keeps_codes=keeps_codes(),
    system="Linux",
    architecture="x86_64",
    num_cores=1,
    total_memory_bytes=8 << 30,
    available_memory_bytes=8 << 30,
    cpu_flags=(),
)
WITH_GPU = MACHINE.model_copy(
    update={
        "gpu": read_machine_spec().gpu
        if torch.cuda.is_available()
        else interpreted_gpu(MACHINE.total_memory_bytes, MACHINE.available_memory_bytes)
    }
)
GREEDY = SamplingParams(temperature=0, max_tokens=24)


def resolved(folder: Path, place: Path, machine: MachineSpec = MACHINE, **sections: dict[str, Any]) -> Resolved:
    """A small deployment of a checkpoint: blocks of 8 tokens, 11 tokens per step, recurrent states kept at the end of
    each block. Its file is written to `place`."""
    manifest: dict[str, dict[str, Any]] = {
        "model": {"model": str(folder), "dtype": "float32", "max_model_len": 64, "skip_tokenizer_init": True},
        "cache": {"block_size": 8, "num_gpu_blocks_override": 64, "prefix_cache_retention_interval": 8},
        "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 11},
        "device": {"num_threads": 1},
    }
    for section, values in sections.items():
        manifest.setdefault(section, {}).update(values)
    file = place / "deployment.yaml"
    file.write_text(json.dumps({"apiVersion": "stoker/v1", "kind": "Deployment", **manifest}))
    deployment = load_deployment([file], env={})
    return resolve_deployment(deployment, read_model_files(deployment), machine)


def scheduler_of(settings: Resolved, runner: Runner, store: BlockStore | None = None) -> Scheduler:
    """runner: of rank 0, which reads adapters."""
    adapters = runner.loaded.adapters
    own = None if adapters is None else AdapterSettings(adapters.places.num_slots, AdapterReader(adapters, waits=True))
    return Scheduler(scheduler_settings(settings, store, adapters=own))


class Engine:
    def __init__(
        self, settings: Resolved, phase: Callable[[str], None] | None = None, grammars: Grammars | None = None
    ) -> None:
        """grammars: of requests with constraints, whose caller compiles them before."""
        self.runner = load_runner(settings, grammars=grammars, phase=phase)
        self.runner.warm_up()
        self.scheduler = scheduler_of(settings, self.runner)
        self.num_mixed_steps = 0

    def run(self, requests: list[EngineRequest]) -> dict[str, EngineOutput]:
        """All to the end; the outputs of each request joined."""
        for request in requests:
            self.scheduler.add(request)
        done: dict[str, EngineOutput] = {}
        while self.scheduler.has_work:
            plan = self.scheduler.schedule()
            assert plan is not None, "work is left and none of it was scheduled"
            self.num_mixed_steps += len(set(plan.num_tokens.tolist())) > 1
            for output in self.scheduler.finish_step(plan, self.runner.execute(plan)):
                before = done.get(output.request_id)
                done[output.request_id] = output if before is None else joined(before, output)
        ends = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.COMPLETE)
        assert all(output.finish_reason in ends for output in done.values())
        return done

    def generate(
        self, prompts: list[list[int]], sampling: SamplingParams | list[SamplingParams] = GREEDY
    ) -> list[list[int]]:
        """The tokens of each prompt, all in one batch; the i-th gets the i-th sampling."""
        return [output.token_ids for output in self.outputs(prompts, sampling)]

    def outputs(
        self, prompts: list[list[int]], sampling: SamplingParams | list[SamplingParams] = GREEDY
    ) -> list[EngineOutput]:
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        requests = [
            EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, params))
            for index, (prompt, params) in enumerate(zip(prompts, each, strict=True))
        ]
        done = self.run(requests)
        return [done[request.request_id] for request in requests]


def joined(first: EngineOutput, second: EngineOutput) -> EngineOutput:
    return replace(
        second,
        token_ids=first.token_ids + second.token_ids,
        logprobs=None if first.logprobs is None else first.logprobs + (second.logprobs or []),
        prompt_logprobs=first.prompt_logprobs,
        num_cached_tokens=first.num_cached_tokens,
    )


def assert_prompts_scored_alike(found: list[EngineOutput], expected: list[EngineOutput]) -> None:
    """The same tokens, and nearly the same log-probabilities of their prompts."""
    for mine, its in zip(found, expected, strict=True):
        assert mine.token_ids == its.token_ids
        assert (mine.prompt_logprobs is None) == (its.prompt_logprobs is None)
        for entry, other in zip(mine.prompt_logprobs or [], its.prompt_logprobs or [], strict=True):
            if entry is not None and other is not None:
                assert entry.token_ids == other.token_ids
                assert entry.logprobs == pytest.approx(other.logprobs, abs=1e-4)
