"""adapter_config.json of an adapter that PEFT wrote: the keys that change what its tensors mean, and refusals.

Every key of PEFT 0.21's LoraConfig is effective, harmless or refused. A key that is in none of the tables may change
the arithmetic of the adapter, so it is refused unless it has a value that switches nothing on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...model.config_json import shown
from ..errors import ModelFilesError
from .model_files import read_json

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 1 << 16
_MAX_PATTERNS, _MAX_PATTERN_LENGTH = 4096, 500
# Information, and settings of training only
_HARMLESS = frozenset(
    {
        *("peft_type", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
        *("inference_mode", "lora_dropout", "fan_in_fan_out", "megatron_config", "megatron_core", "runtime_config"),
        *("velora_config", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
        *("qalora_group_size", "layers_pattern"),
    }
)
_EFFECTIVE = frozenset(
    {
        *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules"),
        *("layers_to_transform", "target_parameters", "bias", "lora_bias", "init_lora_weights", "use_dora"),
        *("modules_to_save", "trainable_token_indices", "ensure_weight_tying"),
    }
)
MERGE = "merge it into the model's weights with PEFT's `merge_and_unload`, and serve the result as a model"
_REFUSED = {
    "alora_invocation_tokens": "this build applies an adapter to all tokens of a request, and this one was trained to "
    "act only after these (activated LoRA)",
    "layer_replication": "the adapter's model has more layers than the one that is served; save that model with "
    "`merge_and_unload`, and serve it",
    "use_qalora": f"inputs of the adapter are averaged in groups (QALoRA), which this build does not compute; {MERGE}",
    "use_bdlora": f"matrices of the adapter are block diagonal (BD-LoRA), which this build does not read; {MERGE}",
    "kasa_config": "singular values between A and B, and truncated weights of the model (KaSA), are not computed by "
    f"this build; {MERGE}",
    "monteclora_config": f"this build samples no weights of adapters (MonteCLoRA); {MERGE}",
    "arrow_config": "this build routes no tokens between adapters (Arrow); load the adapters one by one, and choose "
    "one in each request",
}
_CHANGED_WEIGHTS = ("pissa", "olora", "corda", "loftq", "lora_ga")  # initialisations that change the model's weights
_CONVERT = (
    "changed the weights of the model when training began, so the adapter is wrong over the original ones; save it "
    "again with `save_pretrained(folder, path_initial_model_for_weight_conversion=...)`, which converts it"
)
_UNCONVERTIBLE = (
    "changed the weights of the model when training began, so the adapter is wrong over the original ones; serve the "
    "model that was trained with it"
)
# What a pattern may be made of. Python's `re` has no limit of time, so nothing may repeat a group, and little anything.
_PIECE = re.compile(
    r"(?:\\[.dw\-]|\[[\w.\-]+\]|[\w.\-])(?P<repeats>[*+?]|\{\d{1,2}(?:,\d{1,2})?\})?|\((?:\?:)?|\)(?![*+?{])|[|^$]"
)
_MAX_REPEATS = 2


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What adapter_config.json says about the tensors, after everything that this build does not compute was refused.

    targets: names of modules that must have tensors; empty if a regular expression or a word chose them, or only some
        layers have them.
    parameters: ends of the names of parameters that were adapted, of stacked experts.
    saved: names of modules that were trained whole.
    bias: whose biases were trained: none, all, lora_only.
    token_ids: of the rows that were trained, by the names of modules.
    is_tied: an output layer that is the embedding has what the adapter has for the embedding.
    """

    path: Path
    rank: int
    alpha: float
    is_rank_stabilised: bool
    ranks: tuple[tuple[str, float], ...]
    alphas: tuple[tuple[str, float], ...]
    targets: tuple[str, ...]
    parameters: tuple[str, ...]
    saved: tuple[str, ...]
    bias: str
    token_ids: tuple[tuple[str, tuple[int, ...]], ...]
    is_tied: bool
    base_model: str | None

    def rank_of(self, module: str) -> int:
        return int(_matched(self.ranks, module, self.rank))

    def saves(self, module: str) -> bool:
        """Whether a module was trained whole. Names match anywhere in its path."""
        return any(f".{name}." in f".{module}." for name in self.saved)

    def token_ids_of(self, module: str) -> tuple[int, ...]:
        """The rows of a module that were trained; none of others."""
        return next((ids for name, ids in self.token_ids if f".{module}".endswith(f".{name}")), ())

    def scale_of(self, module: str) -> float:
        """The factor of a module's product: alpha / r, or alpha / sqrt(r) where it is rank-stabilised."""
        rank, alpha = self.rank_of(module), _matched(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilised else rank)


