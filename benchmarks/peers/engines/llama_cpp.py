"""llama.cpp through the low-level calls of llama-cpp-python, as its server uses them: many sequences in one batch.

Its context is made before the clock runs, just large enough for the job, each sequence with a share of its own: kinder
to it than one size for all, which would make every step attend over the places of all sequences.
"""

from __future__ import annotations

from typing import Any

import llama_cpp
import numpy as np

from ...request import Request

STEP = 2048  # tokens of one call


class Engine:
    def __init__(self, weights: str, *, kv_bytes: int, max_len: int, streams: int, cores: int) -> None:
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(weights.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not read {weights}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.cores = cores
        self.context: Any = None
        self.batch = llama_cpp.llama_batch_init(STEP, 0, 1)
        self.prepare([Request([0] * 32, 32)])

    def facts(self) -> dict[str, Any]:
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
            raise RuntimeError(f"llama.cpp gave no context of {params.n_ctx} tokens")

    def generate(self, requests: list[Request]) -> list[int]:
        """All prompts, then a token of every unfinished sequence per step; the number of tokens each one got."""
        tokens: list[list[int]] = [[] for _ in requests]
        waiting = [
            (token, place, row, place == len(request.prompt) - 1)
            for row, request in enumerate(requests)
            for place, token in enumerate(request.prompt)
        ]
        for start in range(0, len(waiting), STEP):
            self._step(waiting[start : start + STEP], tokens)
        while rows := [row for row, request in enumerate(requests) if len(tokens[row]) < request.output]:
            self._step(
                [(tokens[row][-1], len(requests[row].prompt) + len(tokens[row]) - 1, row, True) for row in rows], tokens
            )
        return [len(each) for each in tokens]

    def _step(self, entries: list[tuple[int, int, int, bool]], tokens: list[list[int]]) -> None:
        """entries: token, place in its sequence, sequence, whether the next token is wanted; that goes to `tokens`."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for index, (token, place, row, is_wanted) in enumerate(entries):
            batch.token[index], batch.pos[index], batch.logits[index] = token, place, is_wanted
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = row
        if code := llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode gave {code}")
        for index, (_, _, row, is_wanted) in enumerate(entries):
            if is_wanted:
                logits = llama_cpp.llama_get_logits_ith(self.context, index)
                tokens[row].append(int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax()))
