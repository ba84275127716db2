"""What the options of pooling make of the heads of a model: `model.runner`, `model.convert`, `model.pooler_config`."""

from __future__ import annotations

from typing import Any

from ...model.pooling import PoolHead, Pooling, PoolMode
from ...model.spec import ModelSpec
from ..errors import ModelFilesError
from ..schema.model import ModelConfig

_MODES: dict[str, PoolMode] = {"CLS": "cls", "LAST": "last", "MEAN": "mean"}
_SCORES = ("classify", "token_classify")
_OF_CONVERT = {"embed": ("embed", "token_embed", "sparse"), "classify": _SCORES, "reward": _SCORES}


def with_pooling_options(spec: ModelSpec, model: ModelConfig, *, keeps_output: bool) -> ModelSpec:
    """The model with the heads that the options ask for.

    keeps_output: the weight files must have all tensors of the model, also of an output layer that nothing reads.
    Raises ModelFilesError, at the option, for what the model does not have.
    """
    spec = _converted(spec, model)
    if spec.pooling is None:
        if model.pooler_config:
            raise _refused("model.pooler_config", f"{spec.architecture} pools nothing here")
        return spec
    pooling = spec.pooling.model_copy(update=_changes(spec.pooling, model.pooler_config))
    spec = spec.model_copy(update={"pooling": pooling})
    if spec.generates or spec.is_tied or pooling.reads_output or keeps_output:
        return spec
    return spec.model_copy(update={"has_output": False, "has_output_bias": False})


def _converted(spec: ModelSpec, model: ModelConfig) -> ModelSpec:
    """The model with the results that `runner` and `convert` leave to it."""
    convert, runner = model.convert, model.runner
    if convert == "none" and spec.generates:
        spec = spec.model_copy(update={"pooling": None})
    wanted = _OF_CONVERT.get(convert)
    if wanted is not None:
        kept = () if spec.pooling is None else tuple(head for head in spec.pooling.heads if head.task in wanted)
        if spec.pooling is None or not kept:
            raise _refused("model.convert", f"{spec.architecture} has no head of {' or '.join(wanted)}; {_has(spec)}")
        spec = spec.model_copy(update={"pooling": spec.pooling.model_copy(update={"heads": kept})})
    if runner == "generate":
        if not spec.generates:
            raise _refused("model.runner", f"{spec.architecture} generates no tokens; {_has(spec)}")
        if wanted is not None:
            raise _refused("model.convert", f"`model.runner: generate` leaves out what `convert: {convert}` asks for")
        return spec.model_copy(update={"pooling": None})
    if runner == "auto" and wanted is None:
        return spec
    if spec.pooling is None:
        raise _refused("model.runner", f"{spec.architecture} pools nothing here")
    return spec.model_copy(update={"generates": False})


def _changes(pooling: Pooling, written: dict[str, Any]) -> dict[str, Any]:
    """The fields of the description that `pooler_config` changes. Keys that a rule refuses change nothing."""
    heads = pooling.heads
    if (task := written.get("task")) is not None:
        heads = tuple(head for head in heads if head.task == task)
        if not heads:
            raise _wrong(pooling, "task", "is not a task of this model")
    kind = written.get("pooling_type")
    mode = written.get("seq_pooling_type") or (kind if kind in _MODES else None)
    of_tokens = written.get("tok_pooling_type") or (kind if kind not in _MODES else None)
    if mode is not None:
        _need(pooling, "pooling_type", heads, ("embed", "classify"))
        heads = tuple(
            _with_mode(pooling, head, _MODES[mode]) if head.task in ("embed", "classify") else head for head in heads
        )
    changes: dict[str, Any] = {}
    if of_tokens is not None or "step_tag_id" in written:
        key = "step_tag_id" if of_tokens is None else "pooling_type"
        _need(pooling, key, heads, ("token_embed", "token_classify"))
        step = written.get("step_tag_id", pooling.step_token)
        if of_tokens == "STEP" and step is None:
            raise _wrong(pooling, "step_tag_id", "is needed for STEP")
        if of_tokens == "ALL" and "step_tag_id" in written:
            raise _wrong(pooling, "step_tag_id", "has no effect on ALL")
        changes["step_token"] = None if of_tokens == "ALL" else step
    if written.get("use_activation") is False:
        heads = tuple(head.model_copy(update={"activation": "none"}) for head in heads)
    if (size := written.get("dimensions")) is not None:
        _need(pooling, "dimensions", heads, ("embed",))
        for head in heads:
            _check_size(pooling, head, size)
        changes["default_dimensions"] = size
    for key in ("logit_mean", "logit_sigma"):
        if key in written:
            _need(pooling, key, heads, _SCORES)
            changes[key] = float(written[key])
    return {"heads": heads, **changes}


def _with_mode(pooling: Pooling, head: PoolHead, mode: PoolMode) -> PoolHead:
    """The head with one mode. Several modes are side by side, and a layer after them takes the elements of all."""
    if len(head.modes) > 1 and head.after:
        raise _wrong(pooling, "pooling_type", f"does not fit the layers after the {len(head.modes)} modes of the model")
    return head.model_copy(update={"modes": (mode,), "width": head.width // max(1, len(head.modes))})


def _check_size(pooling: Pooling, head: PoolHead, size: int) -> None:
    if head.task != "embed" or size == head.width or size in head.dimensions:
        return
    if head.any_dimension and size < head.width:
        return
    sizes = ", ".join(map(str, head.dimensions))
    allowed = f"any up to {head.width}" if head.any_dimension else sizes or f"{head.width}, which is not to be cut"
    raise _wrong(pooling, "dimensions", f"is {size}; allowed: {allowed}")


def _need(pooling: Pooling, key: str, heads: tuple[PoolHead, ...], tasks: tuple[str, ...]) -> None:
    if not any(head.task in tasks for head in heads):
        raise _wrong(pooling, key, f"is about {' and '.join(tasks)}, which this model does not have")


def _wrong(pooling: Pooling, key: str, why: str) -> ModelFilesError:
    tasks = ", ".join(head.task for head in pooling.heads)
    return _refused("model.pooler_config", f"`{key}` {why} (tasks of the model: {tasks})")


def _has(spec: ModelSpec) -> str:
    tasks = [] if spec.pooling is None else [head.task for head in spec.pooling.heads]
    return f"it has {', '.join(['tokens', *tasks] if spec.generates else tasks) or 'nothing'}"


def _refused(option: str, message: str) -> ModelFilesError:
    error = ModelFilesError(message, code="M304")
    error.option = option
    return error
