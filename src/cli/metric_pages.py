"""Pages of `engine explain` about the metrics of a running server, from their declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.page import Fact, Page

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def metric_pages(what: str) -> list[Page]:
    """The page of a metric such as `stoker_preemptions_total`, under any of its names, or a list of all for `metrics`.

    Raises ModuleNotFoundError if the server's packages are not installed.
    """
    name = what.strip().lower()
    if name != "metrics" and not name.startswith(("stoker_", "process_", "vllm:")):
        return []
    from ..server.observe.engine_metrics import DESCRIBED_ENGINE, DESCRIBED_GPU
    from ..server.observe.metrics import Metrics

    described = Metrics("model", lambda: {0: DESCRIBED_ENGINE}, gpus=lambda: [DESCRIBED_GPU], max_loras=1).described()
    if name == "metrics":
        facts = tuple(
            Fact(_full(family.name, family), (family.documentation, *(_full(other, family) for other in others)))
            for family, others in described
        )
        return [Page("list", "metrics", "metrics", "The metrics of GET /metrics, in Prometheus' text format.", facts)]
    for family, others in described:
        names = [spelling for one in (family.name, *others) for spelling in _spellings(one, family)]
        if name in names:
            facts = (Fact("kind", (family.type,)), Fact("read", ("GET /metrics",)))
            if others:
                facts += (Fact("in vLLM", tuple(_full(other, family) for other in others)),)
            full = _full(family.name, family)
            return [Page("metric", full, full, family.documentation, facts)]
    return []


def _full(name: str, family: Metric) -> str:
    """The name that a query has."""
    return f"{name}_total" if family.type == "counter" else name


def _spellings(name: str, family: Metric) -> list[str]:
    return [name, _full(name, family), *(f"{name}_{part}" for part in ("bucket", "sum", "count"))]
