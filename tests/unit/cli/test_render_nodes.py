"""Replicas on several nodes: each pod is a server with ranks of its own, and with the same ports."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.app import main
from stoker.config import Deployment, load_deployment

from .rendering import GOLDEN, check_object, objects, refused, rendered

OPEN = "model: {model: builtin:tiny}\nserver: {auth: none}\nparallel: {data_parallel_size: 6}\n"
EVENTS = 'kv_events: {enable_kv_cache_events: true, replay_endpoint: "tcp://*:5657"}\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ENGINE_")]:
        monkeypatch.delenv(name)
    Path("deploy.yaml").write_text(OPEN + EVENTS)


def on_nodes(capsys: pytest.CaptureFixture[str], nodes: int, **wanted: Any) -> dict[str, Any]:
    return objects(rendered(capsys, "k8s", name="chat", nodes=nodes, **wanted))


def container(found: dict[str, Any]) -> dict[str, Any]:
    (only,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def deployment_on(found: dict[str, Any], index: int) -> Deployment:
    """As the server on a node reads it: a shell runs the script of the pod up to the start of the server."""
    only = container(found)
    script = only["args"][0].removesuffix("exec engine up /etc/stoker/deploy.yaml") + "env -0"
    given = {each["name"]: each["value"] for each in only["env"] if "value" in each}
    env = {"PATH": os.environ["PATH"], **given, "NODE_INDEX": str(index)}
    result = subprocess.run([*only["command"], script], env=env, capture_output=True, text=True, check=True)
    variables = dict(line.split("=", 1) for line in result.stdout.split("\0") if "=" in line)
    return load_deployment([Path("deploy.yaml")], env=variables)


def test_output_is_deterministic(capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, "k8s", name="chat", namespace="llm", nodes=3)
    assert text == (GOLDEN / "nodes.yaml").read_text()


@pytest.mark.parametrize("is_pool", [False, True])
def test_every_object_is_valid(is_pool: bool, capsys: pytest.CaptureFixture[str]) -> None:
    found = on_nodes(capsys, 3, inference_pool=is_pool)
    kinds = ["ConfigMap", "StatefulSet", "Service", "Service chat", "PodDisruptionBudget"]
    assert list(found) == kinds + ["InferencePool", "HTTPRoute"] * is_pool
    for each in found.values():
        check_object(each)


@pytest.mark.parametrize("nodes", [2, 3, 6])
def test_the_nodes_share_the_ranks(nodes: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = on_nodes(capsys, nodes)
    assert found["StatefulSet"]["spec"]["replicas"] == nodes
    ranks = [deployment_on(found, index).config.parallel.topology.replicas for index in range(nodes)]
    assert [rank for each in ranks for rank in each] == list(range(6))
    assert {len(each) for each in ranks} == {6 // nodes}


def test_every_pod_publishes_at_the_ports_that_it_declares(capsys: pytest.CaptureFixture[str]) -> None:
    found = on_nodes(capsys, 3)
    declared = {port["name"]: port["containerPort"] for port in container(found)["ports"][1:]}
    assert declared == {"kv-events-0": 5557, "kv-replay-0": 5657, "kv-events-1": 5558, "kv-replay-1": 5658}
    for index in range(3):
        config = deployment_on(found, index).config
        published = [config.kv_events.at_rank(rank).addresses for rank in config.parallel.topology.replicas]
        assert published == [("tcp://*:5557", "tcp://*:5657"), ("tcp://*:5558", "tcp://*:5658")]
    service = found["Service"]["spec"]
    assert (found["StatefulSet"]["spec"]["serviceName"], service["clusterIP"]) == ("chat-nodes", "None")
    assert {port["name"]: port["port"] for port in service["ports"]} == {"http": 8000, **declared}


def test_engines_of_all_pods_read_blocks_at_the_same_port(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(OPEN + "kv_transfer: {kv_connector: TcpConnector}\n")
    found = on_nodes(capsys, 6)
    assert {port["name"]: port["containerPort"] for port in container(found)["ports"]}["kv-transfer"] == 5600
    for index in (0, 5):
        config = deployment_on(found, index).config
        assert config.kv_transfer.port_at_rank(index) == 5600


def test_a_subscriber_that_listens_itself_gets_the_ranks_ports(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(OPEN + 'kv_events: {enable_kv_cache_events: true, endpoint: "tcp://router:5557"}\n')
    config = deployment_on(on_nodes(capsys, 6), 4).config
    assert config.kv_events.at_rank(4).endpoint == "tcp://router:5561"


def test_pods_are_on_different_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    template = on_nodes(capsys, 2)["StatefulSet"]["spec"]["template"]
    (rule,) = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_memory_is_that_of_a_nodes_share(capsys: pytest.CaptureFixture[str]) -> None:
    three, six = (container(on_nodes(capsys, nodes))["resources"]["limits"]["memory"] for nodes in (3, 6))
    assert int(three.removesuffix("Mi")) > int(six.removesuffix("Mi"))


def test_a_file_that_says_the_same_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    hybrid = "data_parallel_hybrid_lb: true, data_parallel_size_local: 2, data_parallel_start_rank: 0"
    Path("deploy.yaml").write_text(OPEN.replace("size: 6", f"size: 6, {hybrid}"))
    assert deployment_on(on_nodes(capsys, 3), 2).config.parallel.topology.replicas == range(4, 6)


@pytest.mark.parametrize(
    ("nodes", "options", "message"),
    [
        (4, "data_parallel_size: 6", "`parallel.data_parallel_size` is 6, which 4 nodes cannot share equally"),
        (2, "data_parallel_size: 6, data_parallel_rank: 0", "`parallel.data_parallel_rank` is written"),
        (
            2,
            "data_parallel_size: 6, data_parallel_hybrid_lb: true, data_parallel_size_local: 2, "
            "data_parallel_start_rank: 0",
            "`parallel.data_parallel_size_local` is 2, and each of 2 nodes has 3 replicas",
        ),
    ],
)
def test_replicas_that_cannot_be_shared_are_refused(
    nodes: int, options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("deploy.yaml").write_text(OPEN.replace("data_parallel_size: 6", options))
    talk = refused(capsys, "k8s", nodes=nodes)
    assert "error[C133]" in talk
    assert message in talk
    assert "deploy.yaml:3:" in talk


@pytest.mark.parametrize(("form", "wanted"), [("k8s", {}), ("k8s", {"nodes": 3}), ("kserve", {"model_uri": "pvc://a"})])
def test_one_server_for_replicas_of_several_machines_is_refused(
    form: str, wanted: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = "data_parallel_size: 6, data_parallel_size_local: 2, data_parallel_address: 10.0.0.1"
    Path("deploy.yaml").write_text(OPEN.replace("data_parallel_size: 6", options))
    talk = refused(capsys, form, **wanted)
    assert "error[C133]: `parallel.data_parallel_address` is written" in talk


def test_a_port_below_the_last_rank_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(OPEN + 'kv_events: {enable_kv_cache_events: true, endpoint: "tcp://*:4"}\n')
    assert "the port of `kv_events.endpoint` is at most the rank" in refused(capsys, "k8s", nodes=3)


@pytest.mark.parametrize(
    "words",
    [
        ["k8s", "deploy.yaml", "--nodes", "0"],
        ["k8s", "deploy.yaml", "--nodes", "2", "--replicas", "2"],
        ["compose", "deploy.yaml", "--nodes", "2"],
    ],
)
def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["render", *words])
    assert ended.value.code == 2
