"""Location of the model's tokenizer, and the token ids that end an answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.config_json import ConfigJson, shown
from ..checkpoint.chat_templates import TEKKEN_JSON
from ..checkpoint.lfs_pointer import refuse_lfs_pointer
from ..checkpoint.model_files import is_gguf, is_hub_id, locate, read_json_if_any
from ..checkpoint.special_tokens import end_token_id
from ..errors import ModelFilesError
from .model_location import hub_cache, own_revision, shown_at

if TYPE_CHECKING:
    from ..deployment import Deployment

TOKENIZER_JSON = "tokenizer.json"
OLDER_VOCABULARIES = ("vocab.json", "tokenizer.model", "spiece.model", "vocab.txt")
# Files of which one is needed, by `model.tokenizer_mode`.
VOCABULARIES = {"slow": OLDER_VOCABULARIES, "mistral": (TEKKEN_JSON,)}


def tokenizer_revision(deployment: Deployment) -> str | None:
    model = deployment.model
    name = model.model if model.tokenizer == "auto" else model.tokenizer
    return model.tokenizer_revision or own_revision(deployment, name)


def tokenizer_source(deployment: Deployment) -> str | None:
    """Name of the repository or directory that a tokenizer is looked for in; None if the model's directory has it."""
    model = deployment.model
    if model.skip_tokenizer_init:
        return None
    if model.tokenizer != "auto":
        return deployment.located("model.tokenizer")
    name = deployment.located("model.model")
    return name if model.tokenizer_revision is not None and is_hub_id(name) else None


def tokenizer_path_of(deployment: Deployment, folder: Path, config: Path) -> str | None:
    """The tokenizer's directory, or the GGUF file that describes the model; None with `model.skip_tokenizer_init`.

    Raises ModelFilesError for one that is missing or is code, ModelNotLocal for one that must be downloaded.
    """
    model = deployment.model
    if model.skip_tokenizer_init:
        return None
    if is_gguf(config) and model.tokenizer == "auto":
        if model.tokenizer_mode != "auto":
            raise ModelFilesError(
                f"{config}: the vocabulary in a GGUF file is read with `model.tokenizer_mode: auto` only; name a "
                "directory with another with `model.tokenizer`",
                code="M307",
            )
        return str(config)
    wanted = VOCABULARIES.get(model.tokenizer_mode, (TOKENIZER_JSON, TEKKEN_JSON, *OLDER_VOCABULARIES))
    if (name := tokenizer_source(deployment)) is not None:
        with shown_at("model.tokenizer", model.tokenizer != "auto"):
            folder = locate(name, tokenizer_revision(deployment), hub_cache(deployment), *wanted)
    elif not any(os.path.lexists(folder / file) for file in wanted):
        raise ModelFilesError(
            f"{folder}: holds no {wanted[0]}; name a tokenizer with `model.tokenizer`, or serve token ids only "
            "with `model.skip_tokenizer_init: true`",
            code="M307",
        )
    for file in (*wanted, "tokenizer_config.json"):
        refuse_lfs_pointer(folder / file)
    path = folder / "tokenizer_config.json"
    named = read_json_if_any(path).get("auto_map")
    if named and (not isinstance(named, Mapping) or named.get("AutoTokenizer")):
        raise ModelFilesError(
            f"{path}: `auto_map` says that this tokenizer is code from its repository, which this "
            "build never runs, whatever `model.trust_remote_code` says; name another tokenizer with "
            "`model.tokenizer`: if the tokenizer.json alone is right, a directory that has only this file",
            code="M304",
        )
    return str(folder)


def eos_ids(config_path: Path, config_json: ConfigJson, generation: Path, vocab_size: int) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's first, which chat models extend, then config.json's.

    Some are outside of the vocabulary, as in models whose embedding was made smaller.
    """
    ids: dict[int, None] = {}  # ordered
    for file, value in (
        (generation, None if is_gguf(config_path) else read_json_if_any(generation).get("eos_token_id")),
        (config_path, config_json.get("eos_token_id")),
    ):
        for token in value if isinstance(value, list) else [value]:
            if token is None:
                continue
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                said = f"`eos_token_id` holds {shown(token)}; the vocabulary has {vocab_size} tokens"
                raise ModelFilesError(f"{file}: {said}", code="M306")
            ids[token] = None
    return tuple(ids)


def with_end_of_tokenizer(ids: tuple[int, ...], tokenizer: str | None, vocab_size: int) -> tuple[int, ...]:
    """Append the tokenizer's own end token, which is all that many fine-tunes change."""
    if tokenizer is None or not os.path.isdir(tokenizer):
        return ids
    token = end_token_id(Path(tokenizer))
    return ids if token is None or token in ids or not 0 <= token < vocab_size else (*ids, token)
