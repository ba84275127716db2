"""Objects for a gateway with the inference extension, which asks an endpoint picker where to send each request.

InferencePool: inference.networking.k8s.io/v1; HTTPRoute: gateway.networking.k8s.io/v1. The picker reads the metrics of
each pod, in the format that a label of the pod names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..yaml_writer import Commented
from .bundle import Bundle, model_name, refused_form
from .objects import metadata
from .wanted import Pool, Wanted

PICKER_PORT = 9002  # where endpoint pickers listen
_LABEL_LENGTH = 63
_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}


def router_labels(bundle: Bundle) -> dict[str, Any]:
    """Labels of pods that endpoint pickers read."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", model_name(bundle))[:_LABEL_LENGTH].strip("-._")
    found: dict[str, Any] = {
        "llm-d.ai/engine-type": Commented("vllm", "Under whose names the picker reads the metrics."),
        "llm-d.ai/model": name,
    }
    transfer = bundle.deployment.config.kv_transfer
    if transfer.is_between_engines and (role := _ROLES.get(transfer.kv_role)):
        found["llm-d.ai/role"] = role
    return found


def refuse_client_certificates(bundle: Bundle) -> None:
    if bundle.wants_client_certificate:
        message = "a gateway and its endpoint picker connect to the pods without a certificate"
        raise refused_form("server.ssl_cert_reqs", bundle.deployment, message, "remove `ssl_cert_reqs`, and use keys")


def metrics_note(bundle: Bundle) -> tuple[str, ...]:
    """What the picker lacks, if it cannot read the metrics."""
    server = bundle.deployment.server
    needs_key = bool(server.api_key) or server.api_keys_file is not None
    if not needs_key or "/metrics" in server.routes_without_key:
        return ()
    return (
        "The endpoint picker reads /metrics without a key: it does not know the load of these pods unless\n"
        "`server.routes_without_key` contains /metrics.",
    )


def gateway_objects(bundle: Bundle, wanted: Wanted, pool: Pool, selector: Mapping[str, str]) -> list[dict[str, Any]]:
    """InferencePool and HTTPRoute. Raises ConfigError for a server that a gateway cannot reach."""
    refuse_client_certificates(bundle)
    if bundle.has_tls:
        message = "a gateway sends HTTP without TLS to the pods of an InferencePool, and ends the TLS of clients itself"
        fix = "remove `ssl_certfile` and `ssl_keyfile`; the certificate belongs to a listener of the Gateway"
        raise refused_form("server.ssl_certfile", bundle.deployment, message, fix)
    return [_pool(bundle, wanted, pool, selector), _route(wanted, pool)]


def gateway_notes(bundle: Bundle, pool: Pool) -> tuple[str, ...]:
    return (
        f"Install the endpoint picker first, with the Service {pool.picker}, and the Gateway {pool.gateway}.",
        *metrics_note(bundle),
    )


def _pool(bundle: Bundle, wanted: Wanted, pool: Pool, selector: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": metadata(wanted),
        "spec": {
            "selector": {"matchLabels": selector},
            "targetPorts": [{"number": bundle.port}],
            "endpointPickerRef": {
                "kind": "Service",
                "name": pool.picker,
                "port": {"number": PICKER_PORT},
                "failureMode": Commented("FailOpen", "Without the picker, the gateway chooses any pod."),
            },
        },
    }


def _route(wanted: Wanted, pool: Pool) -> dict[str, Any]:
    backend = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": wanted.name}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(wanted),
        "spec": {
            "parentRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": pool.gateway}],
            "rules": [
                {
                    "backendRefs": [backend],
                    "matches": Commented(
                        [{"path": {"type": "PathPrefix", "value": "/v1"}}],
                        "Metrics, probes and administration stay inside the cluster.",
                    ),
                    "timeouts": Commented(
                        {"request": "0s"}, "None: a stream may last longer than the default of a gateway."
                    ),
                }
            ],
        },
    }
