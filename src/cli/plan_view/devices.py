"""Rows of a plan about several devices: the ways to divide the model, and the one that was chosen."""

from __future__ import annotations

from ...config.plan.distribution import exchange_text, manifest_of
from ...config.plan.plan import Plan
from ...config.schema.types import format_about as about


def device_rows(plan: Plan) -> list[tuple[str, str]]:
    """Numbers of devices that hold the model, and the one that was chosen."""
    found = plan.distribution
    if found is None:
        return []
    heads = ("tensor", "pipeline", "replicas", "weights each", "KV cache each", "context", "sequences", "exchange")
    rows = [("", "".join(f"{head:>{_column(head)}}" for head in heads))]
    for index, placement in enumerate(found.placements):
        cells = (
            placement.tensor_parallel_size,
            placement.pipeline_parallel_size,
            placement.data_parallel_size,
            about(placement.weights_bytes),
            about(placement.kv_cache_bytes) if placement.max_model_len else "-",
            placement.max_model_len or "-",
            placement.num_sequences or "-",
            _share(placement.of_decode),
        )
        shown = "".join(f"{cell:>{_column(head)}}" for head, cell in zip(heads, cells, strict=True))
        rows.append((">" if index == found.chosen else "", shown))
    chosen = found.shown
    rows.append(("", ""))
    if found.chosen is not None:
        rows.append(("", f"parallel: {{{manifest_of(chosen)}}}"))
    rows.append(("", found.why))
    if found.obstacle is not None:
        rows.append(("", f"tensor parallel goes no further: {found.obstacle}"))
    rows += [("", line) for line in exchange_text(chosen.exchange)]
    if chosen.of_prefill is not None:
        rows.append(("", f"they take {_share(chosen.of_prefill)} of a full step of a prompt (estimate)"))
    rows.append(("", "exchange: share of a decode step of one sequence (estimate); all below is of one device"))
    return rows


def _column(head: str) -> int:
    return max(12, len(head) + 2)


def _share(share: tuple[float, float] | None) -> str:
    return "-" if share is None else f"{share[0]:.0%} to {share[1]:.0%}"
