"""Rules about traces, metrics and events. The format of a rule: ../rule.py."""

from __future__ import annotations

from ..rule import Rule, StatedRule

RULES: tuple[Rule, ...] = (
    Rule(
        id="R184",
        title="detailed traces need a collector",
        fields=("observability.collect_detailed_traces", "observability.otlp_traces_endpoint"),
        is_broken=lambda v: bool(v.collect_detailed_traces) and v.otlp_traces_endpoint is None,
        message="`observability.collect_detailed_traces` has no effect: there is no "
        "`observability.otlp_traces_endpoint`",
        why="Traces are sent to a collector and stored nowhere else.",
        fixes=("set `otlp_traces_endpoint`, or remove `collect_detailed_traces`",),
    ),
)

STATED: tuple[StatedRule, ...] = (
    StatedRule(
        "R010",
        "modules are separated by commas",
        ("observability.collect_detailed_traces",),
        "`model,worker` on the command line or in a variable, a list in a file; other values are an error.",
    ),
    StatedRule(
        "R011",
        "model measures the forward pass, worker the whole step",
        ("observability.collect_detailed_traces",),
        "`model` adds the times of prefill and decode to a span, `worker` child spans for queue, prefill and decode.",
    ),
    StatedRule(
        "R185",
        "hidden metrics can be enabled for one release",
        ("observability.show_hidden_metrics_for_version",),
        "Cannot occur: no release has hidden a metric.",
    ),
    StatedRule(
        "R186",
        "events about blocks need the prefix cache",
        ("kv_events.enable_kv_cache_events", "cache.enable_prefix_caching"),
        "Cannot occur: events are refused.",
    ),
)
