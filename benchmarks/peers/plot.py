"""Renders a record as SVG: for each group and workload, a bar per contestant with its speed."""

from __future__ import annotations

import statistics
from html import escape

from .contestants import WORKLOADS
from .record import Record
from .table import GROUPS, members, values

COLOURS = {"stoker": "#d9480f", "vllm": "#1971c2", "openvino": "#2f9e44", "llama.cpp": "#9c36b5"}
OTHER = "#868e96"
WIDTH, LABELS, BARS, BAR, GAP = 760, 190, 420, 16, 14


def svg(record: Record) -> str:
    parts: list[str] = []
    y = 10
    for group, title in GROUPS.items():
        names = [each.name for each in members(record, group)]
        heading = title if group != "served" else f"{title}, output tokens/s"
        has_heading = False
        for workload in WORKLOADS:
            rates = {
                name: statistics.median(found.values()) for name in names if (found := values(record, name, workload))
            }
            if not rates:
                continue
            if not has_heading:
                parts.append(_text(10, y + 14, heading, "font-weight='bold'"))
                y, has_heading = y + 26, True
            parts.append(_text(10, y + 12, workload))
            for name, rate in rates.items():
                length = BARS * rate / max(rates.values())
                colour = next((code for head, code in COLOURS.items() if name.startswith(head)), OTHER)
                parts.append(f"<rect x='{LABELS}' y='{y}' width='{length:.1f}' height='{BAR - 2}' fill='{colour}'/>")
                parts.append(_text(LABELS + length + 6, y + 12, f"{name} {rate:.1f}"))
                y += BAR
            y += GAP
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{y}' font-family='sans-serif' font-size='12'>"
    )
    return "\n".join([head, "<rect width='100%' height='100%' fill='white'/>", *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y}' {attributes}>{escape(text)}</text>"
