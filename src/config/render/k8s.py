"""A deployment as Kubernetes objects: ConfigMap, Deployment, Service and, for several replicas, a disruption budget."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from typing import Any

from ..schema.options import options
from .luggage import Carried, Luggage, refused_folder
from .text import Noted, comments, document

HOME = "/etc/stoker"
CACHE = "/var/cache/stoker"
HOST = "0.0.0.0"
USER = 10001
LOAD_LIMIT_S = 3600  # a large model over a slow network
PRE_STOP_S = 5


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the file does not say. `replicas` are pods that each hold the whole model."""

    name: str
    image: str
    namespace: str | None = None
    replicas: int = 1


def kubernetes(luggage: Luggage, wanted: Wanted) -> str:
    """All objects as one YAML stream. Raises ConfigError for a model's folder that a pod would not have."""
    for folder in luggage.folders:
        if folder.target != str(folder.source):
            fix = "name a hub id, or build the folder into the image and write its absolute path there"
            raise refused_folder(folder, "it is a folder beside the file, and a ConfigMap holds no folders", fix)
    objects = [_config_map(luggage, wanted), _deployment(luggage, wanted), _service(luggage, wanted)]
    if wanted.replicas > 1:
        objects.append(_budget(wanted))
    return _head(luggage, wanted) + "".join(f"---\n{document(each)}" for each in objects)


def _head(luggage: Luggage, wanted: Wanted) -> str:
    lines = [f"Rendered from {luggage.manifest.source.name}; render again instead of editing."]
    where = f" -n {wanted.namespace}" if wanted.namespace else ""
    if parts := _secret_parts(luggage):
        lines += ["", "Make the secrets first:", f"  kubectl create secret generic {_secret(wanted)}{where} \\"]
        lines += [f"    {part} \\" for part in parts[:-1]] + [f"    {parts[-1]}"]
    for folder in luggage.folders:
        lines += ["", f"The image, or a volume that you add, must hold {folder.target} ({folder.option})."]
    if luggage.has_gpu:
        lines += ["", "Weights and KV cache are in the GPU's memory, so none of the node's is stated."]
    elif not luggage.is_model_here:
        lines += ["", "The model's files were not here, so no memory is stated: run `engine up` or `engine plan` once"]
        lines += ["where they are, and render again."]
    return comments(*lines)


def _secret_parts(luggage: Luggage) -> list[str]:
    variables = [f'--from-literal={name}="${name}"' for name in luggage.secret_variables]
    return variables + [
        f"--from-file={shlex.quote(f'{entry.key}={luggage.beside(entry.source)}')}" for entry in luggage.secret_files
    ]


def _secret(wanted: Wanted) -> str:
    return f"{wanted.name}-secrets"


def _labels(wanted: Wanted) -> dict[str, str]:
    return {"app.kubernetes.io/name": "stoker", "app.kubernetes.io/instance": wanted.name}


def _metadata(wanted: Wanted, name: str = "") -> dict[str, Any]:
    place = {"namespace": wanted.namespace} if wanted.namespace else {}
    return {"name": name or wanted.name, **place, "labels": _labels(wanted)}


def _config_map(luggage: Luggage, wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(wanted, f"{wanted.name}-config"),
        "data": {entry.key: entry.text for entry in luggage.files},
    }


def _deployment(luggage: Luggage, wanted: Wanted) -> dict[str, Any]:
    content = "".join(f"{entry.key}\0{entry.text}\0" for entry in luggage.files)
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
                    "annotations": Noted(
                        {"checksum/config": checksum}, "A ConfigMap that changes does not restart pods; this does."
                    ),
                },
                "spec": _pod(luggage, wanted),
            },
        },
    }


def _pod(luggage: Luggage, wanted: Wanted) -> dict[str, Any]:
    drain = options()["server.drain_timeout"].show(luggage.deployment.server.drain_timeout)
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": Noted(False, "Else a Service called `engine` sets ENGINE_ variables in every pod."),
        "terminationGracePeriodSeconds": Noted(
            luggage.grace_s + PRE_STOP_S,
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
        "containers": [_container(luggage, wanted)],
        "volumes": _volumes(luggage, wanted),
    }


