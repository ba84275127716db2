"""vLLM's offline interface on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm import LLM, __version__


class Engine:
    version = __version__

    def __init__(self, folder: str, *, cores: int, cache: str, **options: Any) -> None:
        self.llm = LLM(folder, runner="pooling", enable_prefix_caching=False, **options)

    def embed(self, texts: list[str]) -> Sequence[Any]:
        return [each.outputs.embedding for each in self.llm.embed(texts, use_tqdm=False)]
