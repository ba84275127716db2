"""The tables of docs/performance.md from the records: what was aimed at, then everything that was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .record import Record

NOT_MEASURED = "not measured"
Told = Literal["value", "share of the floor", "TFLOP/s", "x floor"]


@dataclass(frozen=True, slots=True)
class Target:
    told: str  # what it is, for readers
    wanted: str
    part: str
    name: str
    shape: str
    as_: Told = "value"
    floor: str = ""  # on an H200, by arithmetic
    flops: float = 0.0  # of one, where speed is told


_ATTENTION_FLOPS = 4 * 32 * 128 * 8192 * (8192 + 1) / 2
TARGETS = [
    Target("Qwen3-0.6B, one request at 512", "1.0 ms/token", "qwen3-0.6b", "decode", "Qwen3-0.6B, 1 x 512", floor="0.26"),
    Target(
        "Llama-3.1-8B, one request at 512", "4.2 ms/token", "llama-3.1-8b", "decode", "Llama-3.1-8B, 1 x 512", floor="3.14"
    ),
    Target(
        "Qwen3-0.6B, 256 requests of 100-1024 in and out", "22k token/s", "qwen3-0.6b", "workload of 256",
        "Qwen3-0.6B, 256 requests, 133966 tokens", floor="40.0k",
    ),
    Target("Qwen3-0.6B, ready, warm files", "15 s", "ready", "ready, warm", "Qwen3-0.6B"),
    Target("Llama-3.1-8B, ready, warm files", "20 s", "ready", "ready, warm", "Llama-3.1-8B"),
    Target(
        "decode attention, 64 x 2048, Llama-3.1-8B", "85 % of the memory's speed", "kernels", "decode attention",
        "Llama-3.1-8B, 64 x 2048", "share of the floor",
    ),
    Target(
        "decode attention, 256 x 512, Llama-3.1-8B", "85 % of the memory's speed", "kernels", "decode attention",
        "Llama-3.1-8B, 256 x 512", "share of the floor",
    ),
    Target(
        "decode attention, 1 x 8192, Llama-3.1-8B", "80 % of the memory's speed", "kernels", "decode attention",
        "Llama-3.1-8B, 1 x 8192", "share of the floor",
    ),
    Target(
        "prefill attention, 8192 causal, heads of 128", "430 TFLOP/s", "kernels", "prefill attention",
        "Llama-3.1-8B, 8192", "TFLOP/s", flops=_ATTENTION_FLOPS,
    ),
    *(
        Target(
            f"linear, {layer}, 1 token, Llama-3.1-8B", "80 % of the memory's speed", "kernels", f"linear, {layer}",
            "Llama-3.1-8B, 1 tokens", "share of the floor",
        )
        for layer in ("qkv", "out", "gate and up", "down", "output layer")
    ),
    *(
        Target(f"{model}, decode, {rows} x {length}, ms/step", "", model.lower(), "decode", f"{model}, {rows} x {length}",
               floor=floor)
        for model, rows, length, floor in (
            ("Qwen3-0.6B", 64, 512, "1.03"), ("Qwen3-0.6B", 256, 512, "3.52"), ("Qwen3-0.6B", 64, 2048, "3.38"),
            ("Qwen3-0.6B", 256, 2048, "12.9"), ("Llama-3.1-8B", 64, 512, "4.02"), ("Llama-3.1-8B", 256, 512, "8.44"),
            ("Llama-3.1-8B", 64, 2048, "6.71"), ("Llama-3.1-8B", 256, 2048, "19.2"),
        )
    ),
    *(
        Target(f"{model}, prompt of {tokens}, ms to the first token", "", model.lower(), "prefill",
               f"{model}, {tokens} tokens")
        for model in ("Qwen3-0.6B", "Llama-3.1-8B") for tokens in (2048, 8192)
    ),
    Target("transformers generate, Qwen3-0.6B, one request at 512, ms/step", "", "transformers", "generate, sdpa",
           "Qwen3-0.6B, 1 x 512"),
    Target("transformers generate, Llama-3.1-8B, one request at 512, ms/step", "", "transformers", "generate, sdpa",
           "Llama-3.1-8B, 1 x 512"),
    Target("transformers continuous batching, the 256 requests, Qwen3-0.6B", "", "transformers",
           "continuous batching, sdpa", "Qwen3-0.6B, 256 requests, 133966 tokens"),
]  # fmt: skip


def target_table(records: Iterable[Record]) -> list[str]:
    found = {(each.part, each.name, each.shape): each for each in records}
    lines = ["| | target | floor of an H200 | measured | spread |", "|---|---|---|---|---|"]
    for target in TARGETS:
        record = found.get((target.part, target.name, target.shape))
        spread = f"{record.spread:.1%}" if record and record.spread is not None else ""
        lines.append(f"| {target.told} | {target.wanted} | {target.floor} | {_measured(target, record)} | {spread} |")
    return lines


def _measured(target: Target, record: Record | None) -> str:
    if record is None or record.value is None:
        return NOT_MEASURED
    if target.as_ == "TFLOP/s":
        return f"{target.flops / record.value / 1e6:.0f} TFLOP/s"  # of microseconds
    if target.as_ == "share of the floor":
        return NOT_MEASURED if record.ratio is None else f"{1 / record.ratio:.0%}"
    return f"{_number(record.value)} {record.unit}"


def whole_table(records: Iterable[Record]) -> list[str]:
    lines = ["| part | what | shape | value | floor | value / floor | spread | |", "|---|---|---|---|---|---|---|---|"]
    for each in records:
        value = f"{_number(each.value)} {each.unit}" if each.value is not None else ""
        floor, ratio = _number(each.floor), "" if each.ratio is None else f"{each.ratio:.2f}"
        spread = "" if each.spread is None else f"{each.spread:.1%}"
        error = (each.error or "").replace("|", "/")
        lines.append(f"| {each.part} | {each.name} | {each.shape} | {value} | {floor} | {ratio} | {spread} | {error} |")
    return lines


def tables(machine: dict[str, Any], records: list[Record]) -> str:
    told = ", ".join(f"{name} {value}" for name, value in machine.items() if not name.startswith("kernels, "))
    return "\n".join([told, "", *target_table(records), "", *whole_table(records)])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1e9:
        return f"{value / 1e9:.0f}e9"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
