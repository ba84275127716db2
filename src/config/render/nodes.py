"""One server on each of several nodes, each with its share of the replicas; one Service for all.

The servers do not communicate: a StatefulSet numbers them, and from its number each derives the ranks of its replicas.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from ..deployment import Deployment
from ..schema.options import options
from .bundle import Bundle, refused_form
from .objects import headless_service, labels, metadata
from .pod import Start, event_addresses
from .template import on_nodes_of_their_own, pod_template
from .wanted import Wanted

_FIRST = "parallel.data_parallel_start_rank"
_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"  # set since Kubernetes 1.28


def refuse_one_server_for_all(deployment: Deployment) -> None:
    """Raise ConfigError for a file of one machine of several that have one API: its pods would not find each other."""
    if deployment.config.parallel.data_parallel_address is not None:
        message = "`parallel.data_parallel_address` is written; pods on several nodes are rendered as a server on each"
        fix = "remove it, and render with --nodes; the Service distributes requests over the servers"
        raise refused_form("parallel.data_parallel_address", deployment, message, fix)


def replicas_on_first_node(deployment: Deployment, num_nodes: int) -> dict[str, str]:
    """Options of the server with the first ranks. Raises ConfigError for replicas that cannot be shared equally."""
    parallel = deployment.config.parallel
    if parallel.data_parallel_rank is not None:
        message = f"each of {num_nodes} servers has ranks of its own, and `parallel.data_parallel_rank` is written"
        raise refused_form("parallel.data_parallel_rank", deployment, message, "remove `data_parallel_rank`")
    num_replicas = parallel.data_parallel_size
    if num_replicas % num_nodes:
        message = f"`parallel.data_parallel_size` is {num_replicas}, which {num_nodes} nodes cannot share equally"
        fix = f"write a multiple of {num_nodes}; or leave out --nodes, and use --replicas for servers without ranks"
        raise refused_form("parallel.data_parallel_size", deployment, message, fix)
    on_each = num_replicas // num_nodes
    written = parallel.data_parallel_size_local
    if parallel.data_parallel_hybrid_lb and written not in (None, on_each):
        message = (
            f"`parallel.data_parallel_size_local` is {written}, and each of {num_nodes} nodes has {on_each} replicas"
        )
        raise refused_form("parallel.data_parallel_size_local", deployment, message, "remove it: --nodes sets it")
    return {
        "parallel.data_parallel_hybrid_lb": "true",
        "parallel.data_parallel_size_local": str(on_each),
        _FIRST: "0",
    }


def servers_on_nodes(bundle: Bundle, wanted: Wanted) -> list[dict[str, Any]]:
    """The StatefulSet, and the Service that gives its pods names. `bundle` is the first node's."""
    name = f"{wanted.name}-nodes"
    start = Start(("sh", "-c"), (_script(bundle, wanted.num_nodes),), fields={"NODE_INDEX": _INDEX})
    settings = {path: value for path, value in bundle.settings.items() if path != _FIRST}
    template = pod_template(replace(bundle, settings=settings), wanted, start)
    workload = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(wanted),
        "spec": {
            "replicas": wanted.num_nodes,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels(wanted)},
            "template": on_nodes_of_their_own(template, wanted),
        },
    }
    return [workload, headless_service(bundle, wanted, name)]


def _script(bundle: Bundle, num_nodes: int) -> str:
    """Shell commands that start the server of a node.

    A server adds the rank to all ports but that of the API. Here it is subtracted before: all pods have the same ones.
    """
    num_replicas = bundle.num_replicas
    steps = [f"first=$((NODE_INDEX * {num_replicas}))", f"export {options()[_FIRST].variable}=$first"]
    for path, (host, port) in _ports(bundle).items():
        if port <= num_replicas * (num_nodes - 1):
            message = f"the port of `{path}` is at most the rank of the first replica on the last node"
            raise refused_form(path, bundle.deployment, message, "write a larger port")
        steps.append(f'export {options()[path].variable}={host}"$(({port} - first))"')
    return " && ".join([*steps, f"exec engine up {shlex.quote(bundle.manifest.target)}"])


def _ports(bundle: Bundle) -> dict[str, tuple[str, int]]:
    """What precedes a port, for the shell, and the port, by option. Only ports that others connect to are included."""
    config = bundle.deployment.config
    found = {path: (shlex.quote(host), port) for path, (host, port) in event_addresses(config.kv_events).items()}
    if config.kv_transfer.is_between_engines:
        found["kv_transfer.kv_port"] = ("", config.kv_transfer.kv_port)
    return found
