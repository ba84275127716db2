"""Metrics that the server counts itself: declared once, with their names in vLLM, in a registry of this process."""

from __future__ import annotations

import os
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from ...config.schema.observability import BucketFamily, ObservabilityConfig
from .vllm_names import VllmNames

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # variable of the library, set before the process starts


class Declared:
    """Each metric has the served model's name as a label, unless it is declared with other labels."""

    def __init__(self, model_name: str, settings: ObservabilityConfig, vllm_names: VllmNames) -> None:
        self._model, self._settings, self._vllm_names = model_name, settings, vllm_names
        self._registry = CollectorRegistry()
        # The library stores the values of several API processes in files, and this collector adds them up.
        self._summed = MultiProcessCollector(None) if SHARED_FOLDER in os.environ else None  # type: ignore[no-untyped-call]
        # This collector knows only this API process: with several, a scrape reads any one of them.
        ProcessCollector(registry=self._registry)

    def counter(self, name: str, help_text: str, *, vllm: tuple[str, ...] = ()) -> Counter:
        return self.labelled(name, help_text, "model_name", vllm=vllm).labels(self._model)

    def labelled(self, name: str, help_text: str, *labels: str, vllm: tuple[str, ...] = ()) -> Counter:
        """A counter with these labels only."""
        self._vllm_names.declare(f"stoker_{name}", vllm)
        return Counter(f"stoker_{name}", help_text, labels, registry=self._registry)

    def histogram(
        self,
        buckets_of: BucketFamily,
        name: str,
        help_text: str,
        buckets: Iterable[float],
        vllm_buckets: Iterable[float],
        *,
        vllm: tuple[str, ...] = (),
        hidden: tuple[str, ...] = (),
    ) -> Histogram:
        """buckets_of: the option that replaces both kinds of buckets. hidden: names that vLLM has hidden."""
        vllm_buckets = self._settings.buckets(buckets_of, vllm_buckets)
        both = sorted({*self._settings.buckets(buckets_of, buckets), *vllm_buckets})
        self._vllm_names.declare(f"stoker_{name}", vllm, vllm_buckets, hidden)
        family = Histogram(f"stoker_{name}", help_text, ("model_name",), registry=self._registry, buckets=both)
        return family.labels(self._model)

    def collect(self) -> Iterable[Metric]:
        """All families, with what the other API processes have counted."""
        if self._summed is None:
            return self._registry.collect()
        families: Iterable[Metric] = self._summed.collect()  # type: ignore[no-untyped-call]
        return families

    def total(self, name: str) -> float | None:
        """The sum of a family over all API processes; None with one process, which knows its own counts."""
        if self._summed is None:
            return None
        family = next((each for each in self.collect() if each.name == f"stoker_{name}"), None)
        return 0.0 if family is None else sum(sample.value for sample in family.samples)
