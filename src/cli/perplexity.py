"""The perplexity of a text under a model, which the engine computes in this process."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config.errors import DeploymentError
from ..config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ..engine.api import SamplingParams
from ..offline.llm import LLM

_WINDOW = 512  # tokens that are computed together; the first of them is not predicted


class TextTooShort(DeploymentError):
    exit_code = EXIT_WRONG_COMMAND_LINE


@dataclass(frozen=True, slots=True)
class Perplexity:
    value: float
    num_tokens: int  # that were predicted


def perplexity(model: str, text: str, max_context: int) -> Perplexity:
    """Perplexity of windows of the text, one after another. Raises TextTooShort, and what LLM raises."""
    window = min(_WINDOW, max_context - 1)
    with LLM(model, max_model_len=window + 1, max_num_seqs=4, enable_prefix_caching=False) as llm:
        token_ids = llm.get_tokenizer().encode(text)
        windows = [token_ids[start : start + window] for start in range(0, len(token_ids), window)]
        windows = [each for each in windows if len(each) > 1]
        if not windows:
            raise TextTooShort("the text for the perplexity has fewer than two tokens")
        results = llm.generate(windows, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    loss, count = 0.0, 0
    for token_ids, result in zip(windows, results, strict=True):
        for token_id, found in zip(token_ids, result.prompt_logprobs or (), strict=True):
            if found is not None:
                loss, count = loss - found[token_id].logprob, count + 1
    return Perplexity(math.exp(loss / count), count)
