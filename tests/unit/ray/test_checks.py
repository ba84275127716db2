"""What a deployment may say if Ray Serve starts its replicas. Needs no Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config import load_deployment
from stoker.config.errors import ConfigError
from stoker.ray.checks import (
    OF_THE_PROXY,
    REFUSED,
    REFUSED_IF_SEVERAL,
    check_options,
    max_replicas,
    of_one_replica,
    resolve_replica,
)

TINY = ("--model", "builtin:tiny")


def test_every_named_option_exists():
    config = load_deployment([], TINY, env={}).config
    for path in (*REFUSED, *REFUSED_IF_SEVERAL, *OF_THE_PROXY):
        section, _, name = path.partition(".")
        assert name in type(getattr(config, section)).model_fields


def test_replicas_of_a_ray_deployment_are_counted():
    autoscaling = {"autoscaling_config": {"min_replicas": 1, "max_replicas": 6}}
    expected: list[tuple[dict[str, object], tuple[int, int]]] = [
        ({}, (1, 1)),
        ({"num_replicas": 3}, (3, 3)),
        ({"num_replicas": 3, "max_replicas_per_node": 2}, (3, 2)),
        ({"num_replicas": 1, "max_replicas_per_node": 2}, (1, 1)),
        (autoscaling, (6, 6)),
        ({"num_replicas": "auto", **autoscaling, "max_replicas_per_node": 4}, (6, 4)),
        ({"num_replicas": "auto"}, (1, 1)),
    ]
    for options, counts in expected:
        assert max_replicas(options) == counts, options


def test_all_refused_options_are_reported_with_their_places(tmp_path: Path):
    file = tmp_path / "deploy.yaml"
    file.write_text(
        "model: {model: builtin:tiny}\nserver:\n  uds: /tmp/s\n  api_server_count: 2\n  responses_store: r.db\n"
    )
    with pytest.raises(ConfigError) as raised:
        check_options(load_deployment([file], env={}), num_replicas=2)
    found = {(each.code, each.path, each.labels[0].span.line) for each in raised.value.diagnostics}
    assert found == {
        ("C132", "server.uds", 3),
        ("C132", "server.api_server_count", 4),
        ("C132", "server.responses_store", 5),
    }


@pytest.mark.parametrize("words", [("--numa-bind",), ("--numa-bind-nodes", "0"), ("--numa-bind-cpus", "0")])
def test_replicas_are_not_bound(words: tuple[str, ...]):
    """Each replica resolves its deployment alone: all of them were bound to the cores of the first one."""
    with pytest.raises(ConfigError) as raised:
        check_options(load_deployment([], (*TINY, *words), env={}), num_replicas=2)
    (found,) = raised.value.diagnostics
    assert (found.code, found.path) == ("C132", f"device.{words[0][2:].replace('-', '_')}")


def test_one_replica_may_store_responses_and_a_default_may_be_written():
    words = (*TINY, "--responses-store", "r.db", "--api-server-count", "1")
    assert check_options(load_deployment([], words, env={}), num_replicas=1) == ()


def test_options_of_the_listener_have_no_effect_and_are_named():
    words = (*TINY, "--port", "8001", "--max-connections", "7")
    assert check_options(load_deployment([], words, env={}), 1) == ("server.port", "server.max_connections")


@pytest.mark.parametrize(("words", "expected"), [((), "exit"), (("--on-engine-death", "restart"), "restart")])
def test_a_dead_engine_ends_its_replica_unless_the_deployment_says_otherwise(words: tuple[str, ...], expected: str):
    deployment = of_one_replica(load_deployment([], (*TINY, *words), env={}), 1)
    assert deployment.server.on_engine_death == expected


def test_replicas_of_a_node_divide_its_memory():
    deployment = load_deployment([], (*TINY, "--device", "cpu"), env={})
    alone, shared = resolve_replica(deployment, 1), resolve_replica(deployment, 2)
    assert shared.machine.total_memory_bytes < alone.machine.total_memory_bytes
    assert len(shared.topology.replicas) == 1
