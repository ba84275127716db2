"""The pod of a server: its container, probes, resources and volumes. What runs pods is decided elsewhere.

Each form of `engine render` that writes pods takes this one and changes what it must.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..load_limit import LOAD_LIMIT_S
from ..schema.kv_events import KVEventsConfig, is_bound
from ..schema.kv_transfer import KVTransferConfig
from ..schema.options import options
from ..yaml_writer import Commented
from .bundle import Bundle, BundledFile
from .wanted import Wanted

HOME = "/etc/stoker"
CACHE = "/var/cache/stoker"
HOST = "0.0.0.0"
USER = 10001
PRE_STOP_S = 5


@dataclass(frozen=True, slots=True)
class Start:
    """How a container starts.

    Attributes:
        fields: variables that hold fields of the pod, by name; other variables can refer to them.
        is_headless: whether it answers nothing but probes, and these without TLS.
    """

    command: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    is_headless: bool = False


def usual_start(bundle: Bundle) -> Start:
    return Start(("engine", "up", bundle.manifest.target))


def pod(bundle: Bundle, wanted: Wanted, start: Start, container: str = "engine") -> dict[str, Any]:
    """The specification of a pod with one container. `container` is its name."""
    drain = options()["server.drain_timeout"].show(bundle.deployment.server.drain_timeout)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": Commented(False, "Else a Service called `engine` sets ENGINE_ variables in every pod."),
        "terminationGracePeriodSeconds": Commented(
            bundle.grace_s + PRE_STOP_S,
            f"server.drain_timeout {drain}, {PRE_STOP_S} s of preStop, and a margin: longer than the drain, or\n"
            "requests under way are killed.",
        ),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{"name": container, **_container(bundle, wanted, start)}],
        "volumes": _volumes(bundle, wanted),
    }


def _container(bundle: Bundle, wanted: Wanted, start: Start) -> dict[str, Any]:
    arguments = {"args": list(start.arguments)} if start.arguments else {}
    return {
        "image": wanted.image,
        "command": list(start.command),
        **arguments,
        "env": _environment(bundle, wanted, start),
        **(_of_a_headless_node(bundle) if start.is_headless else _of_an_api(bundle)),
        **_resources(bundle),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], **_added(bundle)},
        },
        "volumeMounts": _mounts(bundle),
    }


def _added(bundle: Bundle) -> dict[str, Any]:
    added = Commented(["SYS_NICE"], "device.numa_bind: with it the seccomp profile allows set_mempolicy.")
    return {"add": added} if bundle.is_bound else {}


def _of_an_api(bundle: Bundle) -> dict[str, Any]:
    return {
        "ports": [
            {"name": name, "containerPort": port} for name, port in {"http": bundle.port, **peer_ports(bundle)}.items()
        ],
        **_probes_of_an_api(bundle),
        "lifecycle": {
            "preStop": Commented(
                {"exec": {"command": ["sleep", str(PRE_STOP_S)]}},
                "The Service removes this pod before SIGTERM, after which no connection is accepted.",
            )
        },
    }


def peer_ports(bundle: Bundle) -> dict[str, int]:
    """Ports for subscribers of KV cache events, and for engines that read KV blocks, by name.

    They are of a pod, not of the Service of clients: each pod has its own cache.
    """
    config = bundle.deployment.config
    ranks = config.parallel.topology.replicas
    found: dict[str, int] = {}
    for rank in ranks:
        ports = {**_event_ports(config.kv_events.at_rank(rank)), **_transfer_port(config.kv_transfer, rank)}
        found |= {f"{name}-{rank}" if len(ranks) > 1 else name: port for name, port in ports.items()}
    return found


def event_addresses(events: KVEventsConfig) -> dict[str, tuple[str, int]]:
    """Address that subscribers connect to, up to its port, and the port, by option. Only TCP with a fixed port."""
    if not events.is_publishing:
        return {}
    bound = {"kv_events.endpoint": events.endpoint if is_bound(events.endpoint) else ""}
    bound["kv_events.replay_endpoint"] = events.replay_endpoint or ""
    parts = {path: address.rpartition(":") for path, address in bound.items() if address.startswith("tcp://")}
    return {path: (f"{host}:", int(port)) for path, (host, _, port) in parts.items() if port.isdigit()}


def _event_ports(events: KVEventsConfig) -> dict[str, int]:
    names = {"kv_events.endpoint": "kv-events", "kv_events.replay_endpoint": "kv-replay"}
    return {names[path]: port for path, (_, port) in event_addresses(events).items()}


def _transfer_port(transfer: KVTransferConfig, rank: int) -> dict[str, int]:
    is_read = transfer.is_between_engines and transfer.writes
    return {"kv-transfer": transfer.port_at_rank(rank)} if is_read else {}


def _environment(bundle: Bundle, wanted: Wanted, start: Start) -> list[dict[str, Any]]:
    plain = {
        **{options()[path].variable: value for path, value in bundle.settings.items()},
        "HOME": "/tmp",
        "XDG_CACHE_HOME": CACHE,
        **bundle.variables,
    }
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in start.fields.items()),
        *({"name": name, "value": value} for name, value in plain.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": wanted.secret, "key": name}}}
            for name in bundle.secret_variables
        ),
    ]


def _of_a_headless_node(bundle: Bundle) -> dict[str, Any]:
    def asked(path: str) -> dict[str, Any]:
        return {"httpGet": {"path": path, "port": "http", "scheme": "HTTP"}}

    return {
        "ports": [{"name": "http", "containerPort": bundle.port}],
        **_probes(alive=asked("/livez"), ready=asked("/readyz"), started=asked("/livez")),
    }


def _probes_of_an_api(bundle: Bundle) -> dict[str, Any]:
    def asked(path: str) -> dict[str, Any]:
        if bundle.wants_client_certificate:
            return {"tcpSocket": {"port": "http"}}
        return {"httpGet": {"path": path, "port": "http", "scheme": "HTTPS" if bundle.has_tls else "HTTP"}}

    return _probes(alive=asked("/livez"), ready=asked("/readyz"), started=asked("/readyz"))


def _probes(alive: dict[str, Any], ready: dict[str, Any], started: dict[str, Any]) -> dict[str, Any]:
    return {
        "startupProbe": Commented(
            {**started, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": LOAD_LIMIT_S // 5},
            f"Up to {LOAD_LIMIT_S // 60} minutes to fetch and load the model; the other probes wait for it.",
        ),
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2},
        "livenessProbe": {**alive, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
    }


def _resources(bundle: Bundle) -> dict[str, Any]:
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    if bundle.num_threads is not None:
        requests["cpu"] = Commented(str(bundle.num_threads), "device.num_threads")
    if bundle.memory_bytes is not None:
        memory = f"{bundle.memory_bytes >> 20}Mi"
        requests["memory"] = Commented(
            memory, "Weights, KV cache at cache.gpu_memory_utilization, and 1 GiB for the rest."
        )
        limits["memory"] = memory
    if bundle.has_gpu:
        limits["nvidia.com/gpu"] = Commented(bundle.num_processes, "device.device: cuda")
    found = {name: value for name, value in (("requests", requests), ("limits", limits)) if value}
    return {"resources": found} if found else {}


def _mounts(bundle: Bundle) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"name": "config", "mountPath": HOME, "readOnly": True}]
    for entry in (*bundle.files, *bundle.secret_files):
        if not _is_home(entry):
            part = {"mountPath": entry.target, "subPath": entry.key, "readOnly": True}
            mounts.append({"name": "secrets" if entry in bundle.secret_files else "files", **part})
    return [
        *mounts,
        {"name": "cache", "mountPath": CACHE},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]


def _is_home(entry: BundledFile) -> bool:
    return entry.target.startswith(f"{HOME}/")


def _volumes(bundle: Bundle, wanted: Wanted) -> list[dict[str, Any]]:
    def items(entries: tuple[BundledFile, ...]) -> list[dict[str, Any]]:
        return [
            {"key": entry.key, "path": entry.target.removeprefix(f"{HOME}/")} for entry in entries if _is_home(entry)
        ]

    sources: list[dict[str, Any]] = [{"configMap": {"name": wanted.config_map, "items": items(bundle.files)}}]
    if inside := items(bundle.secret_files):
        sources.append({"secret": {"name": wanted.secret, "items": inside}})
    volumes: list[dict[str, Any]] = [{"name": "config", "projected": {"sources": sources}}]
    if not all(map(_is_home, bundle.files)):
        volumes.append({"name": "files", "configMap": {"name": wanted.config_map}})
    if not all(map(_is_home, bundle.secret_files)):
        volumes.append({"name": "secrets", "secret": {"secretName": wanted.secret}})
    return [
        *volumes,
        {
            "name": "cache",
            "emptyDir": Commented(
                {}, "Downloaded models; a PersistentVolumeClaim keeps them. Kernels are in the image."
            ),
        },
        {"name": "tmp", "emptyDir": {}},
        {
            "name": "shm",
            "emptyDir": Commented(
                {"medium": "Memory", "sizeLimit": "1Gi"}, "A container's own /dev/shm is 64 MiB, too small for torch."
            ),
        },
    ]
