"""Pages of `engine explain` about the metrics of a running server, from their declarations."""

from __future__ import annotations

from ..config.page import Fact, Page


def metric_pages(what: str) -> list[Page]:
    """The page of a metric such as `stoker_preemptions_total`, or a list of all for `metrics`.

    Raises ModuleNotFoundError if the server's packages are not installed.
    """
    name = what.strip().lower()
    if name != "metrics" and not name.startswith("stoker_"):
        return []
    from ..engine.api import EngineStats
    from ..engine.client import EngineState
    from ..server.metrics import Metrics

    families = Metrics("model", EngineStats, lambda: EngineState.READY).described()
    names = {f"{family.name}{'_total' * (family.type == 'counter')}": family for family in families}
    if name == "metrics":
        facts = tuple(Fact(full, (family.documentation,)) for full, family in names.items())
        return [Page("list", "metrics", "metrics", "The metrics of GET /metrics, in Prometheus' text format.", facts)]
    for full, family in names.items():
        if name in (full, family.name, *(f"{family.name}_{part}" for part in ("bucket", "sum", "count"))):
            facts = (Fact("kind", (family.type,)), Fact("read", ("GET /metrics",)))
            return [Page("metric", full, full, family.documentation, facts)]
    return []
