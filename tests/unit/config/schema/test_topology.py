"""Places of the processes of a deployment, from the options of section `parallel`."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.config.schema.parallel import ParallelConfig
from stoker.config.schema.topology import Topology


def topology(**options: Any) -> Topology:
    return ParallelConfig(**options).topology


def test_ranks_of_a_group_are_consecutive_and_a_stage_has_all_its_groups() -> None:
    found = topology(tensor_parallel_size=2, pipeline_parallel_size=3)
    assert (found.num_ranks, found.num_groups, found.stage_size) == (6, 3, 2)
    assert [found.stage_of(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [found.rank_in_group(rank) for rank in range(6)] == [0, 1, 0, 1, 0, 1]
    shared = topology(tensor_parallel_size=2, prefill_context_parallel_size=2)
    assert [shared.group_of(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert {shared.stage_of(rank) for rank in range(4)} == {0}


def test_consecutive_ranks_are_on_a_node_and_groups_may_be_on_two() -> None:
    found = topology(tensor_parallel_size=4, nnodes=2, node_rank=1, master_addr="10.0.0.1")
    assert [found.node_of(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert found.ranks_of_node(1) == range(2, 4)
    assert found.process_names == ["rank 2", "rank 3"]
    assert not found.is_on_one_node(0)
    assert topology(tensor_parallel_size=2, pipeline_parallel_size=2, nnodes=2).is_on_one_node(1)
    assert not topology(tensor_parallel_size=2, distributed_executor_backend="ray").is_on_one_node(0)
    assert found.leader == ("10.0.0.1", 29501)


@pytest.mark.parametrize(
    ("options", "replicas", "remote"),
    [
        ({}, range(1), range(0)),
        ({"data_parallel_size": 3}, range(3), range(0)),
        ({"data_parallel_size": 3, "data_parallel_rank": 1}, range(1, 2), range(0)),
        ({"data_parallel_size": 4, "data_parallel_size_local": 1, "data_parallel_address": "a"}, range(1), range(1, 4)),
        (
            {
                "data_parallel_size": 4,
                "data_parallel_size_local": 2,
                "data_parallel_start_rank": 2,
                "data_parallel_address": "a",
            },
            range(2, 4),
            range(0),
        ),
        ({"data_parallel_size": 4, "data_parallel_size_local": 2, "data_parallel_backend": "ray"}, range(2), range(4)),
    ],
)
def test_replicas_are_here_or_elsewhere(options: dict[str, Any], replicas: range, remote: range) -> None:
    found = topology(**options)
    assert (found.replicas, found.remote_replicas) == (replicas, remote)
    assert found.num_on_ray == (4 if found.are_replicas_on_ray else 0)
    assert found.is_behind_another == (options.get("data_parallel_start_rank") == 2)


def test_the_backend_follows_from_the_number_of_ranks() -> None:
    assert topology().backend == "uni"
    assert topology(pipeline_parallel_size=2).backend == "mp"
    assert topology(distributed_executor_backend="external_launcher").is_launched
    assert not topology(distributed_executor_backend="ray").spans_machines
    assert topology(tensor_parallel_size=2, distributed_executor_backend="ray").spans_machines