def _container(luggage: Luggage, wanted: Wanted) -> dict[str, Any]:
    return {
        "name": "engine",
        "image": wanted.image,
        "command": ["engine", "up", luggage.manifest.target],
        "env": _environment(luggage, wanted),
        "ports": [{"name": "http", "containerPort": luggage.port}],
        **_probes(luggage),
        "lifecycle": {
            "preStop": Noted(
                {"exec": {"command": ["sleep", str(PRE_STOP_S)]}},
                "After SIGTERM no connection is accepted; until then the Service forgets this pod.",
            )
        },
        **_resources(luggage),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(luggage),
    }


def _environment(luggage: Luggage, wanted: Wanted) -> list[dict[str, Any]]:
    plain = {
        options()["server.host"].variable: HOST,
        "HOME": "/tmp",
        "XDG_CACHE_HOME": CACHE,
        **luggage.variables,
    }
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": _secret(wanted), "key": name}}}
            for name in luggage.secret_variables
        ),
    ]


def _probes(luggage: Luggage) -> dict[str, Any]:
    def asked(path: str) -> dict[str, Any]:
        if luggage.wants_client_certificate:
            return {"tcpSocket": {"port": "http"}}
        scheme = {"scheme": "HTTPS"} if luggage.has_tls else {}
        return {"httpGet": {"path": path, "port": "http", **scheme}}

    return {
        "startupProbe": Noted(
            {**asked("/readyz"), "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": LOAD_LIMIT_S // 5},
            f"Up to {LOAD_LIMIT_S // 60} minutes to fetch and load the model; the other probes wait for it.",
        ),
        "readinessProbe": {**asked("/readyz"), "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2},
        "livenessProbe": {**asked("/livez"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
    }


def _resources(luggage: Luggage) -> dict[str, Any]:
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    if luggage.num_threads is not None:
        requests["cpu"] = Noted(str(luggage.num_threads), "device.num_threads")
    if luggage.memory_bytes is not None:
        memory = f"{luggage.memory_bytes >> 20}Mi"
        requests["memory"] = Noted(memory, "Weights, KV cache at cache.gpu_memory_utilization, and 1 GiB for the rest.")
        limits["memory"] = memory
    if luggage.has_gpu:
        limits["nvidia.com/gpu"] = Noted(1, "device.device: cuda")
    found = {name: value for name, value in (("requests", requests), ("limits", limits)) if value}
    return {"resources": found} if found else {}


def _mounts(luggage: Luggage) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [{"name": "config", "mountPath": HOME, "readOnly": True}]
    for entry in (*luggage.files, *luggage.secret_files):
        if not _is_home(entry):
            part = {"mountPath": entry.target, "subPath": entry.key, "readOnly": True}
            mounts.append({"name": "secrets" if entry in luggage.secret_files else "files", **part})
    return [
        *mounts,
        {"name": "cache", "mountPath": CACHE},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]


def _is_home(entry: Carried) -> bool:
    return entry.target.startswith(f"{HOME}/")


def _volumes(luggage: Luggage, wanted: Wanted) -> list[dict[str, Any]]:
    def items(entries: tuple[Carried, ...]) -> list[dict[str, Any]]:
        return [
            {"key": entry.key, "path": entry.target.removeprefix(f"{HOME}/")} for entry in entries if _is_home(entry)
        ]

    config_map = f"{wanted.name}-config"
    sources: list[dict[str, Any]] = [{"configMap": {"name": config_map, "items": items(luggage.files)}}]
    if inside := items(luggage.secret_files):
        sources.append({"secret": {"name": _secret(wanted), "items": inside}})
    volumes: list[dict[str, Any]] = [{"name": "config", "projected": {"sources": sources}}]
    if not all(map(_is_home, luggage.files)):
        volumes.append({"name": "files", "configMap": {"name": config_map}})
    if not all(map(_is_home, luggage.secret_files)):
        volumes.append({"name": "secrets", "secret": {"secretName": _secret(wanted)}})
    return [
        *volumes,
        {
            "name": "cache",
            "emptyDir": Noted({}, "Downloaded models; a PersistentVolumeClaim in its place keeps them."),
        },
        {"name": "tmp", "emptyDir": {}},
        {
            "name": "shm",
            "emptyDir": Noted(
                {"medium": "Memory", "sizeLimit": "1Gi"}, "A container's own /dev/shm is 64 MiB, too small for torch."
            ),
        },
    ]


def _service(luggage: Luggage, wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(wanted),
        "spec": {
            "selector": _labels(wanted),
            "ports": [{"name": "http", "port": luggage.port, "targetPort": "http"}],
        },
    }


def _budget(wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(wanted),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(wanted)}},
    }
