"""A deployment as Kubernetes objects: ConfigMap, Deployment, Service and, for several replicas, a disruption budget.

With a pool, also what a gateway with the inference extension needs.
"""

from __future__ import annotations

from typing import Any

from .bundle import Bundle
from .gateway import gateway_notes, gateway_objects, router_labels, with_topic
from .objects import budget, config_map, labels, metadata, pod_annotations, refuse_relative_folders, service, stream
from .pod import pod, usual_start
from .wanted import Wanted


def kubernetes(bundle: Bundle, wanted: Wanted) -> str:
    """All objects as one YAML stream. Raises ConfigError for a deployment that pods cannot run."""
    refuse_relative_folders(bundle)
    selector = labels(wanted)
    objects = [config_map(bundle, wanted), _deployment(bundle, wanted), service(bundle, wanted, selector)]
    if wanted.replicas > 1:
        objects.append(budget(wanted))
    if wanted.pool is None:
        return stream(bundle, wanted, objects)
    objects += gateway_objects(bundle, wanted, wanted.pool, selector)
    return stream(bundle, wanted, objects, gateway_notes(bundle, wanted.pool))


def _deployment(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(wanted),
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": labels(wanted)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": _template(bundle, wanted),
        },
    }


def _template(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    of_pods, start = labels(wanted), usual_start(bundle)
    if wanted.pool is not None:
        of_pods |= router_labels(bundle)
        bundle, start = with_topic(bundle, start)
    return {
        "metadata": {"labels": of_pods, "annotations": pod_annotations(bundle)},
        "spec": pod(bundle, wanted, start),
    }
