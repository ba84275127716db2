"""The names that metrics have in vLLM, for dashboards, autoscalers and routers that read those."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

_LABELS = {"finish_reason": "finished_reason", "num_blocks": "num_gpu_blocks"}  # ours -> vLLM's


class VllmNames:
    """Metric family -> its names in vLLM, as declared with the family; and families under those names."""

    def __init__(self, *, is_exported: bool = True, has_hidden: bool = False, rank: int = 0) -> None:
        """
        has_hidden: include names that vLLM has hidden.
        rank: of the first replica, under which vLLM's metrics have what the server counts.
        """
        self._rank = str(rank)
        self._is_exported = is_exported
        self.has_hidden = is_exported and has_hidden
        self._names: dict[str, tuple[str, ...]] = {}
        self._buckets: dict[str, frozenset[float]] = {}

    def declare(
        self,
        family: str,
        names: tuple[str, ...],
        buckets: Iterable[float] | None = None,
        hidden: tuple[str, ...] = (),
    ) -> None:
        """buckets: upper limits of the buckets that a histogram has in vLLM. hidden: names that vLLM has hidden."""
        self._names[family] = names + hidden if self.has_hidden else names
        if buckets is not None:
            self._buckets[family] = frozenset((*buckets, math.inf))

    def of(self, family: str) -> tuple[str, ...]:
        """Names of a family in vLLM, without the ending of the samples, such as `_total`."""
        return tuple(f"vllm:{name}" for name in self._names.get(family, ()))

    def copies(self, family: Metric) -> Iterator[Metric]:
        """The family under each of its names in vLLM."""
        if not self._is_exported:
            return
        buckets = self._buckets.get(family.name)
        for name in self.of(family.name):
            copy = Metric(name, f"{family.documentation} As {family.name}.", family.type)
            for sample in family.samples:
                if buckets is not None and "le" in sample.labels and float(sample.labels["le"]) not in buckets:
                    continue
                labels = {_LABELS.get(label, label): value for label, value in sample.labels.items()}
                full = name + sample.name.removeprefix(family.name)
                copy.samples.append(Sample(full, {"engine": self._rank, **labels}, sample.value))
            yield copy
