"""Renders records as the tables of benchmarks/LOG.md: first the targets, then all measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .record import Record
from .shapes import LLAMA, QWEN, Shape

NOT_MEASURED = "not measured"
VLLM = "vllm "  # a part's name begins with it; then follows the name of the part with the same measurements
Display = Literal["value", "share of the floor", "TFLOP/s"]


@dataclass(frozen=True, slots=True)
class Target:
    label: str
    wanted: str
    part: str
    name: str
    shape: str
    display: Display = "value"
    floor: str = ""  # on an H200, by arithmetic
    flops: float = 0.0  # of one run, if `display` is TFLOP/s


_PREFILL_FLOPS = 4 * LLAMA.heads * LLAMA.head_dim * 8192 * 8193 / 2
_DECODE_FLOORS = {
    QWEN.name: {(64, 512): "1.03", (256, 512): "3.52", (64, 2048): "3.38", (256, 2048): "12.9"},
    LLAMA.name: {(64, 512): "4.02", (256, 512): "8.44", (64, 2048): "6.71", (256, 2048): "19.2"},
}
_REQUESTS = f"{QWEN.name}, 256 requests, 133966 tokens"


def _decodes(shape: Shape, wanted: str, floor: str) -> list[Target]:
    """Targets of decode steps and prefills of a model."""
    name, part = shape.name, shape.name.lower()
    one = f"{name}, 1 x 512"
    return [
        Target(f"{name}, one request at 512", wanted, part, "decode", one, floor=floor),
        *(
            Target(f"{name}, {rows} x {length}", "", part, "decode", f"{name}, {rows} x {length}", floor=floor)
            for (rows, length), floor in _DECODE_FLOORS[name].items()
        ),
        *(
            Target(f"{name}, first token of a prompt of {tokens}", "", part, "prefill", f"{name}, {tokens} tokens")
            for tokens in (2048, 8192)
        ),
        Target(f"transformers generate, {one}", "", "transformers", "generate, sdpa", one),
    ]


def _kernel(wanted: str, name: str, shape: str) -> Target:
    return Target(f"{name}, {shape}", f"{wanted} of the memory's speed", "kernels", name, shape, "share of the floor")


TARGETS = [
    *_decodes(QWEN, "1.0 ms/step", "0.26"),
    *_decodes(LLAMA, "4.2 ms/step", "3.14"),
    Target("256 requests of 100-1024 in and out", "22k token/s", QWEN.name.lower(), "workload of 256", _REQUESTS,
           floor="40.0k"),
    Target("the same, transformers continuous batching", "", "transformers", "continuous batching, sdpa", _REQUESTS),
    Target(f"{QWEN.name}, ready, warm files", "15 s", "ready", "ready, warm", QWEN.name),
    Target(f"{LLAMA.name}, ready, warm files", "20 s", "ready", "ready, warm", LLAMA.name),
    _kernel("85 %", "decode attention", f"{LLAMA.name}, 64 x 2048"),
    _kernel("85 %", "decode attention", f"{LLAMA.name}, 256 x 512"),
    _kernel("80 %", "decode attention", f"{LLAMA.name}, 1 x 8192"),
    *(_kernel("80 %", f"linear, {layer}", f"{LLAMA.name}, 1 tokens") for layer in (*LLAMA.linears, "output layer")),
    Target(f"prefill attention, {LLAMA.name}, 8192 causal", "430 TFLOP/s", "kernels", "prefill attention",
           f"{LLAMA.name}, 8192", "TFLOP/s", flops=_PREFILL_FLOPS),
]  # fmt: skip


def target_table(records: Iterable[Record]) -> list[str]:
    found = {(each.part, each.name, each.shape): each for each in records}
    lines = ["| | target | floor on an H200 | measured | spread |", "|---|---|---|---|---|"]
    for target in TARGETS:
        record = found.get((target.part, target.name, target.shape))
        spread = f"{record.spread:.1%}" if record and record.spread is not None else ""
        lines.append(f"| {target.label} | {target.wanted} | {target.floor} | {_measured(target, record)} | {spread} |")
    return lines


def _measured(target: Target, record: Record | None) -> str:
    if record is None or record.value is None:
        return NOT_MEASURED
    if target.display == "TFLOP/s":
        return f"{target.flops / record.value / 1e6:.0f} TFLOP/s"  # value: microseconds
    if target.display == "share of the floor":
        return NOT_MEASURED if record.ratio is None else f"{1 / record.ratio:.0%}"
    return f"{_number(record.value)} {record.unit}"


def comparison(records: Iterable[Record]) -> list[str]:
    """Measurements of this project and of vLLM side by side, where the file has both; no lines if it has none.

    The ratio is this project's value divided by vLLM's: for times below 1 is faster, for rates above 1.
    """
    found = {(each.part, each.name, each.shape): each for each in records if each.value is not None}
    lines = []
    for (part, name, shape), peer in found.items():
        own = found.get((part.removeprefix(VLLM), name, shape)) if part.startswith(VLLM) else None
        if own is None or own.value is None or not peer.value:
            continue
        values = f"{_number(own.value)} {own.unit} | {_number(peer.value)} {peer.unit} | {own.value / peer.value:.2f}"
        lines.append(f"| {name} | {shape} | {values} |")
    head = ["| what | shape | Stoker | vLLM | Stoker / vLLM |", "|---|---|---|---|---|"]
    return [*head, *lines, ""] if lines else []


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
    machine_line = ", ".join(f"{name} {value}" for name, value in machine.items() if not name.startswith("kernels, "))
    return "\n".join([machine_line, "", *target_table(records), "", *comparison(records), *whole_table(records)])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1e9:
        return f"{value / 1e9:.0f}e9"
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
