"""A model whose processes are on several nodes: a LeaderWorkerSet (leaderworkerset.x-k8s.io/v1), a group each replica.

The leader of a group is node 0, and has the API. The workers are the other nodes. Their liveness does not depend on the
leader, so that none is restarted while the leader loads; a pod that does restart has its whole group created again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..yaml_writer import Commented
from .bundle import Bundle
from .objects import labels, metadata
from .pod import Start, usual_start
from .template import on_nodes_of_their_own, pod_template
from .wanted import Wanted

# Node 0 listens on this address: that of its pod, since the name may not be known yet when it starts.
LEADER = {"parallel.master_addr": "$(POD_IP)"}
_WORKER = {  # the controller sets these variables, before those of the pod
    "parallel.master_addr": "$(LWS_LEADER_ADDRESS)",
    "parallel.node_rank": "$(LWS_WORKER_INDEX)",
    "server.headless": "true",
}
_SECRET = "STOKER_NODE_SECRET"  # without which no other program joins the nodes
_ROLE = "app.kubernetes.io/component"


def leaders(wanted: Wanted) -> dict[str, str]:
    """Labels by which the pods with an API are selected."""
    return {**labels(wanted), _ROLE: "leader"}


def with_secret(bundle: Bundle) -> Bundle:
    """Add the secret that all nodes have."""
    return replace(bundle, variables_of={**bundle.variables_of, "parallel.nnodes": (_SECRET,)})


def groups(bundle: Bundle, wanted: Wanted) -> dict[str, Any]:
    """Render the LeaderWorkerSet. `bundle` is the leader's."""
    command = usual_start(bundle).command
    leader = Start(command, fields={"POD_IP": "status.podIP"})
    worker = Start(command, is_headless=True)
    of_worker = replace(bundle, settings={**bundle.settings, **_WORKER})
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": Commented(
            metadata(wanted, f"{wanted.name}-group"),
            "Its controller creates a headless Service of this name: that of clients has another.",
        ),
        "spec": {
            "replicas": wanted.replicas,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": Commented(bundle.num_nodes, "parallel.nnodes"),
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _template(bundle, wanted, leader, "leader"),
                "workerTemplate": _template(of_worker, wanted, worker, "worker"),
            },
        },
    }


def _template(bundle: Bundle, wanted: Wanted, start: Start, role: str) -> dict[str, Any]:
    return on_nodes_of_their_own(pod_template(bundle, wanted, start, {_ROLE: role}), wanted)
