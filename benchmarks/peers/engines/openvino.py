"""OpenVINO GenAI's continuous batching with prefix caching."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai
from openvino_genai import ContinuousBatchingPipeline, GenerationConfig, SchedulerConfig

from ...request import Request


class Engine:
    def __init__(
        self, weights: str, *, kv_bytes: int, max_len: int, streams: int, cores: int, kv: str | None = None
    ) -> None:
        scheduler = SchedulerConfig()
        scheduler.cache_size = kv_bytes // 1024**3
        scheduler.max_num_seqs = streams
        scheduler.max_num_batched_tokens = max_len
        scheduler.enable_prefix_caching = True
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": cores, "INFERENCE_PRECISION_HINT": "bf16"}
        if kv is not None:  # the default is 8 bits
            properties["KV_CACHE_PRECISION"] = kv
        self.kv = f"{kv_bytes} in {kv or 'u8'}"
        self.pipeline = ContinuousBatchingPipeline(weights, scheduler, "CPU", properties)

    def info(self) -> dict[str, Any]:
        return {"version": openvino_genai.get_version(), "kv_bytes": self.kv}

    def generate(self, requests: list[Request]) -> list[int]:
        """Serves all requests concurrently; returns the number of tokens of each."""
        prompts = [openvino.Tensor(np.array([request.prompt], dtype=np.int64)) for request in requests]
        configs = [
            GenerationConfig(max_new_tokens=request.output, min_new_tokens=request.output, ignore_eos=True)
            for request in requests
        ]
        return [len(result.m_generation_ids[0]) for result in self.pipeline.generate(prompts, configs)]
