"""The template of pods that a Kubernetes workload starts: the pod, its labels, and what routers read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .bundle import Bundle
from .gateway import router_labels
from .objects import labels, pod_annotations
from .pod import Start, pod
from .pod_address import with_topic, with_transfer_address
from .wanted import Wanted


def pod_template(
    bundle: Bundle, wanted: Wanted, start: Start, more_labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    of_pods: dict[str, Any] = labels(wanted) | dict(more_labels or {})
    if wanted.pool is not None and not start.is_headless:
        of_pods |= router_labels(bundle)
        bundle, start = with_topic(bundle, start)
    bundle, start = with_transfer_address(bundle, start)
    return {
        "metadata": {"labels": of_pods, "annotations": pod_annotations(bundle)},
        "spec": pod(bundle, wanted, start),
    }


def on_nodes_of_their_own(template: dict[str, Any], wanted: Wanted) -> dict[str, Any]:
    """The template, with one pod on a node."""
    term = {"labelSelector": {"matchLabels": labels(wanted)}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return {**template, "spec": {"affinity": rule, **template["spec"]}}
