"""Rows of a plan about what fits, how fast it is, and what would help."""

from __future__ import annotations

from ...config.plan.plan import Plan


def capacity_rows(plan: Plan) -> list[tuple[str, str]]:
    found, ask = plan.capacity, plan.ask
    if not plan.model.spec.generates:
        return [("in a step", f"{ask.max_num_seqs} texts, {ask.max_num_batched_tokens} tokens together")]
    if not found.sequences:
        return []
    longest = list(found.longest.items())
    return [
        ("context", "  ".join(f"{length:>8}" for length in found.sequences)),
        ("sequences", "  ".join(f"{count:>8}" for count in found.sequences.values())),
        ("", ""),
        ("sequences", "  ".join(f"{count:>8}" for count, _ in longest)),
        ("context each", "  ".join(f"{length:>8}" for _, length in longest)),
    ]


def speed_rows(plan: Plan) -> list[tuple[str, str]]:
    speed = plan.speed
    if speed is None:
        return []
    prompts = f"{_rate(speed.prefill)} tokens/s"
    if not plan.model.spec.generates:
        return [("texts", prompts)]
    at = f"at {speed.context} tokens of context"
    return [
        ("decode", f"{_rate(speed.decode_one)} tokens/s, one sequence {at}"),
        ("", f"{_rate(speed.decode_all)} tokens/s, {speed.num_seqs} sequences together"),
        ("prefill", prompts),
    ]


def change_rows(plan: Plan) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for number, change in enumerate(plan.changes, 1):
        here = "" if change.is_in_build else " [not in this build]"
        rows += [(f"{number}.", f"{change.what}{here}"), ("", f"price: {change.price}"), ("", change.outcome)]
    if not rows and plan.estimate.status == "does not fit":
        rows.append(("", "no single change that was tried makes it fit: use a smaller model"))
    return rows


def _rate(rate: tuple[float, float]) -> str:
    return f"{_round(rate[0])} to {_round(rate[1])}"


def _round(number: float) -> str:
    if number < 10:
        return f"{number:.1f}"
    scale = 10 ** (len(str(int(number))) - 2)
    return f"{round(number / scale) * scale:,}"