def _matched(patterns: tuple[tuple[str, float], ...], module: str, default: float) -> float:
    """The value of the first pattern that a module's path ends with."""
    return next((value for key, value in patterns if re.match(rf"(?:.*\.)?(?:{key})$", module)), default)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Raises ModelFilesError: M302 without the file, M306 for an invalid value, M310 for what is not computed."""
    path = folder / ADAPTER_CONFIG
    values = read_json(path)
    _refuse_others(path, values)
    keys = _Keys(path, values)
    layers = values.get("layers_to_transform")
    targets = values.get("target_modules")
    has_all_layers = layers in (None, []) and values.get("exclude_modules") in (None, [], "")
    config = AdapterConfig(
        path=path,
        rank=int(keys.number("r", 8, _is_rank, f"a whole number from 1 to {MAX_RANK}")),
        alpha=keys.number("lora_alpha", 8, math.isfinite, "a number"),
        is_rank_stabilised=keys.flag("use_rslora"),
        ranks=keys.patterns("rank_pattern", _is_rank, f"whole numbers from 1 to {MAX_RANK}"),
        alphas=keys.patterns("alpha_pattern", math.isfinite, "numbers"),
        targets=tuple(keys.names("target_modules")) if isinstance(targets, list) and has_all_layers else (),
        parameters=tuple(keys.names("target_parameters")),
        saved=tuple(keys.names("modules_to_save")),
        bias=keys.choice("bias", ("none", "all", "lora_only")),
        token_ids=keys.token_ids("trainable_token_indices"),
        is_tied=keys.flag("ensure_weight_tying"),
        base_model=keys.text("base_model_name_or_path"),
    )
    for key in "lora_bias", "use_dora":  # the tensors say it
        keys.flag(key)
    return config


def _refuse_others(path: Path, values: Mapping[str, Any]) -> None:
    """Raises M310 for everything that this build does not compute."""
    kind = values.get("peft_type")
    if kind != "LORA":
        raise ModelFilesError(
            f"{path}: `peft_type` is {shown(kind)}; this build reads adapters of the type LORA", code="M310"
        )
    for key, reason in _REFUSED.items():
        if not _is_off(values.get(key)):
            raise ModelFilesError(f"{path}: `{key}` is {shown(values[key])}: {reason}", code="M310")
    start = values.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_CHANGED_WEIGHTS):
        fix = _UNCONVERTIBLE if start.lower().startswith("loftq") else _CONVERT
        raise ModelFilesError(f"{path}: `init_lora_weights` is {shown(start)}: it {fix}", code="M310")
    for key, value in values.items():
        if key not in _HARMLESS | _EFFECTIVE | _REFUSED.keys() and not _is_off(value):
            raise ModelFilesError(
                f"{path}: `{key}` is {shown(value)}: this build does not know the key, which may change what the "
                "adapter computes; remove it if it only describes the training",
                code="M310",
            )


def _is_off(value: Any) -> bool:
    """Whether a value switches nothing on: null, false, or an empty text, list or object."""
    return value is None or value is False or value in ("", [], {})


def _is_rank(value: float) -> bool:
    return value == int(value) and 1 <= value <= MAX_RANK if math.isfinite(value) else False


class _Keys:
    """Reads values of one file, each with an error that names the key."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path, self._values = path, values

    def invalid(self, key: str, allowed: str) -> ModelFilesError:
        return ModelFilesError(
            f"{self._path}: `{key}` is {shown(self._values.get(key))}; it must be {allowed}", code="M306"
        )

    def number(self, key: str, default: float, is_allowed: Callable[[float], bool], allowed: str) -> float:
        value = self._values.get(key, default)
        if not _is_number(value) or not is_allowed(value):
            raise self.invalid(key, allowed)
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise self.invalid(key, "true or false")
        return value

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        value = self._values.get(key, allowed[0])
        if value not in allowed:
            raise self.invalid(key, f"{', '.join(allowed[:-1])} or {allowed[-1]}")
        return str(value)

    def token_ids(self, key: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """A list is of the embedding."""
        value = self._values.get(key) or {}
        by_module = {"embed_tokens": value} if isinstance(value, list) else value
        if not isinstance(by_module, dict) or not all(map(_are_ids, by_module.values())):
            raise self.invalid(key, "a list of different token ids, or an object of such lists")
        return tuple((module, tuple(ids)) for module, ids in by_module.items())

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.invalid(key, "a text")
        return value

    def names(self, key: str) -> list[str]:
        value = self._values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.invalid(key, "a list of names")
        return value

    def patterns(self, key: str, is_allowed: Callable[[float], bool], allowed: str) -> tuple[tuple[str, float], ...]:
        value = self._values.get(key) or {}
        if not isinstance(value, dict) or len(value) > _MAX_PATTERNS:
            raise self.invalid(key, f"an object of at most {_MAX_PATTERNS} patterns")
        for pattern, number in value.items():
            if not _is_number(number) or not is_allowed(number):
                raise ModelFilesError(
                    f"{self._path}: `{key}` has {shown(number)} for {shown(pattern)}; its values must be {allowed}",
                    code="M306",
                )
            if not _is_simple(pattern):
                raise ModelFilesError(
                    f"{self._path}: `{key}` has the pattern {shown(pattern)}; this build reads names of modules, also "
                    r"with `\d+`, `.*`, sets of characters and groups of alternatives, at most "
                    f"{_MAX_REPEATS} repetitions and none of a group",
                    code="M310",
                )
        return tuple((pattern, float(number)) for pattern, number in value.items())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _are_ids(value: Any) -> bool:
    """Whether a value is a list of whole numbers from 0 on, each of them once."""
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < 1 << 31 for each in value):
        return False
    return len(set(value)) == len(value)


def _is_simple(pattern: str) -> bool:
    """Whether a regular expression can be matched in a bounded time: see `_PIECE`."""
    if len(pattern) > _MAX_PATTERN_LENGTH:
        return False
    place = repeats = 0
    while place < len(pattern):
        piece = _PIECE.match(pattern, place)
        if piece is None:
            return False
        repeats += piece["repeats"] is not None
        place = piece.end()
    try:
        re.compile(pattern)
    except re.error:
        return False
    return repeats <= _MAX_REPEATS
