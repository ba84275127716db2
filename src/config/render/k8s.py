"""A deployment as Kubernetes objects: ConfigMap, Deployment, Service and, for several replicas, a disruption budget."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from typing import Any

from ..schema.kv_events import is_bound
from ..schema.options import options
from ..yaml_writer import Commented, document, heading
from .bundle import Bundle, BundledFile, refused_folder

HOME = "/etc/stoker"
CACHE = "/var/cache/stoker"
HOST = "0.0.0.0"
USER = 10001
LOAD_LIMIT_S = 3600  # a large model over a slow network
PRE_STOP_S = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the manifest does not contain. `replicas` are pods, each with the whole model."""

    name: str
    image: str
    namespace: str | None = None
    replicas: int = 1


def kubernetes(bundle: Bundle, wanted: Wanted) -> str:
    """All objects as one YAML stream. Raises ConfigError for a model's folder that a pod cannot read."""
    for folder in bundle.folders:
        if folder.target != str(folder.source):
            fix = "name a hub id, or build the folder into the image and write its absolute path there"
            raise refused_folder(folder, "it is a folder beside the file, and a ConfigMap holds no folders", fix)
    objects = [_config_map(bundle, wanted), _deployment(bundle, wanted), _service(bundle, wanted)]
    if wanted.replicas > 1:
        objects.append(_budget(wanted))
    return _head(bundle, wanted) + "".join(f"---\n{document(each)}" for each in objects)


def _head(bundle: Bundle, wanted: Wanted) -> str:
    lines = [f"Rendered from {bundle.manifest.source.name}; render again instead of editing."]
    where = f" -n {wanted.namespace}" if wanted.namespace else ""
    if parts := _secret_parts(bundle):
        lines += ["", "Create the secrets first:", f"  kubectl create secret generic {_secret(wanted)}{where} \\"]
        lines += [f"    {part} \\" for part in parts[:-1]] + [f"    {parts[-1]}"]
    for folder in bundle.folders:
        lines += ["", f"The image, or a volume that you add, must hold {folder.target} ({folder.option})."]
    if bundle.has_gpu:
        lines += ["", "Weights and KV cache are in the GPU's memory, so none of the node's is stated."]
    elif not bundle.is_model_here:
        lines += ["", "The model's files were not here, so no memory is stated: run `engine up` or `engine plan` once"]
        lines += ["where they are, and render again."]
    return heading(*lines)


def _secret_parts(bundle: Bundle) -> list[str]:
    variables = [f'--from-literal={name}="${name}"' for name in bundle.secret_variables]
    return variables + [
        f"--from-file={shlex.quote(f'{entry.key}={bundle.beside(entry.source)}')}" for entry in bundle.secret_files
    ]


def _secret(wanted: Wanted) -> str:
    return f"{wanted.name}-secrets"


def _labels(wanted: Wanted) -> dict[str, str]:
    return {"app.kubernetes.io/name": "stoker", "app.kubernetes.io/instance": wanted.name}


def _metadata(wanted: Wanted, name: str = "") -> dict[str, Any]:
    place = {"namespace": wanted.namespace} if wanted.namespace else {}
    return {"name": name or wanted.name, **place, "labels": _labels(wanted)}


def _config_map(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(wanted, f"{wanted.name}-config"),
        "data": {entry.key: entry.text for entry in bundle.files},
    }


def _deployment(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    content = "".join(f"{entry.key}\0{entry.text}\0" for entry in bundle.files)
    checksum = hashlib.sha256(content.encode()).hexdigest()
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(wanted),
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": _labels(wanted)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {
                    "labels": _labels(wanted),
                    "annotations": Commented(
                        {"checksum/config": checksum}, "A ConfigMap that changes does not restart pods; this does."
                    ),
                },
                "spec": _pod(bundle, wanted),
            },
        },
    }


def _pod(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
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
        "containers": [_container(bundle, wanted)],
        "volumes": _volumes(bundle, wanted),
    }


def _container(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    return {
        "name": "engine",
        "image": wanted.image,
        "command": ["engine", "up", bundle.manifest.target],
        "env": _environment(bundle, wanted),
        "ports": [
            {"name": "http", "containerPort": bundle.port},
            *({"name": name, "containerPort": port} for name, port in _event_ports(bundle).items()),
        ],
        **_probes(bundle),
        "lifecycle": {
            "preStop": Commented(
                {"exec": {"command": ["sleep", str(PRE_STOP_S)]}},
                "The Service removes this pod before SIGTERM, after which no connection is accepted.",
            )
        },
        **_resources(bundle),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(bundle),
    }


def _event_ports(bundle: Bundle) -> dict[str, int]:
    """Ports that subscribers of KV cache events connect to, by name. They are of a pod, not of the Service: each pod
    publishes its own events."""
    config = bundle.deployment.config
    found: dict[str, int] = {}
    for rank in config.parallel.ranks if config.kv_events.is_publishing else ():
        events = config.kv_events.at_rank(rank)
        bound = {"kv-events": events.endpoint if is_bound(events.endpoint) else "", "kv-replay": events.replay_endpoint}
        for name, address in bound.items():
            scheme, _, port = (address or "").rpartition(":")
            if scheme.startswith("tcp://") and port.isdigit():
                found[f"{name}-{rank}" if len(config.parallel.ranks) > 1 else name] = int(port)
    return found


def _environment(bundle: Bundle, wanted: Wanted) -> list[dict[str, Any]]:
    plain = {
        options()["server.host"].variable: HOST,
        "HOME": "/tmp",
        "XDG_CACHE_HOME": CACHE,
        **bundle.variables,
    }
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": _secret(wanted), "key": name}}}
            for name in bundle.secret_variables
        ),
    ]


def _probes(bundle: Bundle) -> dict[str, Any]:
    def asked(path: str) -> dict[str, Any]:
        if bundle.wants_client_certificate:
            return {"tcpSocket": {"port": "http"}}
        scheme = {"scheme": "HTTPS"} if bundle.has_tls else {}
        return {"httpGet": {"path": path, "port": "http", **scheme}}

    return {
        "startupProbe": Commented(
            {**asked("/readyz"), "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": LOAD_LIMIT_S // 5},
            f"Up to {LOAD_LIMIT_S // 60} minutes to fetch and load the model; the other probes wait for it.",
        ),
        "readinessProbe": {**asked("/readyz"), "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2},
        "livenessProbe": {**asked("/livez"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
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
        limits["nvidia.com/gpu"] = Commented(bundle.num_replicas, "device.device: cuda")
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

    config_map = f"{wanted.name}-config"
    sources: list[dict[str, Any]] = [{"configMap": {"name": config_map, "items": items(bundle.files)}}]
    if inside := items(bundle.secret_files):
        sources.append({"secret": {"name": _secret(wanted), "items": inside}})
    volumes: list[dict[str, Any]] = [{"name": "config", "projected": {"sources": sources}}]
    if not all(map(_is_home, bundle.files)):
        volumes.append({"name": "files", "configMap": {"name": config_map}})
    if not all(map(_is_home, bundle.secret_files)):
        volumes.append({"name": "secrets", "secret": {"secretName": _secret(wanted)}})
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


def _service(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(wanted),
        "spec": {
            "selector": _labels(wanted),
            "ports": [{"name": "http", "port": bundle.port, "targetPort": "http"}],
        },
    }


def _budget(wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(wanted),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(wanted)}},
    }
