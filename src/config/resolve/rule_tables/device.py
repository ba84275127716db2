"""Rules about the device. How a rule is written: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = (
    Rule(
        id="R210",
        title="more threads than cores",
        fields=("device.num_threads",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.num_threads > v.machine.num_cores,
        message="`device.num_threads` is {num_threads}; this process may use {num_cores} cores",
        why="Threads of one computation wait for each other, so a thread without a core delays all.",
        fixes=("set `device.num_threads` to at most {num_cores}, or leave it to auto",),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R223",
        "auto takes every core",
        ("device.num_threads",),
        "Those of the process: affinity and the limits of its container are counted.",
    ),
    StatedRule("R225", "auto takes the best device", ("device.device",), "This build has one: the CPU."),
    StatedRule(
        "R187",
        "settings of a device are checked by its code",
        ("device.additional_config",),
        "Cannot occur: a CPU has no settings of that kind, and any is refused.",
    ),
)
