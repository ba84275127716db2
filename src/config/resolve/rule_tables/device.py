"""Rules about the device. How a rule is written: ../rule.py."""

from __future__ import annotations

from ...errors import EXIT_ENVIRONMENT
from ..gpu import LEAST_CAPABILITY
from ..rule import Rule, StatedRule
from ..values import Values


def _is_too_old(v: Values) -> bool:
    gpu = v.decisions.gpu
    return gpu is not None and not gpu.is_interpreted and gpu.compute_capability < LEAST_CAPABILITY


RULES: tuple[Rule, ...] = (
    Rule(
        id="R227",
        title="device: cuda has a GPU",
        fields=("device.device",),
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: v.device == "cuda" and v.machine.gpu is None,
        message="`device.device` is cuda, and there is no GPU here: {no_gpu}",
        why="A GPU is looked for with NVIDIA's driver library, among those that CUDA_VISIBLE_DEVICES leaves.",
        fixes=(
            "write `device: auto`, which takes a GPU where there is one, or `cpu`",
            "or plan for one that is elsewhere: engine plan --device-profile h200",
            "or set TRITON_INTERPRET=1: the GPU's kernels are then interpreted on this CPU, very slowly, for tests",
        ),
    ),
    Rule(
        id="R228",
        title="the GPU is new enough",
        fields=("device.device",),
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=_is_too_old,
        message="the {gpu} has compute capability {capability}; this build's kernels need 8.0 (Ampere) or more",
        why="They compute in bfloat16 and copy while they compute, which older GPUs cannot.",
        fixes=("write `device: cpu`, or choose another GPU with CUDA_VISIBLE_DEVICES",),
    ),
    Rule(
        id="R229",
        title="an interpreter is no GPU",
        fields=("device.device",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.decisions.is_interpreted,
        message="no GPU is used: TRITON_INTERPRET=1 has the GPU's kernels interpreted on this CPU",
        why="For tests of the kernels and for trying things; thousands of times slower than a GPU, and in float32 or "
        "float16 only.",
        fixes=("unset TRITON_INTERPRET where there is a GPU, or write `device: cpu`",),
    ),
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
    StatedRule(
        "R225",
        "auto takes the best device",
        ("device.device",),
        "An NVIDIA GPU of compute capability 8.0 or more, the first that CUDA_VISIBLE_DEVICES shows, if the installed "
        "torch can use it; else the CPU.",
    ),
    StatedRule(
        "R187",
        "settings of a device are checked by its code",
        ("device.additional_config",),
        "Cannot occur: no device of this build has settings of that kind, and any is refused.",
    ),
)
