"""Rules about the device. The format of a rule: ../rule.py."""

from __future__ import annotations

from ...exit_codes import EXIT_ENVIRONMENT
from ...gpu_capability import LEAST_CAPABILITY, capability_text
from ..rule import Rule
from ..values import Values
from .numa import places_problem


def _is_too_old(v: Values) -> bool:
    gpu = v.decisions.gpu
    return gpu is not None and not gpu.is_interpreted and gpu.compute_capability < LEAST_CAPABILITY


RULES: tuple[Rule, ...] = (
    Rule(
        id="R227",
        title="device: cuda needs a GPU",
        fields=("device.device",),
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=lambda v: v.device.device == "cuda" and v.machine.gpu is None,
        message="`device.device` is cuda, and this machine has no GPU: {no_gpu}",
        why="GPUs are detected with NVIDIA's driver library, among those in CUDA_VISIBLE_DEVICES.",
        fixes=(
            "write `device: auto`, which uses a GPU if there is one, or `cpu`",
            "or plan for another machine: engine plan --device-profile h200",
            "or set TRITON_INTERPRET=1: this CPU then interprets the GPU's kernels, very slowly, for tests",
        ),
    ),
    Rule(
        id="R228",
        title="the GPU is supported",
        fields=("device.device",),
        about_machine=True,
        exit_code=EXIT_ENVIRONMENT,
        is_broken=_is_too_old,
        message="the {gpu} has compute capability {capability}; this build's kernels need "
        f"{capability_text(LEAST_CAPABILITY)} (Ampere) or more",
        why="They compute in bfloat16 and copy asynchronously, which older GPUs do not support.",
        fixes=("write `device: cpu`, or choose another GPU with CUDA_VISIBLE_DEVICES",),
    ),
    Rule(
        id="R229",
        title="an interpreter is not a GPU",
        fields=("device.device",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.decisions.is_interpreted,
        message="no GPU is used: with TRITON_INTERPRET=1 this CPU interprets the GPU's kernels",
        why="This is for tests of the kernels; it is thousands of times slower than a GPU, and in float32 or float16 "
        "only.",
        fixes=("unset TRITON_INTERPRET where there is a GPU, or write `device: cpu`",),
    ),
    Rule(
        id="R286",
        title="the self-test is for CPUs",
        fields=("device.self_test", "device.device"),
        is_broken=lambda v: v.device.device == "cuda" and v.device.self_test,
        message="`device.self_test` measures CPU kernels, and `device.device` is cuda",
        why="It compares with the memory and the multipliers of the CPU.",
        fixes=("remove `device.self_test`, or write `device: cpu`",),
    ),
    Rule(
        id="R210",
        title="there are at most as many threads as cores",
        fields=("device.num_threads",),
        severity="warning",
        about_machine=True,
        is_broken=lambda v: v.device.num_threads > v.machine.num_cores and not places_problem(v),
        message="`device.num_threads` is {num_threads}; an engine process may use {num_cores} cores",
        why="The threads of a computation wait for each other, so a thread without a core delays all of them.",
        fixes=("set `device.num_threads` to at most {num_cores}, or leave it to auto",),
    ),
)
