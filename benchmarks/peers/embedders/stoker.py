"""Stoker's offline interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker import LLM, __version__


class Engine:
    version = __version__

    def __init__(self, folder: str, *, cores: int, cache: str, **options: Any) -> None:
        self.llm = LLM(folder, enable_prefix_caching=False, **options)  # the same texts come in each round

    def embed(self, texts: list[str]) -> Sequence[Any]:
        return [each.outputs.embedding for each in self.llm.embed(texts, use_tqdm=False)]
