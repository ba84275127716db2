"""What the command line adds to a deployment: names, an image, numbers of pods. The manifest contains none of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """`replicas` are pods, each with the whole model; `num_nodes` are nodes with one pod each."""

    name: str
    image: str
    namespace: str | None = None
    replicas: int = 1
    num_nodes: int = 1
    pool: Pool | None = None
    model_uri: str | None = None

    @property
    def secret(self) -> str:
        """Name of the Secret with the variables and files that are secrets."""
        return f"{self.name}-secrets"

    @property
    def config_map(self) -> str:
        return f"{self.name}-config"


@dataclass(frozen=True, slots=True)
class Pool:
    """Objects that exist in the cluster: the Gateway, and the Service of the endpoint picker."""

    gateway: str
    picker: str
