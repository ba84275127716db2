"""The engines that are compared: the precision, environment and workloads of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OFFLINE = ("decode-1", "prefill-1024", "prefill-2048", "mixed-32", "prefix-16", "concurrent-64", "concurrent-128")
AGENTS = ("chat-tools-8", "json-schema-8", "responses-8")
SERVED = ("http-1", "http-8", *AGENTS)
BATCHES = ("batch-16", "batch-64")
WORKLOADS = (*OFFLINE, *BATCHES, *SERVED)
QUICK = ("decode-1", "prefill-1024", "http-1")

_ALONE = OFFLINE[:3]
_QUANTIZED = ("decode-1", "prefill-1024")
_ONE_STREAM = "quantised weights are compared at batch 1"
_FEW = "activations in int8 are compared at few workloads"
_FILES = ("decode-1", "prefill-1024", *BATCHES)
_SAME_FILE = "the same GGUF file is compared at few workloads"


@dataclass(frozen=True)
class Contestant:
    """environment: key of environments.PACKAGES; `own` is the environment that runs the benchmark.
    group: the first contestant of a group is compared with the others of the group.
    adapter: module of benchmarks/peers/engines; empty for a server. weights: name for environments.weights."""

    name: str
    group: str
    environment: str
    weights: str
    adapter: str = ""
    workloads: tuple[str, ...] = OFFLINE
    absent: str = ""  # why it does not run the other workloads
    options: dict[str, Any] = field(default_factory=dict)


def _same_file(kind: str) -> tuple[Contestant, Contestant]:
    """Stoker and llama.cpp with one file."""
    weights, group = f"gguf-{kind}", f"{kind} file"
    return (
        Contestant(f"stoker-{kind}", group, "own", weights, "stoker", _FILES, _SAME_FILE),
        Contestant(f"llama.cpp-{kind}-file", group, "llama-cpp", weights, "llama_cpp", _FILES, _SAME_FILE),
    )


CONTESTANTS = {
    each.name: each
    for each in (
        Contestant("stoker", "bf16", "own", "checkpoint", "stoker"),
        Contestant("vllm", "bf16", "vllm", "checkpoint", "vllm"),
        Contestant("openvino", "bf16", "openvino", "openvino-bf16", "openvino", options={"kv": "bf16"}),
        Contestant(
            "llama.cpp",
            "bf16",
            "llama-cpp",
            "gguf-bf16",
            "llama_cpp",
            (*_ALONE, "mixed-32"),
            "its Python binding has no prefix cache and is designed for few streams",
        ),
        Contestant(
            "transformers",
            "bf16",
            "own",
            "checkpoint",
            "transformers",
            (*_ALONE, "mixed-32"),
            "`generate` has no prefix cache and runs one padded batch: mixed-32 shows the cost",
        ),
        Contestant(
            "stoker-int8", "int8", "own", "checkpoint", "stoker", _QUANTIZED, _ONE_STREAM, {"quantization": "int8"}
        ),
        Contestant("openvino-int8", "int8", "openvino", "openvino-int8", "openvino", _QUANTIZED, _ONE_STREAM),
        Contestant("llama.cpp-q8_0", "int8", "llama-cpp", "gguf-q8_0", "llama_cpp", _QUANTIZED, _ONE_STREAM),
        Contestant(
            "stoker-int4", "int4", "own", "checkpoint", "stoker", _QUANTIZED, _ONE_STREAM, {"quantization": "int4"}
        ),
        Contestant("openvino-int4", "int4", "openvino", "openvino-int4", "openvino", _QUANTIZED, _ONE_STREAM),
        Contestant(
            "stoker-int4-pure",
            "int4_pure",
            "own",
            "checkpoint",
            "stoker",
            _QUANTIZED,
            _ONE_STREAM,
            {"quantization": "int4_pure"},
        ),
        Contestant("llama.cpp-q4_0", "int4_pure", "llama-cpp", "gguf-q4_0", "llama_cpp", _QUANTIZED, _ONE_STREAM),
        Contestant("stoker-w8a8", "w8a8", "own", "checkpoint-int8", "stoker", _FILES, _FEW),
        Contestant("openvino-w8a8", "w8a8", "openvino", "openvino-int8", "openvino", _FILES, _FEW),
        *(each for kind in ("q4_k_m", "q4_0", "q8_0") for each in _same_file(kind)),
        Contestant("stoker-server", "served", "own", "checkpoint", workloads=SERVED),
        Contestant("vllm-server", "served", "vllm", "checkpoint", workloads=SERVED),
    )
}
