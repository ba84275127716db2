"""Topology: where the processes of a deployment are. Options, rules, the plan and the engine read this one record.

A deployment has replicas; each is computed by ranks. Consecutive ranks are a group, which has all parts of the same
layers: a stage of a pipeline, or one of the groups that share prompts. Consecutive ranks are also on the same node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Backend = Literal["uni", "mp", "ray", "external_launcher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """
    Attributes:
        backend: who computes a replica.
        group_size: ranks of a group.
        num_stages: stages of the pipeline.
        num_prompt_groups: groups that share the tokens of prompts. A rule allows these or several stages.
        num_context_parts: ranks of a group that share the tokens of each sequence.
        num_nodes: machines that compute one replica.
        node: number of this machine among them.
        num_sharing_experts: replicas over which the experts of a mixture are spread; 1 where the ranks of each replica
            share them.
        replicas: ranks of the replicas that this machine runs, or that share it where Ray places them.
        remote_replicas: ranks of the replicas that connect to the server of this machine: those of other machines, and
            all that Ray places.
        are_replicas_on_ray: whether Ray places the replicas.
        is_behind_another: whether the replicas of this machine are behind the API of another.
        leader: address and port of node 0, to which the ranks of other nodes connect.
        api: address and port to which the replicas of other machines connect; None if there are none.
    """

    backend: Backend
    group_size: int
    num_stages: int
    num_prompt_groups: int
    num_context_parts: int
    num_nodes: int
    node: int
    num_sharing_experts: int
    replicas: range
    remote_replicas: range
    are_replicas_on_ray: bool
    is_behind_another: bool
    leader: tuple[str, int]
    api: tuple[str, int] | None

    @property
    def num_groups(self) -> int:
        return self.num_stages * self.num_prompt_groups

    @property
    def num_ranks(self) -> int:
        """Number of processes that compute one replica."""
        return self.group_size * self.num_groups

    @property
    def num_local_ranks(self) -> int:
        """Number of ranks on each node. A rule ensures that nothing remains."""
        return max(1, self.num_ranks // self.num_nodes)

    @property
    def num_replicas(self) -> int:
        """Number of replicas that this machine runs."""
        return len(self.replicas)

    @property
    def num_processes(self) -> int:
        """Number of processes that compute on this machine."""
        return self.num_replicas * self.num_local_ranks

    @property
    def served_replicas(self) -> range:
        """Ranks of the replicas that the server of this machine has."""
        return range(self.replicas.start, max(self.replicas.stop, self.remote_replicas.stop))

    @property
    def num_served(self) -> int:
        return len(self.served_replicas)

    @property
    def num_on_ray(self) -> int:
        return len(self.remote_replicas) if self.are_replicas_on_ray else 0

    @property
    def is_launched(self) -> bool:
        """Whether a launcher such as torchrun has started all ranks."""
        return self.backend == "external_launcher"

    @property
    def spans_machines(self) -> bool:
        """Whether the ranks of a replica may be on several machines."""
        return self.num_ranks > 1 and (self.num_nodes > 1 or self.backend in ("ray", "external_launcher"))

    @property
    def stage_size(self) -> int:
        """Number of ranks of a stage."""
        return self.group_size * self.num_prompt_groups

    def group_of(self, rank: int) -> int:
        return rank // self.group_size

    def rank_in_group(self, rank: int) -> int:
        return rank % self.group_size

    def stage_of(self, rank: int) -> int:
        return rank // self.stage_size

    def node_of(self, rank: int) -> int:
        return rank // self.num_local_ranks

    def ranks_of_node(self, node: int) -> range:
        return range(node * self.num_local_ranks, (node + 1) * self.num_local_ranks)

    def is_on_one_node(self, group: int) -> bool:
        """Whether the ranks of a group share a machine, and so memory."""
        first = group * self.group_size
        return self.backend != "ray" and self.node_of(first) == self.node_of(first + self.group_size - 1)

    @property
    def process_names(self) -> list[str]:
        """Names of the processes of this machine that compute, in order."""
        if self.num_ranks == 1:
            return [f"replica {replica}" for replica in self.replicas] if self.num_replicas > 1 else ["the engine"]
        prefixes = [f"replica {replica}, " for replica in self.replicas] if self.num_replicas > 1 else [""]
        return [f"{prefix}rank {rank}" for prefix in prefixes for rank in self.ranks_of_node(self.node)]
