"""A deployment as Kubernetes objects: ConfigMap, Deployment, Service and, for several pods, a disruption budget.

On several nodes it is a StatefulSet. With a pool, there is also what a gateway with the inference extension needs.
"""

from __future__ import annotations

from typing import Any

from .bundle import Bundle
from .gateway import gateway_notes, gateway_objects
from .nodes import servers_on_nodes
from .objects import budget, config_map, labels, metadata, refuse_relative_folders, service, stream
from .pod import usual_start
from .template import pod_template
from .wanted import Wanted


def kubernetes(bundle: Bundle, wanted: Wanted) -> str:
    """All objects as one YAML stream. Raises ConfigError for a deployment that pods cannot run."""
    refuse_relative_folders(bundle)
    selector = labels(wanted)
    workload = servers_on_nodes(bundle, wanted) if wanted.num_nodes > 1 else [_deployment(bundle, wanted)]
    objects = [config_map(bundle, wanted), *workload, service(bundle, wanted, selector)]
    if wanted.replicas > 1 or wanted.num_nodes > 1:
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
            "template": pod_template(bundle, wanted, usual_start(bundle)),
        },
    }
