"""Downloads a model, its adapters and what drafts for it: the only part of loading that uses the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .adapter_modules import modules_of, modules_problem
from .checkpoint.adapter_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from .checkpoint.chat_templates import TEKKEN_JSON
from .checkpoint.gguf_files import NO_MODELS, patterns
from .checkpoint.layout import FILES, KINDS, OF_OTHERS, Kind, has_files
from .checkpoint.model_files import PARAMS_JSON, is_hub_id, locate, split_quantisation
from .checkpoint.repository_code import PATTERN as CODE_PATTERN
from .download import OnProgress, download
from .errors import ModelFilesError, ModelNotLocal
from .resolve.adapter_files import located
from .resolve.model_location import code_folder, config_files, config_path, hub_cache, model_folder, own_revision
from .resolve.model_tokenizer import OLDER_VOCABULARIES, TOKENIZER_JSON, tokenizer_revision, tokenizer_source

if TYPE_CHECKING:
    from .deployment import Deployment

MODEL_FILES = ("*.json", "*.jinja", "tokenizer*", "*.txt", "*.model")
TOKENIZER_FILES = (
    *(
        "tokenizer*",
        TEKKEN_JSON,
        "special_tokens_map.json",
        "*.jinja",
        "chat_template.json",
        "added_tokens.json",
        "merges.txt",
    ),
    *OLDER_VOCABULARIES,
)
_VOCABULARIES = (TOKENIZER_JSON, TEKKEN_JSON, *OLDER_VOCABULARIES)


def fetch_model(deployment: Deployment, on_progress: OnProgress | None = None) -> Path:
    """The model's directory, downloaded first if it is a hub id that is not here; its tokenizer, what drafts for it
    and its adapters likewise.

    A download that was stopped goes on after the last complete file. With load_format dummy no weights are fetched;
    with auto, torch's files only if there are no safetensors.

    Args:
        on_progress: called with a line about the transfer; None shows the bars of huggingface_hub.

    Raises ModelFilesError if the hub does not have it or cannot be reached, or if files arrive damaged.
    """
    model, cache = deployment.model, hub_cache(deployment)
    name = deployment.located("model.model")
    repository, quantisation = split_quantisation(name)
    try:
        folder = model_folder(deployment, cache)
    except ModelNotLocal:
        if quantisation is not None:
            _download(deployment, repository, model.revision, patterns(quantisation), on_progress, NO_MODELS)
            folder = _downloaded(deployment, repository, quantisation)
        else:
            kinds = _kinds(deployment, config_files(deployment)[0])
            _download_weights(deployment, name, kinds[0] if kinds else None, on_progress)
            folder = model_folder(deployment, cache)
    if model.trust_remote_code:
        try:
            code_folder(deployment, folder)
        except ModelNotLocal:
            _download(deployment, name, model.code_revision, (CODE_PATTERN,), on_progress)
    try:
        config_path(deployment, folder, cache)
    except ModelNotLocal as missing:
        revision = own_revision(deployment, model.hf_config_path)
        _download(deployment, missing.repository, revision, config_files(deployment), on_progress)
    if is_hub_id(name) and quantisation is None:
        _fetch_weights(deployment, name, folder, on_progress)
    if (source := tokenizer_source(deployment)) is not None:
        revision = tokenizer_revision(deployment)
        try:
            locate(source, revision, cache, *_VOCABULARIES)
        except ModelNotLocal:
            _download(deployment, source, revision, TOKENIZER_FILES, on_progress)
            locate(source, revision, cache, *_VOCABULARIES)
    if (drafter := deployment.config.speculative.model) is not None:
        try:
            locate(deployment.located("speculative.model"), None, cache)
        except ModelNotLocal:
            wanted = MODEL_FILES if deployment.load.load_format == "dummy" else (*MODEL_FILES, *FILES["safetensors"])
            _download(deployment, drafter, None, wanted, on_progress)
    _fetch_adapters(deployment, on_progress)
    return folder


def _fetch_adapters(deployment: Deployment, on_progress: OnProgress | None) -> None:
    """What is wrong with an adapter is reported when it is read."""
    if not deployment.config.lora.enable_lora or modules_problem(deployment.config):
        return
    for module in modules_of(deployment.config):
        try:
            located(deployment, module)
        except ModelNotLocal as missing:
            _download(deployment, missing.repository, None, (ADAPTER_CONFIG, ADAPTER_WEIGHTS), on_progress)
        except ModelFilesError:
            continue


def _downloaded(deployment: Deployment, repository: str, quantisation: str) -> Path:
    """The directory of a repository after a download. Raises ModelFilesError if it has no file of the quantisation."""
    try:
        return model_folder(deployment, hub_cache(deployment))
    except ModelNotLocal:
        raise ModelFilesError(f"{repository}: the repository has no GGUF file of {quantisation}", code="M301") from None


def _fetch_weights(deployment: Deployment, name: str, folder: Path, on_progress: OnProgress | None) -> None:
    """Downloads them if the model's directory has none of the kinds that its configuration file describes."""
    ignored = deployment.load.ignore_patterns
    path = config_path(deployment, folder, hub_cache(deployment))
    kinds = _kinds(deployment, path.name)
    if any(has_files(folder, kind, ignored) for kind in kinds):
        return
    for kind in kinds:
        _download_weights(deployment, name, kind, on_progress)
        if has_files(folder, kind, ignored):
            break
    if config_path(deployment, folder, hub_cache(deployment)) != path:  # a download that was cut had left one of two
        _fetch_weights(deployment, name, folder, on_progress)


def _kinds(deployment: Deployment, config_file: str) -> tuple[Kind, ...]:
    """Kinds of weight files, in the order in which they are looked for."""
    load_format = deployment.load.load_format
    return KINDS["mistral" if config_file == PARAMS_JSON and load_format != "dummy" else load_format]


def _download_weights(deployment: Deployment, name: str, kind: Kind | None, on_progress: OnProgress | None) -> None:
    """The model's files, with the weights of a kind."""
    patterns, others = (FILES[kind], OF_OTHERS.get(kind, ())) if kind is not None else ((), ())
    _download(deployment, name, deployment.model.revision, (*MODEL_FILES, *patterns), on_progress, others)


def _download(
    deployment: Deployment,
    name: str,
    revision: str | None,
    patterns: tuple[str, ...],
    on_progress: OnProgress | None,
    others: tuple[str, ...] = (),
) -> None:
    """others: patterns of files that are left out."""
    ignored = (*deployment.load.ignore_patterns, *others)
    download(name, revision, hub_cache(deployment), patterns, ignored, _token(deployment), on_progress)


def _token(deployment: Deployment) -> str | bool | None:
    """The token for the hub; True for the token of its login, which must exist."""
    secret = deployment.model.hf_token
    if secret is None:
        return None
    token = secret.get_secret_value()
    return True if token == "true" else token
