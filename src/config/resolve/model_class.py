"""The class that config.json names, and the repository's code that defines it, if the deployment allows that code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.config_json import ModelConfigError
from ...model.through_transformers import is_known_class
from ..checkpoint.repository_code import RepositoryCode, read_code
from .model_location import code_folder

if TYPE_CHECKING:
    from ..deployment import Deployment


def repository_code(
    deployment: Deployment, path: Path, folder: Path, config: Mapping[str, Any]
) -> RepositoryCode | None:
    """The code that defines the model's class, if it is allowed. Raises ModelConfigError for a model without a
    class, or with code that is not allowed."""
    model = deployment.model
    _check_class(config)
    if not has_code(config):
        return None
    if model.trust_remote_code and model.model_impl == "transformers":
        if nested := _nested_code(config):
            raise ModelConfigError(
                f"`auto_map` in `{nested}` says that a part of this model runs code from its repository, which this "
                "build never does",
                "M304",
            )
        return read_code(path, code_folder(deployment, folder), config["auto_map"])
    if not is_known_class(config["architectures"][0]):
        raise ModelConfigError(
            f"`auto_map` says that `{config['architectures'][0]}` is code of its repository, which "
            "`model.trust_remote_code: true` with `model.model_impl: transformers` allows",
            "M304",
        )
    return None


def has_code(config: Mapping[str, Any]) -> bool:
    return bool(config.get("auto_map") or _nested_code(config))


def _nested_code(config: Mapping[str, Any]) -> str | None:
    """The part of config.json that names its own code, as in composed models."""
    return next((key for key, part in config.items() if isinstance(part, Mapping) and part.get("auto_map")), None)


def _check_class(config: Mapping[str, Any]) -> None:
    """Raises ModelConfigError for a model without a class."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelConfigError("`architectures` must list the model's class")
