"""Rules about how weights are loaded. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...checkpoint.layout import READ_EAGERLY
from ...checkpoint.settings import settings_problem
from ..rule import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        id="R080",
        title="the strategy is for safetensors files",
        fields=("load.safetensors_load_strategy", "load.load_format"),
        severity="warning",
        is_broken=lambda v: v.load.safetensors_load_strategy == "eager" and v.load.load_format not in READ_EAGERLY,
        message="`load.safetensors_load_strategy` has no effect: `load.load_format` is {load_format}",
        why="Files of other formats are always read tensor by tensor.",
        fixes=("remove the option",),
    ),
    Rule(
        id="R081",
        title="the map of devices is for torch files",
        fields=("load.pt_load_map_location", "load.load_format"),
        severity="warning",
        is_broken=lambda v: v.is_written("load.pt_load_map_location") and v.load.load_format not in ("pt", "npcache"),
        message="`load.pt_load_map_location` has no effect: `load.load_format` is {load_format}",
        why="Only torch files store the device that a tensor was saved from.",
        fixes=("remove the option",),
    ),
    Rule(
        id="R082",
        title="a loader accepts only its own settings",
        fields=("load.model_loader_extra_config", "load.load_format"),
        is_broken=lambda v: bool(settings_problem(v.load.load_format, v.load.model_loader_extra_config)),
        message="`load.model_loader_extra_config`: {loader_problem}",
        why="A setting that no loader reads would silently have no effect.",
        fixes=("`engine explain load.model_loader_extra_config` lists the settings of each format",),
    ),
)
