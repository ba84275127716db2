"""Rules about how files become weights. How a rule is written: ../rule.py."""

from __future__ import annotations

from ...checkpoint.settings import settings_problem
from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = (
    Rule(
        id="R080",
        title="the strategy is for safetensors files",
        fields=("load.safetensors_load_strategy", "load.load_format"),
        severity="warning",
        is_broken=lambda v: (
            v.safetensors_load_strategy == "eager" and v.load_format not in ("safetensors", "sharded_state")
        ),
        message="`load.safetensors_load_strategy` has no effect: `load.load_format` is {load_format}",
        why="lazy suits local disks, eager network file systems; other formats are always read tensor by tensor.",
        fixes=("remove it",),
    ),
    Rule(
        id="R081",
        title="the map of devices is for torch's files",
        fields=("load.pt_load_map_location", "load.load_format"),
        severity="warning",
        is_broken=lambda v: v.is_written("load.pt_load_map_location") and v.load_format not in ("pt", "npcache"),
        message="`load.pt_load_map_location` has no effect: `load.load_format` is {load_format}",
        why="Only torch's files say from which device a tensor was saved.",
        fixes=("remove it",),
    ),
    Rule(
        id="R283",
        title="torch's files are mapped onto the CPU",
        fields=("load.pt_load_map_location",),
        is_broken=lambda v: (
            isinstance(v.pt_load_map_location, dict) and any(to != "cpu" for to in v.pt_load_map_location.values())
        ),
        message="`load.pt_load_map_location` maps to something else than cpu",
        why="Files are read into the memory of the host, also where a GPU computes.",
        fixes=("map each device to cpu, or write `pt_load_map_location: cpu`",),
    ),
    Rule(
        id="R082",
        title="a loader takes the settings that it knows",
        fields=("load.model_loader_extra_config", "load.load_format"),
        is_broken=lambda v: bool(settings_problem(v.load_format, v.model_loader_extra_config)),
        message="`load.model_loader_extra_config`: {loader_problem}",
        why="A setting that no loader reads would be without effect, and nobody would notice.",
        fixes=("`engine explain load.model_loader_extra_config` names the settings of each format",),
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
        "no GGUF files",
        ("model.model", "model.quantization", "load.load_format"),
        "A model is a directory or a hub id; a single file is refused, and so is the format gguf.",
    ),
    StatedRule(
        "R047",
        "bitsandbytes needs its load format",
        ("model.quantization", "load.load_format"),
        "Both are refused in this build, so one cannot be without the other; int8 and int4 go with every load format.",
    ),
    StatedRule(
        "R048",
        "the load format bitsandbytes needs its quantization",
        ("load.load_format", "model.quantization"),
        "Both are refused in this build, so one cannot be without the other.",
    ),
    StatedRule(
        "R079",
        "auto is safetensors, then torch's files",
        ("load.load_format",),
        "Torch's files are read as data, so that no code in them runs; npcache copies them once into .npy files, and "
        "dummy invents weights.",
    ),
)
