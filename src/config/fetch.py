"""Bringing a model to this machine: the only part of reading a deployment that uses the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ModelFilesError, ModelNotLocal
from .resolve.facts import hub_cache
from .resolve.model_files import locate

if TYPE_CHECKING:
    from .load import Deployment

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.txt")
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "*.jinja", "chat_template.json", "added_tokens.json")


def fetch_model(deployment: Deployment) -> Path:
    """The model's directory, downloaded first if it is a hub id that is not here; its tokenizer likewise.

    Raises ModelFilesError if the hub does not have it or cannot be reached. A download that was cut goes on where it
    stopped. With load_format dummy no weights are fetched.
    """
    model, cache = deployment.model, hub_cache(deployment)
    patterns = tuple(p for p in MODEL_FILES if deployment.load.load_format != "dummy" or p != "*.safetensors")
    token = model.hf_token.get_secret_value() if model.hf_token else None
    name = deployment.located("model.model")
    folder = _located_or_fetched(name, model.revision, cache, "config.json", patterns, token)
    if model.tokenizer != "auto" and not model.skip_tokenizer_init:
        revision = model.revision if model.tokenizer == model.model else None
        name = deployment.located("model.tokenizer")
        _located_or_fetched(name, revision, cache, "tokenizer.json", TOKENIZER_FILES, token)
    return folder


def _located_or_fetched(
    name: str, revision: str | None, cache: str | None, wanted: str, patterns: tuple[str, ...], token: str | None
) -> Path:
    try:
        return locate(name, revision, cache, wanted)
    except ModelNotLocal:
        pass
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelFilesError(
            f"{name}: not on this machine, and huggingface_hub is not installed; pip install 'stoker[engine]'",
            code="M308",
        ) from None
    try:
        snapshot_download(name, revision=revision, cache_dir=cache, allow_patterns=list(patterns), token=token)
    except Exception as error:  # its own, the HTTP library's, the disk's: each release of the hub has others
        reason = str(error).strip().splitlines()
        raise ModelFilesError(
            f"{name}: cannot be downloaded: {reason[0] if reason else type(error).__name__}", code="M308"
        ) from error
    return locate(name, revision, cache, wanted)
