"""A deployment as an LLMInferenceService of KServe (serving.kserve.io/v1alpha1), and its ConfigMap.

KServe merges the pod with its own template, made for another engine: the container has the name that the template
has, and everything that differs is written out, so that nothing of the template's is left in it. KServe fetches the
model itself, and mounts it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..checkpoint.model_files import is_hub_id
from ..yaml_writer import Commented
from .bundle import Bundle, model_name, refused_form
from .gateway import metrics_note, refuse_client_certificates, router_labels
from .nodes import refuse_one_server_for_all
from .objects import config_map, metadata, pod_annotations, refuse_relative_folders, stream
from .pod import Start, pod
from .pod_address import with_topic, with_transfer_address
from .wanted import Wanted

PORT = 8000  # where KServe sends requests
MODEL = "/mnt/models"  # where it mounts the model
_CONTAINER = "main"


def kserve(bundle: Bundle, wanted: Wanted) -> str:
    """All objects as one YAML stream. Raises ConfigError for a deployment that KServe cannot run."""
    refuse_client_certificates(bundle)
    refuse_one_server_for_all(bundle.deployment)
    if bundle.port != PORT:
        message = f"KServe sends requests to port {PORT} of a pod, and `server.port` is {bundle.port}"
        raise refused_form("server.port", bundle.deployment, message, "remove `port`")
    if bundle.num_nodes > 1:
        message = f"this form has one pod for each replica, and `parallel.nnodes` is {bundle.num_nodes}"
        raise refused_form("parallel.nnodes", bundle.deployment, message, "use `engine render k8s`")
    uri = wanted.model_uri or _uri(bundle)
    here = [folder for folder in bundle.folders if folder.option != "model.model"]  # KServe mounts that one
    bundle = replace(bundle, folders=tuple(here))
    refuse_relative_folders(bundle)
    objects = [config_map(bundle, wanted), _service(bundle, wanted, uri)]
    return stream(bundle, wanted, objects, _notes(bundle, wanted))


def _uri(bundle: Bundle) -> str:
    """URI of a repository of the hub, with its revision. Raises ConfigError for a model that KServe cannot fetch."""
    model = bundle.deployment.model
    name = bundle.deployment.located("model.model")
    if not is_hub_id(name) or ":" in name:
        message = f"KServe fetches the model, and `{model.model}` is not a repository of the hub"
        fix = "say where it is: --model-uri pvc://CLAIM/FOLDER, or s3:// or oci://"
        raise refused_form("model.model", bundle.deployment, message, fix)
    return f"hf://{name}:{model.revision}" if model.revision else f"hf://{name}"


def _notes(bundle: Bundle, wanted: Wanted) -> tuple[str, ...]:
    notes = metrics_note(bundle) if wanted.replicas > 1 else ()
    if bundle.has_tls:
        notes += ("The pods answer with TLS only: this needs a KServe whose gateway connects with TLS to its pods.",)
    return notes


def _service(bundle: Bundle, wanted: Wanted, uri: str) -> dict[str, Any]:
    name = model_name(bundle)
    scheduler = {"scheduler": Commented({}, "Chooses the pod for each request.")} if wanted.replicas > 1 else {}
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceService",
        "metadata": metadata(wanted),
        "spec": {
            "model": {"uri": uri, "name": name},
            "replicas": wanted.replicas,
            "labels": router_labels(bundle),
            "annotations": pod_annotations(bundle),
            "router": {"gateway": {}, "route": {}, **scheduler},
            "template": _template(bundle, wanted, name),
        },
    }


def _template(bundle: Bundle, wanted: Wanted, name: str) -> dict[str, Any]:
    settings = {**bundle.settings, "model.model": MODEL, "model.served_model_name": name}
    if bundle.deployment.model.served_model_name:
        del settings["model.served_model_name"]
    start = Start(("engine",), ("up", bundle.manifest.target))
    bundle, start = with_transfer_address(*with_topic(replace(bundle, settings=settings), start))
    return pod(bundle, wanted, start, _CONTAINER)
