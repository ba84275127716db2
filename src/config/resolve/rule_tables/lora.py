"""Rules about adapters. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...adapter_modules import modules_problem
from ..rule import Rule
from ..values import Values

_MODULES = ("lora.modules", "server.lora_modules")
_OTHERS = tuple(
    f"lora.{name}"
    for name in ("max_loras", "max_lora_rank", "max_cpu_loras", "lora_dtype", "lora_target_modules", "resolver_folder")
)


def _names_some(v: Values) -> bool:
    return bool(v.lora.modules or v.server.lora_modules)


RULES = (
    Rule(
        id="R012",
        title="adapters have names of their own",
        fields=(*_MODULES, "model.served_model_name", "server.model_aliases"),
        is_broken=lambda v: modules_problem(v.config),
        message="{problem}",
        why="A request names an adapter as its `model`, so each name must mean one thing.",
        fixes=("correct `lora.modules` or `server.lora_modules`",),
    ),
    Rule(
        id="R161",
        title="options of adapters need enable_lora",
        fields=("lora.enable_lora", *_OTHERS),
        severity="warning",
        is_broken=lambda v: not v.lora.enable_lora and any(map(v.is_written, _OTHERS)),
        message="without `lora.enable_lora` no adapters are served, so the other options of `lora` have no effect",
        why="Adapters cost memory and time, so they are served only where the deployment says so.",
        fixes=("set `lora.enable_lora: true`, or remove the other options",),
    ),
    Rule(
        id="R162",
        title="adapters that are named are served",
        fields=("lora.enable_lora", *_MODULES, "server.enable_lora_routes"),
        is_broken=lambda v: not v.lora.enable_lora and (_names_some(v) or v.server.enable_lora_routes),
        message="adapters are named or can be loaded, and `lora.enable_lora` is false",
        why="Requests to them would be answered 404.",
        fixes=(
            "set `lora.enable_lora: true`",
            "or remove `lora.modules`, `server.lora_modules` and `server.enable_lora_routes`",
        ),
    ),
    Rule(
        id="R163",
        title="adapters in memory include those of a step",
        fields=("lora.max_cpu_loras", "lora.max_loras"),
        is_broken=lambda v: v.lora.max_cpu_loras < v.lora.max_loras,
        message="`lora.max_cpu_loras` is {max_cpu_loras}, and one step may have {max_loras} adapters (`max_loras`)",
        why="An adapter of a step is in memory.",
        fixes=("set `lora.max_cpu_loras` to at least {max_loras}, or leave it out",),
    ),
    Rule(
        id="R164",
        title="adapters have the format of the model",
        fields=("lora.lora_dtype", "model.dtype"),
        needs_model=True,
        is_broken=lambda v: v.lora.enable_lora and v.lora.lora_dtype != v.model.dtype,
        message="`lora.lora_dtype` is {lora_dtype}, and the model is computed in {dtype}",
        why="Products of adapters are added to those of the model in its own format.",
        fixes=("leave `lora.lora_dtype` out",),
    ),
    Rule(
        id="R530",
        title="adapters are for models of this build",
        fields=("lora.enable_lora", "model.model_impl"),
        needs_model=True,
        is_broken=lambda v: v.lora.enable_lora and v.files is not None and v.files.implementation == "transformers",
        message="`lora.enable_lora` cannot be used with a model that runs through the transformers library",
        why="Adapters add to the products of this build's own layers.",
        fixes=(
            "set `model.model_impl: native`, if this build has the model",
            "or merge the adapter into the model's weights",
        ),
    ),
)
