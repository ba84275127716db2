"""Rows of a plan about the model: its size, its files, and the forms of its texts."""

from __future__ import annotations

from collections.abc import Mapping

from ...config.plan.plan import Plan
from ...config.plan.text import TextForms
from ...config.schema.types import format_about as about
from ...model.pooling import PoolHead


def model_rows(plan: Plan, forms: TextForms) -> list[tuple[str, str]]:
    model, spec = plan.model, plan.model.spec
    sparse = f", {_count(model.num_active_parameters)} of them per token" if spec.has_experts else ""
    rows = [
        ("architecture", f"{spec.architecture or spec.model_type}, {spec.num_layers} layers"),
        ("parameters", f"{_count(model.num_parameters)}{sparse} ({model.weights_source})"),
    ]
    stored = model.stored
    if stored is not None and stored.num_bytes:
        dtypes = ", ".join(f"{name} {about(size)}" for name, size in sorted(stored.num_bytes.items()))
        becomes = "as stored" if stored.bytes_in(plan.ask.dtype) == stored.total_bytes else f"become {plan.ask.dtype}"
        rows.append(("stored", f"{dtypes}; {becomes}"))
        rows += [("", line) for line in _types(stored.parts)]
    if model.files is not None and model.files.state is not None:
        rows.append(("stored", f"sharded state: {model.files.state.shown}"))
    context = f"{plan.estimate.max_model_len} tokens" if plan.estimate.max_model_len else "does not fit"
    rows.append(("context", f"{context}; the model supports {model.limit}"))
    if (pooling := spec.pooling) is not None:
        rows += [(head.task, f"{head.width} elements{_pools(head)}") for head in pooling.heads]
    return rows + form_rows(forms) * spec.generates


def form_rows(forms: TextForms) -> list[tuple[str, str]]:
    """The chat template, and what of answers is read."""
    if not forms.source:
        return [("chat template", "none found: /v1/chat/completions needs `server.chat_template`")]
    return [
        ("chat template", forms.source),
        ("tool calls", f"{forms.tool_calls}: {forms.tool_calls_why}"),
        ("reasoning", f"{forms.reasoning}: {forms.reasoning_why}"),
        *(("", f"warning: {warning}") for warning in forms.warnings),
    ]


def _pools(head: PoolHead) -> str:
    """What a result of a head is made of."""
    if not head.modes:
        return " for each token"
    tokens = " and ".join(head.modes)
    return f", pooled: {tokens}" + (f"; {head.activation}" if head.activation != "none" else "")


def _types(parts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The quantised types of the matrices of a GGUF file: a line for the parts of a layer that have the same."""
    same: dict[str, list[str]] = {}
    for part, dtypes in parts.items():
        several = ", ".join(f"{count} {name}" for name, count in sorted(dtypes.items()))
        same.setdefault(several if len(dtypes) > 1 else next(iter(dtypes)), []).append(part)
    return [f"{types}: {', '.join(named)}" for types, named in same.items()]


def _count(number: int) -> str:
    for scale, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= scale:
            return f"{number / scale:.2f}{unit}"
    return str(number)
