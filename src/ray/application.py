"""Builds a Ray Serve application from a deployment file. All errors of the file are raised here, before any actor.

serve.run(build_app("deploy.yaml"))
serve run stoker.ray:app_builder deployment=deploy.yaml num_replicas=2
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ..config import Deployment, Resolved, load_deployment
from .checks import check_options, resolve_replica

if TYPE_CHECKING:
    from ray.serve import Application

HEALTH_CHECK_PERIOD_S = 2.0  # a replica whose process has ended is replaced at the next check
CLOSE_S = 5.0  # after the drain, for the engine to end
logger = logging.getLogger(__name__)


class RayArguments(BaseModel):
    """Arguments of `app_builder`: `args` of an application in a Serve config, or words of `serve run`."""

    model_config = ConfigDict(extra="forbid")

    deployment: str
    overrides: list[str] = Field(default=[], description="Words of a command line such as `--max-num-seqs`, `8`.")
    num_replicas: int | None = Field(None, ge=1)
    replicas_per_node: int | None = Field(None, ge=1)
    autoscaling_config: dict[str, Any] | None = None
    ray_actor_options: dict[str, Any] = {}
    name: str = "stoker"

    @field_validator("overrides", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return shlex.split(value) if isinstance(value, str) else value


def app_builder(args: Mapping[str, Any]) -> Application:
    """Build the application from the `args` of a Serve config. Raises ValidationError for a wrong argument."""
    return build_app(**dict(RayArguments.model_validate(dict(args))))


def build_app(
    deployment: str | Path | Deployment,
    overrides: Sequence[str] = (),
    *,
    num_replicas: int | None = None,
    replicas_per_node: int | None = None,
    autoscaling_config: Mapping[str, Any] | None = None,
    ray_actor_options: Mapping[str, Any] | None = None,
    name: str = "stoker",
) -> Application:
    """An application whose replicas each run an engine and serve the whole OpenAI-compatible API.

    Args:
        deployment: a file, or a deployment that was loaded.
        overrides: words of a command line such as `--max-num-seqs`, `8`; for a file only.
        num_replicas: `parallel.data_parallel_size` if None. Not together with `autoscaling_config`.
        replicas_per_node: maximum number of replicas on a node, which share its cores and memory. By default all.
        autoscaling_config: Ray Serve's. `target_ongoing_requests` is `scheduler.max_num_seqs` by default.
        ray_actor_options: Ray Serve's; by default the CPUs (`device.num_threads`), or the GPU, of a replica.
        name: of the Ray Serve deployment.

    Raises ConfigError, ModelFilesError, or ValueError for wrong arguments. The values are decided on this machine for
    that, and again where each replica runs.
    """
    from ray import serve

    if isinstance(deployment, Deployment):
        if overrides:
            raise ValueError("`overrides` are for a file: this deployment is loaded already")
    else:
        deployment = load_deployment([deployment], overrides)
    if num_replicas is not None and autoscaling_config is not None:
        raise ValueError("`num_replicas` and `autoscaling_config` contradict each other: give one of them")
    num_replicas = num_replicas or deployment.config.parallel.data_parallel_size
    max_replicas = num_replicas if autoscaling_config is None else int(autoscaling_config.get("max_replicas", 1))
    num_on_node = min(max_replicas, replicas_per_node or max_replicas)
    if without_effect := check_options(deployment, max_replicas):
        logger.warning("the HTTP proxy of Ray Serve decides instead of: %s", ", ".join(without_effect))
    resolved = resolve_replica(deployment, num_on_node)
    for warning in resolved.warnings:
        logger.warning("%s", warning)
    from .actor import StokerReplica

    scheduler = resolved.scheduler
    count: dict[str, Any] = {"num_replicas": num_replicas}
    if autoscaling_config is not None:
        count = {
            "autoscaling_config": {"target_ongoing_requests": scheduler.max_num_seqs, **autoscaling_config},
        }
    if replicas_per_node is not None:
        count["max_replicas_per_node"] = replicas_per_node
    return serve.deployment(
        serve.ingress()(StokerReplica),
        name=name,
        ray_actor_options=_actor_options(resolved, ray_actor_options or {}),
        # The queue of the engine counts, and refuses with 429. Ray's own would hold requests back without an answer.
        max_ongoing_requests=scheduler.max_num_seqs + scheduler.max_queued_requests,
        health_check_period_s=HEALTH_CHECK_PERIOD_S,
        graceful_shutdown_timeout_s=resolved.server.drain_timeout + CLOSE_S,
        **count,
    ).bind(deployment, num_on_node)


def _actor_options(resolved: Resolved, given: Mapping[str, Any]) -> dict[str, Any]:
    """What Ray reserves for a replica, and the event loop: uvloop cannot start a process in a new group."""
    num_ranks = resolved.topology.num_ranks
    if resolved.device.device == "cuda":
        resources = {"num_cpus": 1, "num_gpus": num_ranks}
    else:
        resources = {"num_cpus": resolved.device.num_threads * num_ranks}
    environment = dict(given.get("runtime_env") or {})
    environment["env_vars"] = {**environment.get("env_vars", {}), "RAY_USE_UVLOOP": "0"}
    return {**resources, **given, "runtime_env": environment}
