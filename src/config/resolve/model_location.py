"""Locations of a model's files: its directory, the file that describes it, and its repository's code.

Downloads nothing, and reads no more of a file than is needed to choose it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoint.gguf_files import choose, found_in, has_quantisation
from ..checkpoint.layout import FILES, has_files
from ..checkpoint.model_files import CONFIG_JSON, PARAMS_JSON, is_gguf, is_hub_id, locate, split_quantisation
from ..checkpoint.repository_code import COMMIT
from ..checkpoint.repository_code import PATTERN as CODE_PATTERN
from ..errors import ModelFilesError, ModelNotLocal
from .sharded_state import VOCABULARY_GGUF, has_vocabulary

if TYPE_CHECKING:
    from ..deployment import Deployment

_ANY_MODEL_FILE = ("*.json", "*.safetensors", "*.bin", "*.pt", "*.pth")
_GGUF_FILES = ("*.gguf", "*.GGUF")


@contextlib.contextmanager
def shown_at(option: str, is_named: bool) -> Iterator[None]:
    """An error about files that an option names is shown at that option."""
    try:
        yield
    except ModelFilesError as error:
        error.option = option if is_named else error.option
        raise


def hub_cache(deployment: Deployment) -> str | None:
    """Folder of downloaded models; None for the hub's own."""
    return deployment.located("load.download_dir") if deployment.load.download_dir is not None else None


def model_folder(deployment: Deployment, cache: str | None) -> Path:
    """The model's directory; without its description where `model.hf_config_path` names another."""
    name, revision = deployment.located("model.model"), deployment.model.revision
    wanted = config_files(deployment) if deployment.model.hf_config_path == "auto" else _ANY_MODEL_FILE
    quantisation = split_quantisation(name)[1]
    if quantisation is None or not is_hub_id(name):
        return locate(name, revision, cache, *wanted, *_GGUF_FILES)
    folder = locate(name, revision, cache, "*")
    if not has_quantisation(folder, quantisation):
        raise ModelNotLocal(name, str(folder))
    return folder


def gguf_file(deployment: Deployment, folder: Path) -> Path | None:
    """The GGUF file that is the model; None if it is in another format. Raises ModelFilesError if one must be chosen.

    A directory with weights in another format is a model in that format, unless `load.load_format` is `gguf`.
    """
    name = deployment.located("model.model")
    if is_gguf(name):
        return Path(os.path.expanduser(name))
    quantisation, load_format = split_quantisation(name)[1], deployment.load.load_format
    if (quantisation is not None and is_hub_id(name)) or "gguf" in (load_format, deployment.model.config_format):
        return choose(folder, quantisation)
    if load_format in ("auto", "sharded_state") and has_vocabulary(folder):
        return folder / VOCABULARY_GGUF
    if load_format != "auto" or any(has_files(folder, kind) for kind in FILES):
        return None
    return choose(folder) if found_in(folder) else None


def config_files(deployment: Deployment) -> tuple[str, ...]:
    """Names of the file that describes the model; the first that is there counts."""
    wanted = deployment.model.config_format
    if wanted == "mistral" or (wanted == "auto" and deployment.load.load_format == "mistral"):
        return (PARAMS_JSON,)
    return (CONFIG_JSON,) if wanted == "hf" else (CONFIG_JSON, PARAMS_JSON)


def config_path(deployment: Deployment, folder: Path, cache: str | None) -> Path:
    """The config.json that counts, or the params.json, or the GGUF file, which describes itself."""
    model, names = deployment.model, config_files(deployment)
    if (file := gguf_file(deployment, folder)) is not None:
        return file
    if model.hf_config_path != "auto":
        revision = own_revision(deployment, model.hf_config_path)
        with shown_at("model.hf_config_path", True):
            folder = locate(deployment.located("model.hf_config_path"), revision, cache, *names)
    return folder / next((name for name in names if os.path.lexists(folder / name)), names[0])


def own_revision(deployment: Deployment, name: str) -> str | None:
    """`revision` belongs to the model's repository; another repository has its own main branch."""
    return deployment.model.revision if name == deployment.model.model else None


def code_folder(deployment: Deployment, folder: Path) -> Path:
    """The directory whose code `model.trust_remote_code` allows.

    Raises ModelNotLocal if it must be downloaded, ModelFilesError for code from the hub that is not pinned.
    """
    name, revision = deployment.located("model.model"), deployment.model.code_revision
    if not is_hub_id(name):
        return folder
    if not COMMIT.fullmatch(revision or ""):
        raise ModelFilesError(
            f"`model.trust_remote_code` runs code of `{name}`, and `model.code_revision` is no commit; write the one "
            "whose code you have read",
            code="M304",
        )
    return locate(name, revision, hub_cache(deployment), CODE_PATTERN)
