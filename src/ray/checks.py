"""What a deployment may say if Ray Serve starts its replicas. Does not import Ray.

Ray Serve listens, balances and counts replicas. Options for these either are refused or have a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config import Deployment, Resolved, fetch_model, read_machine_spec, read_model_files, resolve_deployment
from ..config.diagnostics import Diagnostic, Label
from ..config.errors import ConfigError

_BALANCING = "Ray Serve distributes requests over replicas, and decides which runs where"
_BINDING = "each replica is resolved alone, so all those on one machine would be bound to the same cores"
_TLS = "the HTTP proxy of Ray Serve accepts the connections: configure TLS in front of it"
REFUSED = {
    "parallel.data_parallel_rank": _BALANCING,
    "parallel.data_parallel_start_rank": _BALANCING,
    "parallel.data_parallel_size_local": _BALANCING,
    "parallel.data_parallel_backend": _BALANCING,
    "parallel.data_parallel_hybrid_lb": _BALANCING,
    "parallel.data_parallel_external_lb": _BALANCING,
    "device.numa_bind": _BINDING,
    "device.numa_bind_nodes": _BINDING,
    "device.numa_bind_cpus": _BINDING,
    "server.uds": "the HTTP proxy of Ray Serve accepts the connections: its address is in `http_options`",
    "server.ssl_keyfile": _TLS,
    "server.ssl_certfile": _TLS,
    "server.ssl_ca_certs": _TLS,
    "server.api_server_count": "each replica has one API process: raise the number of replicas",
}
REFUSED_IF_SEVERAL = {
    "parallel.enable_expert_parallel": "replicas of Ray Serve are servers of their own, which share no experts",
    "server.responses_store": "a stored response is known to one replica only: use one replica",
}
OF_THE_PROXY = (
    "server.host",
    "server.port",
    "server.max_connections",
    "server.max_connections_per_client",
    "server.max_incomplete_header_bytes",
    "server.send_stall_timeout",
)


def check_options(deployment: Deployment, num_replicas: int) -> tuple[str, ...]:
    """Paths of the options that have no effect on Ray. Raises ConfigError with all that are refused."""
    refused = REFUSED | (REFUSED_IF_SEVERAL if num_replicas > 1 else {})
    found = [
        Diagnostic(
            code="C132",
            message=f"`{path}` cannot be used on Ray",
            path=path,
            labels=(Label(deployment.spans[path]),) if path in deployment.spans else (),
            fixes=(f"remove it: {why}",),
        )
        for path, why in refused.items()
        if _is_changed(deployment, path)
    ]
    if found:
        raise ConfigError(found)
    return tuple(path for path in OF_THE_PROXY if path in deployment.origins)


def max_replicas(options: Mapping[str, Any]) -> tuple[int, int]:
    """Maximum number of replicas, of all and on a node. options: of a Ray Serve deployment, as in `deployment_config`
    of an LLMConfig."""
    count = options.get("num_replicas", 1)
    if "autoscaling_config" in options or not isinstance(count, int):
        count = int((options.get("autoscaling_config") or {}).get("max_replicas", 1))
    return count, min(count, options.get("max_replicas_per_node") or count)


def of_one_replica(deployment: Deployment, num_on_node: int) -> Deployment:
    """The deployment as a replica resolves it, that shares cores and memory of its node with `num_on_node - 1` others.

    Unless the deployment says otherwise, a dead engine ends its replica: Ray starts another one.
    """
    config = deployment.config
    parallel = config.parallel.model_copy(update={"data_parallel_size": num_on_node})
    server = config.server
    if "server.on_engine_death" not in deployment.origins:
        server = server.model_copy(update={"on_engine_death": "exit"})
    return replace(deployment, config=config.model_copy(update={"parallel": parallel, "server": server}))


def resolve_replica(deployment: Deployment, num_on_node: int) -> Resolved:
    """Decide all values of one replica on this machine, and download the model if it is not here.

    Raises ConfigError or ModelFilesError.
    """
    machine = read_machine_spec()
    if machine.gpu is not None and not machine.gpu.is_interpreted:
        num_on_node = 1  # Ray gives each replica its own GPUs
    fetch_model(deployment)
    resolved = resolve_deployment(of_one_replica(deployment, num_on_node), read_model_files(deployment), machine)
    return resolved.replica(0)


def _is_changed(deployment: Deployment, path: str) -> bool:
    """Whether the option is written, with another value than its default."""
    section, _, name = path.partition(".")
    record = getattr(deployment.config, section)
    return path in deployment.origins and getattr(record, name) != type(record).model_fields[name].default
