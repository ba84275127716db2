"""Rules about how weights are loaded. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...checkpoint.layout import READ_EAGERLY
from ...checkpoint.settings import settings_problem
from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = (
    Rule(
        id="R080",
        title="the strategy is for safetensors files",
        fields=("load.safetensors_load_strategy", "load.load_format"),
        severity="warning",
        is_broken=lambda v: v.safetensors_load_strategy == "eager" and v.load_format not in READ_EAGERLY,
        message="`load.safetensors_load_strategy` has no effect: `load.load_format` is {load_format}",
        why="Files of other formats are always read tensor by tensor.",
        fixes=("remove the option",),
    ),
    Rule(
        id="R081",
        title="the map of devices is for torch files",
        fields=("load.pt_load_map_location", "load.load_format"),
        severity="warning",
        is_broken=lambda v: v.is_written("load.pt_load_map_location") and v.load_format not in ("pt", "npcache"),
        message="`load.pt_load_map_location` has no effect: `load.load_format` is {load_format}",
        why="Only torch files store the device that a tensor was saved from.",
        fixes=("remove the option",),
    ),
    Rule(
        id="R082",
        title="a loader accepts only its own settings",
        fields=("load.model_loader_extra_config", "load.load_format"),
        is_broken=lambda v: bool(settings_problem(v.load_format, v.model_loader_extra_config)),
        message="`load.model_loader_extra_config`: {loader_problem}",
        why="A setting that no loader reads would silently have no effect.",
        fixes=("`engine explain load.model_loader_extra_config` lists the settings of each format",),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R009",
        "each flag adds a pattern",
        ("load.ignore_patterns",),
        "--ignore-patterns may be given several times; the first replaces the default, the others add to it.",
    ),
    StatedRule(
        "R046",
        "a GGUF file describes itself",
        ("model.model", "load.load_format", "model.config_format"),
        "Its header has the configuration, the vocabulary and the chat template, so no other file is read. Its weights "
        "keep their codes on CPUs, as those of other quantised checkpoints; model.quantization quantises them again.",
    ),
    StatedRule(
        "R047",
        "bitsandbytes needs no load format of its own",
        ("model.quantization", "load.load_format"),
        "Checkpoints that bitsandbytes has quantised are read as safetensors; nothing else is quantised by it.",
    ),
    StatedRule(
        "R048",
        "the load format bitsandbytes needs its quantization",
        ("load.load_format", "model.quantization"),
        "The load format is refused: auto and safetensors read such checkpoints.",
    ),
    StatedRule(
        "R079",
        "auto is safetensors, then torch files",
        ("load.load_format",),
        "Torch files are read as data, so that no code in them runs; npcache copies them once into .npy files, and "
        "dummy creates random weights.",
    ),
)
