"""Downloads a model: the only part of loading a deployment that uses the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .checkpoint.layout import FILES, has_files
from .checkpoint.model_files import is_hub_id, locate
from .checkpoint.repository_code import PATTERN as CODE_PATTERN
from .errors import ModelFilesError, ModelNotLocal
from .resolve.model_files import (
    OLDER_VOCABULARIES,
    TOKENIZER_JSON,
    code_folder,
    config_folder,
    hub_cache,
    model_folder,
    own_revision,
    tokenizer_revision,
    tokenizer_source,
)

if TYPE_CHECKING:
    from .deployment import Deployment

MODEL_FILES = ("*.json", "*.jinja", "tokenizer*", "*.txt", "*.model")
TOKENIZER_FILES = (
    *("tokenizer*", "special_tokens_map.json", "*.jinja", "chat_template.json", "added_tokens.json", "merges.txt"),
    *OLDER_VOCABULARIES,
)
_KINDS = {"auto": ("safetensors", "pt"), "npcache": ("pt",), "sharded_state": ("safetensors",), "dummy": ()}


def fetch_model(deployment: Deployment) -> Path:
    """The model's directory, downloaded first if it is a hub id that is not here; its tokenizer likewise.

    Raises ModelFilesError if the hub does not have it or cannot be reached. A download that was cut goes on where it
    stopped. With load_format dummy no weights are fetched; with auto, torch's files only if there are no safetensors.
    """
    model, cache = deployment.model, hub_cache(deployment)
    load_format = deployment.load.load_format
    kinds = _KINDS.get(load_format, (load_format,))
    name = deployment.located("model.model")
    first = FILES[kinds[0]] if kinds else ()
    try:
        folder = model_folder(deployment, cache)
    except ModelNotLocal:
        _download(deployment, name, model.revision, (*MODEL_FILES, *first))
        folder = model_folder(deployment, cache)
    if is_hub_id(name) and not any(has_files(folder, kind, deployment.load.ignore_patterns) for kind in kinds):
        for kind in kinds:
            _download(deployment, name, model.revision, (*MODEL_FILES, *FILES[kind]))
            if has_files(folder, kind, deployment.load.ignore_patterns):
                break
    if model.trust_remote_code:
        try:
            code_folder(deployment, folder)
        except ModelNotLocal:
            _download(deployment, name, model.code_revision, (CODE_PATTERN,))
    try:
        config_folder(deployment, folder, cache)
    except ModelNotLocal as missing:
        _download(deployment, missing.repository, own_revision(deployment, model.hf_config_path), ("config.json",))
    if (source := tokenizer_source(deployment)) is not None:
        revision = tokenizer_revision(deployment)
        try:
            locate(source, revision, cache, TOKENIZER_JSON, *OLDER_VOCABULARIES)
        except ModelNotLocal:
            _download(deployment, source, revision, TOKENIZER_FILES)
            locate(source, revision, cache, TOKENIZER_JSON, *OLDER_VOCABULARIES)
    return folder


def _download(deployment: Deployment, name: str, revision: str | None, patterns: tuple[str, ...]) -> None:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelFilesError(
            f"{name}: not on this machine, and huggingface_hub is not installed; pip install 'stoker[engine]'",
            code="M308",
        ) from None
    try:
        snapshot_download(
            name,
            revision=revision,
            cache_dir=hub_cache(deployment),
            allow_patterns=list(patterns),
            ignore_patterns=list(deployment.load.ignore_patterns),
            token=_token(deployment),
        )
    except Exception as error:  # of the hub client, the HTTP library or the disk: they differ between releases
        reason = str(error).strip().splitlines()
        raise ModelFilesError(
            f"{name}: cannot be downloaded: {reason[0] if reason else type(error).__name__}", code="M308"
        ) from error


def _token(deployment: Deployment) -> str | bool | None:
    """The token for the hub; True for the token of its login, which must exist."""
    secret = deployment.model.hf_token
    if secret is None:
        return None
    token = secret.get_secret_value()
    return True if token == "true" else token
