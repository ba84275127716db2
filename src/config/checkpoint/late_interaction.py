"""Models whose vectors of tokens are compared (ColBERT): what marks queries and documents, and what fills queries.

The keys are those of PyLate, in config_sentence_transformers.json, or of sentence-transformers 6, in the settings of
the transformer. Source of the method: Khattab and Zaharia, arXiv:2004.12832.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...model.config_json import shown
from ..errors import ModelFilesError
from .model_files import read_json_if_any
from .special_tokens import content_of, known_token_ids, token_ids

_CLASSES = "ColBERT", "MultiVectorEncoder"
_KEYS = ("query_prefix", "document_prefix", "query_length", "document_length", "do_query_expansion", "skiplist_words")
_USUAL_LENGTH = 32  # tokens of a query that is filled


def late_settings(
    folder: Path, path: Path, values: Mapping[str, Any], transformer: Mapping[str, Any], masks: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Fields of Pooling; none of a model of another kind.

    Args:
        path, values: of the settings of the model.
        transformer: settings of its first module.
        masks: of MultiVectorMask; None without this module.

    Raises ModelFilesError for what is not computed.
    """
    is_old = any(key in values for key in _KEYS)
    if values.get("model_type") not in _CLASSES and not is_old and masks is None:
        return {}
    source = values if is_old else transformer
    prompts = values.get("prompts") or {}
    found: dict[str, Any] = {
        "query_marker": values.get("query_prefix", prompts.get("query")),
        "document_marker": values.get("document_prefix", prompts.get("document")),
    }
    for key in ("query_prefix", "document_prefix"):
        if not isinstance(values.get(key, ""), str):
            raise ModelFilesError(f"{path}: `{key}` is {shown(values[key])}; it must be a text", code="M306")
    for key in ("query_length", "document_length"):
        length = source.get(key)
        if length is not None and (type(length) is not int or length < 1):
            raise ModelFilesError(f"{path}: `{key}` is {shown(length)}; it must be a number of tokens", code="M306")
    if source.get("document_length") is not None:
        found["max_length"] = source["document_length"]
    expansion = _expansion(source, is_old=is_old)
    if expansion is not None:
        found |= _filled(folder, path, expansion)
    words = (masks or {}).get("skiplist_words", [])
    if is_old:
        words = values.get("skiplist_words", list(string.punctuation))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ModelFilesError(f"{path}: `skiplist_words` must be a list of tokens", code="M306")
    if words:
        found["skipped_tokens"] = known_token_ids(folder, tuple(words))
    return found


def _expansion(source: Mapping[str, Any], *, is_old: bool) -> Mapping[str, Any] | None:
    """How queries are filled; None if they are not."""
    if not is_old:
        found = source.get("query_expansion")
        return found if isinstance(found, dict) else None
    if source.get("do_query_expansion") is False:
        return None
    attend = source.get("attend_to_expansion_tokens", source.get("attend_to_mask_tokens"))
    length = source.get("query_length") or _USUAL_LENGTH
    return {"strategy": "fixed", "attend": bool(attend), "length": length}


def _filled(folder: Path, path: Path, expansion: Mapping[str, Any]) -> dict[str, Any]:
    if expansion.get("strategy", "fixed") != "fixed" or not expansion.get("attend", False):
        raise ModelFilesError(
            f"{path}: queries are filled with tokens that others do not see (`attend_to_expansion_tokens`), which is "
            "not supported",
            code="M304",
        )
    length = expansion.get("length")
    if type(length) is not int or length < 1:
        raise ModelFilesError(f"{path}: queries are filled up to {shown(length)} tokens", code="M306")
    names = read_json_if_any(folder / "special_tokens_map.json") | read_json_if_any(folder / "tokenizer_config.json")
    mask = content_of(names.get("mask_token"))
    if mask is None:
        raise ModelFilesError(
            f"{path}: queries are filled with the mask token, and the tokenizer has none", code="M307"
        )
    return {"query_length": length, "query_filler": token_ids(folder, (mask,))[0]}
