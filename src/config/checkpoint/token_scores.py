"""Rerankers that are decoders: a score from the logits of some tokens, of files that have no layer for it.

Facts about known models say so (model_facts/facts.yaml), or keys of config.json that other engines read:
`classifier_from_token` lists tokens, `method` says what is made of their logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...model.config_json import ConfigJson, ModelConfigError, shown
from ...model.pooling import OUTPUT_LAYER, PoolDense, PoolHead
from ...model.spec import ModelSpec
from ..errors import ModelFilesError
from ..model_facts import RerankerFact
from .special_tokens import token_ids

_DIFFERENCE, _PLAIN = "from_2_way_softmax", "no_post_processing"


def with_token_scores(spec: ModelSpec, config: ConfigJson, fact: RerankerFact | None, folder: Path) -> ModelSpec:
    """The model with the head that its name or config.json implies.

    folder: has the tokenizer. Raises ModelConfigError, ModelFilesError.
    """
    if spec.pooling is None:
        return spec
    if (listed := config.get("classifier_from_token")) is not None:
        return _of_config(spec, config, listed, folder)
    if fact is None:
        return spec
    changes: dict[str, Any] = {"pair": fact.prompt, "instruction": fact.instruction}
    if spec.generates:
        wanted, subtracted = token_ids(folder, (fact.wanted, fact.subtracted))
        return _scored(spec, ((wanted, subtracted),), changes)
    if spec.pooling.head("classify") is None:
        return spec
    return spec.model_copy(update={"pooling": spec.pooling.model_copy(update=changes)})


def _of_config(spec: ModelSpec, config: ConfigJson, listed: Any, folder: Path) -> ModelSpec:
    if not isinstance(listed, list) or not listed or not all(isinstance(token, str) for token in listed):
        raise ModelConfigError(f"`classifier_from_token` is {shown(listed)}; it must be a list of tokens")
    method = config.get("method") or (_DIFFERENCE if config.flag("is_original_qwen3_reranker") else _PLAIN)
    ids = token_ids(folder, tuple(listed))
    spec = spec.model_copy(
        update={"has_output": True, "is_tied": config.flag("tie_word_embeddings"), "has_output_bias": False}
    )
    if method == _PLAIN:
        return _scored(spec, tuple((token, None) for token in ids), {})
    if method != _DIFFERENCE or len(ids) != 2:
        raise ModelConfigError(
            f"`method` is {shown(method)} with {len(ids)} tokens; supported: {_DIFFERENCE} with two, {_PLAIN}", "M304"
        )
    return _scored(spec, ((ids[1], ids[0]),), {})


def _scored(spec: ModelSpec, rows: tuple[tuple[int, int | None], ...], changes: dict[str, Any]) -> ModelSpec:
    """The model with a score of each of these pairs of rows of its output layer."""
    assert spec.pooling is not None
    if outside := [token for pair in rows for token in pair if token is not None and token >= spec.vocab_size]:
        raise ModelFilesError(f"token {outside[0]} is not in the vocabulary of {spec.vocab_size} tokens", code="M306")
    layer = PoolDense(name=OUTPUT_LAYER, inputs=spec.hidden_size, outputs=len(rows), has_bias=False, rows=rows)
    activation = "sigmoid" if len(rows) == 1 else "softmax"
    head = PoolHead(task="classify", after=(layer,), activation=activation, width=len(rows))
    labels = tuple(f"LABEL_{index}" for index in range(len(rows)))
    pooling = spec.pooling.model_copy(update={"heads": (head,), "labels": labels, **changes})
    return spec.model_copy(update={"pooling": pooling, "generates": False})
