"""A deployment as Kubernetes objects: ConfigMap, Deployment, Service and, for several pods, a disruption budget.

On several nodes it is a StatefulSet or, if they compute one model together, a LeaderWorkerSet. With a pool, there is
also what a gateway with the inference extension needs.
"""

from __future__ import annotations

from typing import Any

from .bundle import Bundle, refused_form
from .gateway import gateway_notes, gateway_objects
from .groups import LEADER, groups, leaders, with_secret
from .nodes import refuse_one_server_for_all, replicas_on_first_node, servers_on_nodes
from .objects import budget, config_map, labels, metadata, refuse_relative_folders, service, stream
from .pod import usual_start
from .template import pod_template
from .wanted import Wanted


def kubernetes(bundle: Bundle, wanted: Wanted) -> str:
    """All objects as one YAML stream. Raises ConfigError for a deployment that pods cannot run."""
    refuse_relative_folders(bundle)
    selector = labels(wanted)
    if bundle.num_nodes > 1:
        bundle = with_secret(bundle)
        selector, workload = leaders(wanted), [groups(bundle, wanted)]
    elif wanted.num_nodes > 1:
        workload = servers_on_nodes(bundle, wanted)
    else:
        workload = [_deployment(bundle, wanted)]
    objects = [config_map(bundle, wanted), *workload, service(bundle, wanted, selector)]
    if wanted.replicas > 1 or len(workload) > 1:
        objects.append(budget(wanted))
    if wanted.pool is None:
        return stream(bundle, wanted, objects)
    objects += gateway_objects(bundle, wanted, wanted.pool, selector)
    return stream(bundle, wanted, objects, gateway_notes(bundle, wanted.pool))


def options_of_first_node(bundle: Bundle, num_nodes: int | None) -> dict[str, str]:
    """Options of the pod on the first of several nodes, for which the deployment is checked; none for one node.

    Raises ConfigError for a deployment that cannot be divided.

    Args:
        num_nodes: as it was asked for. Without it the deployment decides.
    """
    refuse_one_server_for_all(bundle.deployment)
    parallel = bundle.deployment.config.parallel
    if bundle.num_nodes > 1:
        if num_nodes not in (None, bundle.num_nodes):
            message = f"`parallel.nnodes` is {bundle.num_nodes}, and --nodes is {num_nodes}"
            raise refused_form("parallel.nnodes", bundle.deployment, message, "leave out --nodes")
        return LEADER
    if num_nodes is None or num_nodes == 1:
        return {}
    if parallel.topology.num_ranks > 1 and parallel.data_parallel_size == 1:
        return {"parallel.nnodes": str(num_nodes), **LEADER}
    return replicas_on_first_node(bundle.deployment, num_nodes)


def _update(bundle: Bundle) -> dict[str, int]:
    """The order of an update. A pod with GPUs ends first: the next one would wait for its GPUs on a full node."""
    return {"maxSurge": 0, "maxUnavailable": 1} if bundle.has_gpu else {"maxSurge": 1, "maxUnavailable": 0}


def _deployment(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(wanted),
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": labels(wanted)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _update(bundle)},
            "template": pod_template(bundle, wanted, usual_start(bundle)),
        },
    }
