"""A deployment as a compose file with one service. Paths in it are relative to the manifest's folder."""

from __future__ import annotations

from typing import Any

from ..yaml_writer import Commented, document, heading
from .bundle import Bundle, BundledFile
from .pod import CACHE, HOST, USER
from .wanted import Wanted

_PROBE = "import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/readyz', timeout=3)"
_TLS_PROBE = (
    "import ssl, urllib.request as u; "
    "u.urlopen('https://127.0.0.1:{port}/readyz', timeout=3, context=ssl._create_unverified_context())"
)
_SOCKET_PROBE = "import socket; socket.create_connection(('127.0.0.1', {port}), 3)"


def compose(bundle: Bundle, wanted: Wanted) -> str:
    lines = [
        f"Rendered from {bundle.manifest.source.name}; render again instead of editing.",
        f"Keep it beside {bundle.manifest.source.name}: docker compose -f FILE up --wait",
    ]
    if not bundle.is_model_here and not bundle.has_gpu:
        lines += ["The model's files were not here, so no memory limit is set."]
    record: dict[str, Any] = {
        "services": {wanted.name: _service(bundle, wanted)},
        "configs": {entry.key: {"file": bundle.beside(entry.source)} for entry in bundle.files},
    }
    if bundle.secret_files:
        record["secrets"] = {entry.key: {"file": bundle.beside(entry.source)} for entry in bundle.secret_files}
    record["volumes"] = {"cache": {}}
    return heading(*lines) + document(record)


def _service(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    environment = {
        "ENGINE__SERVER__HOST": HOST,
        "HOME": "/tmp",
        "XDG_CACHE_HOME": CACHE,
        **{name: value.replace("$", "$$") for name, value in bundle.variables.items()},
        **{name: f"${{{name}:?set {name}}}" for name in bundle.secret_variables},
    }
    service: dict[str, Any] = {
        "image": wanted.image,
        "entrypoint": ["engine"],
        "command": ["up", bundle.manifest.target],
        "environment": environment,
        "ports": Commented(
            [_port(bundle.port, wanted.replicas)],
            "This machine only; `host_ip: 0.0.0.0` serves the network.",
        ),
        "configs": [_mount(entry) for entry in bundle.files],
    }
    if bundle.secret_files:
        service["secrets"] = [_mount(entry) for entry in bundle.secret_files]
    service |= {
        "volumes": _volumes(bundle),
        "healthcheck": {
            "test": ["CMD", "python3", "-c", _probe(bundle)],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": Commented("1h", "Time to fetch and load the model; no failure counts before."),
        },
        "stop_grace_period": Commented(
            f"{bundle.grace_s}s", "server.drain_timeout and a margin: longer than the drain, or requests are killed."
        ),
        "restart": "on-failure:5",
        "user": f"{USER}:{USER}",
        "read_only": True,
        "tmpfs": ["/tmp:exec"],
        "cap_drop": ["ALL"],
        **_added(bundle),
        "security_opt": ["no-new-privileges:true"],
        "shm_size": "1gb",
    }
    if bundle.memory_bytes is not None:
        service["mem_limit"] = Commented(
            f"{bundle.memory_bytes >> 20}m",
            "Weights, KV cache at cache.gpu_memory_utilization, and 1 GiB for the rest.",
        )
    if bundle.num_threads is not None:
        service["cpus"] = Commented(float(bundle.num_threads), "device.num_threads")
    deploy: dict[str, Any] = {"replicas": wanted.replicas} if wanted.replicas > 1 else {}
    if bundle.has_gpu:
        gpu = {"driver": "nvidia", "count": bundle.num_processes, "capabilities": ["gpu"]}
        deploy["resources"] = {"reservations": {"devices": Commented([gpu], "device.device: cuda")}}
    if deploy:
        service["deploy"] = deploy
    return service


def _added(bundle: Bundle) -> dict[str, Any]:
    added = Commented(["SYS_NICE"], "device.numa_bind: with it the seccomp profile allows set_mempolicy.")
    return {"cap_add": added} if bundle.is_bound else {}


def _port(port: int, replicas: int) -> dict[str, Any]:
    """Replicas cannot share one port of the host: each is given a free one."""
    published = {"published": str(port)} if replicas == 1 else {}
    return {"target": port, **published, "host_ip": "127.0.0.1", "protocol": "tcp"}


def _mount(entry: BundledFile) -> dict[str, Any]:
    return {"source": entry.key, "target": entry.target}


def _volumes(bundle: Bundle) -> list[dict[str, Any]]:
    folders = [
        {"type": "bind", "source": bundle.beside(folder.source), "target": folder.target, "read_only": True}
        for folder in bundle.folders
    ]
    return [*folders, {"type": "volume", "source": "cache", "target": CACHE}]


def _probe(bundle: Bundle) -> str:
    if bundle.wants_client_certificate:
        text = _SOCKET_PROBE
    else:
        text = _TLS_PROBE if bundle.has_tls else _PROBE
    return text.format(port=bundle.port)
