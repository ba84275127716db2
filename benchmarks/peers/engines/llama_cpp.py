"""llama.cpp through the low-level calls of llama-cpp-python, with many sequences in one batch, as in its server.

The context is created before the measurement, just large enough for the workload, with separate space per sequence.
This is faster for llama.cpp than one shared size, where every step attends over the positions of all sequences.
"""

from __future__ import annotations

from typing import Any

import llama_cpp
import numpy as np

from ...request import Request

STEP = 2048  # maximum tokens per call


class Engine:
    def __init__(self, weights: str, *, kv_bytes: int, max_len: int, streams: int, cores: int) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(weights.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot read {weights}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.cores = cores
        self.context: Any = None
        self.batch = llama_cpp.llama_batch_init(STEP, 0, 1)
        self.prepare([Request([0] * 32, 32)])

    def info(self) -> dict[str, Any]:
        return {"version": llama_cpp.__version__, "kv_bytes": "as needed"}

    def prepare(self, requests: list[Request]) -> None:
        """A new and empty context for these requests."""
        if self.context is not None:
            llama_cpp.llama_free(self.context)
        params = llama_cpp.llama_context_default_params()
        longest = max(len(request.prompt) + request.output for request in requests)
        params.n_ctx = -(-longest // 256) * 256 * len(requests)
        params.n_seq_max = len(requests)
        params.n_batch = STEP
        params.n_threads = params.n_threads_batch = self.cores
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot create a context of {params.n_ctx} tokens")

    def generate(self, requests: list[Request]) -> list[int]:
        """Runs all prompts, then steps of one token per unfinished sequence; returns the number of tokens of each."""
        tokens: list[list[int]] = [[] for _ in requests]
        waiting = [
            (token, position, row, position == len(request.prompt) - 1)
            for row, request in enumerate(requests)
            for position, token in enumerate(request.prompt)
        ]
        for start in range(0, len(waiting), STEP):
            self._step(waiting[start : start + STEP], tokens)
        while rows := [row for row, request in enumerate(requests) if len(tokens[row]) < request.output]:
            self._step(
                [(tokens[row][-1], len(requests[row].prompt) + len(tokens[row]) - 1, row, True) for row in rows], tokens
            )
        return [len(each) for each in tokens]

    def _step(self, entries: list[tuple[int, int, int, bool]], tokens: list[list[int]]) -> None:
        """entries: token, position, sequence, whether to sample; sampled tokens are appended to `tokens`."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for index, (token, position, row, is_wanted) in enumerate(entries):
            batch.token[index], batch.pos[index], batch.logits[index] = token, position, is_wanted
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = row
        if code := llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {code}")
        for index, (_, _, row, is_wanted) in enumerate(entries):
            if is_wanted:
                logits = llama_cpp.llama_get_logits_ith(self.context, index)
                tokens[row].append(int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax()))
