"""Kubernetes objects that several forms write, and the comments at the head of their output."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from typing import Any

from ..yaml_writer import Commented, document, heading
from .bundle import Bundle, refused_folder
from .pod import peer_ports
from .wanted import Wanted


def stream(bundle: Bundle, wanted: Wanted, objects: list[dict[str, Any]], notes: tuple[str, ...] = ()) -> str:
    """Objects as one YAML stream, after comments with what has to be done first."""
    return _head(bundle, wanted, notes) + "".join(f"---\n{document(each)}" for each in objects)


def refuse_relative_folders(bundle: Bundle) -> None:
    for folder in bundle.folders:
        if folder.target != str(folder.source):
            fix = "name a hub id, or build the folder into the image and write its absolute path there"
            raise refused_folder(folder, "it is a folder beside the file, and a ConfigMap holds no folders", fix)


def labels(wanted: Wanted) -> dict[str, str]:
    """Labels of every object. Pods are selected by them."""
    return {"app.kubernetes.io/name": "stoker", "app.kubernetes.io/instance": wanted.name}


def metadata(wanted: Wanted, name: str = "") -> dict[str, Any]:
    place = {"namespace": wanted.namespace} if wanted.namespace else {}
    return {"name": name or wanted.name, **place, "labels": labels(wanted)}


def pod_annotations(bundle: Bundle) -> Commented:
    """Checksum of the configuration, as an annotation of pods."""
    content = "".join(f"{entry.key}\0{entry.text}\0" for entry in bundle.files)
    checksum = hashlib.sha256(content.encode()).hexdigest()
    return Commented({"checksum/config": checksum}, "A ConfigMap that changes does not restart pods; this does.")


def config_map(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(wanted, wanted.config_map),
        "data": {entry.key: entry.text for entry in bundle.files},
    }


def service(bundle: Bundle, wanted: Wanted, selector: Mapping[str, str]) -> dict[str, Any]:
    """Service to which clients connect."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(wanted),
        "spec": {
            "selector": selector,
            "ports": [{"name": "http", "port": bundle.port, "targetPort": "http"}],
        },
    }


def headless_service(bundle: Bundle, wanted: Wanted, name: str) -> dict[str, Any]:
    """Gives each pod a name, and lists its ports."""
    ports = {"http": bundle.port, **peer_ports(bundle)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(wanted, name),
        "spec": {
            "clusterIP": "None",
            "selector": labels(wanted),
            "ports": [{"name": port, "port": number, "targetPort": port} for port, number in ports.items()],
        },
    }


def budget(wanted: Wanted) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(wanted),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels(wanted)}},
    }


def _head(bundle: Bundle, wanted: Wanted, notes: tuple[str, ...]) -> str:
    lines = [f"Rendered from {bundle.manifest.source.name}; render again instead of editing."]
    where = f" -n {wanted.namespace}" if wanted.namespace else ""
    if parts := _secret_parts(bundle):
        lines += ["", "Create the secrets first:", f"  kubectl create secret generic {wanted.secret}{where} \\"]
        lines += [f"    {part} \\" for part in parts[:-1]] + [f"    {parts[-1]}"]
    for folder in bundle.folders:
        lines += ["", f"The image, or a volume that you add, must hold {folder.target} ({folder.option})."]
    if bundle.has_gpu:
        lines += ["", "Weights and KV cache are in the GPU's memory, so none of the node's is stated."]
    elif not bundle.is_model_here:
        lines += ["", "The model's files were not here, so no memory is stated: run `engine up` or `engine plan` once"]
        lines += ["where they are, and render again."]
    for note in notes:
        lines += ["", *note.split("\n")]
    return heading(*lines)


def _secret_parts(bundle: Bundle) -> list[str]:
    variables = [f'--from-literal={name}="${name}"' for name in bundle.secret_variables]
    return variables + [
        f"--from-file={shlex.quote(f'{entry.key}={bundle.beside(entry.source)}')}" for entry in bundle.secret_files
    ]
