"""Processes of one model on several nodes: a leader with the API, workers without, in a LeaderWorkerSet."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from stoker.cli.app import main
from stoker.config import load_deployment
from stoker.config.errors import ConfigError
from stoker.config.render.bundle import Bundle
from stoker.config.render.groups import LEADER
from stoker.config.render.k8s import kubernetes, options_of_first_node
from stoker.config.render.kserve import kserve
from stoker.config.render.pack import pack
from stoker.config.render.pod import HOME, HOST
from stoker.config.render.wanted import Pool, Wanted
from stoker.engine.cluster.secret import VARIABLE

from .rendering import GOLDEN, check_object, objects, refused, rendered

WANTED = Wanted("chat", "registry.local/stoker:1", "llm")
FILE = """\
model: {model: builtin:tiny}
server: {auth: none, drain_timeout: 45s}
parallel: {tensor_parallel_size: 4, nnodes: 2}
"""


def on_two_nodes(wanted: Wanted = WANTED) -> str:
    return kubernetes(bundle_of_leader(), wanted)


def bundle_of_leader() -> Bundle:
    return pack(Path("deploy.yaml"), HOME, {}, settings={"server.host": HOST, **LEADER})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deploy.yaml").write_text(FILE)


def containers(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the leader and of a worker."""
    group = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    leader, worker = (group[f"{role}Template"]["spec"]["containers"][0] for role in ("leader", "worker"))
    return leader, worker


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_output_is_deterministic() -> None:
    assert on_two_nodes() == (GOLDEN / "groups.yaml").read_text()


@pytest.mark.parametrize("pool", [None, Pool("edge", "picker")])
def test_every_object_is_valid(pool: Pool | None) -> None:
    found = objects(on_two_nodes(replace(WANTED, replicas=2, pool=pool)))
    kinds = ["ConfigMap", "LeaderWorkerSet", "Service", "PodDisruptionBudget"]
    assert list(found) == kinds + ["InferencePool", "HTTPRoute"] * (pool is not None)
    for each in found.values():
        check_object(each)
    assert found["LeaderWorkerSet"]["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("size",), 0),
        (("restartPolicy",), "Always"),
        (("workers",), {}),
        (("workerTemplate", "spec", "containers"), [{"image": "no name"}]),
    ],
)
def test_the_check_refuses_wrong_fields(path: tuple[str, ...], value: Any) -> None:
    wrong = copy.deepcopy(objects(on_two_nodes())["LeaderWorkerSet"])
    *parents, last = path
    place = wrong["spec"]["leaderWorkerTemplate"]
    for name in parents:
        place = place[name]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        check_object(wrong)


def test_a_group_has_a_pod_for_each_node_and_starts_again_as_a_whole() -> None:
    spec = objects(on_two_nodes())["LeaderWorkerSet"]["spec"]
    group = spec["leaderWorkerTemplate"]
    assert (group["size"], group["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    for role in ("leader", "worker"):
        pod = group[f"{role}Template"]["spec"]
        (shm,) = [volume for volume in pod["volumes"] if volume["name"] == "shm"]
        assert shm["emptyDir"]["medium"] == "Memory"
        assert shm["emptyDir"]["sizeLimit"]
        assert "podAntiAffinity" in pod["affinity"]


def test_workers_find_the_leader_and_know_their_rank() -> None:
    leader, worker = containers(objects(on_two_nodes()))
    assert variables(leader)["ENGINE__PARALLEL__MASTER_ADDR"] == "$(POD_IP)"
    assert leader["env"][0]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert {name: value for name, value in variables(worker).items() if name.startswith("ENGINE__")} == {
        "ENGINE__SERVER__HOST": "0.0.0.0",
        "ENGINE__PARALLEL__MASTER_ADDR": "$(LWS_LEADER_ADDRESS)",
        "ENGINE__PARALLEL__NODE_RANK": "$(LWS_WORKER_INDEX)",
        "ENGINE__SERVER__HEADLESS": "true",
    }
    assert leader["command"] == worker["command"]


def test_a_worker_is_not_restarted_while_the_leader_loads() -> None:
    """It answers /livez before its leader is there, and /readyz once it computes."""
    leader, worker = containers(objects(on_two_nodes()))
    paths = {name: worker[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert leader["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert "lifecycle" not in worker


def test_only_leaders_get_requests() -> None:
    found = objects(on_two_nodes(replace(WANTED, pool=Pool("edge", "picker"))))
    group = found["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    leader, worker = (group[f"{role}Template"]["metadata"]["labels"] for role in ("leader", "worker"))
    for selector in (found["Service"]["spec"]["selector"], found["InferencePool"]["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= leader.items()
        assert not selector.items() <= worker.items()
    assert "llm-d.ai/engine-type" in leader
    assert "llm-d.ai/engine-type" not in worker


def test_the_service_of_clients_is_not_the_headless_one_of_the_controller() -> None:
    """The controller creates one with the name of its object; of another kind, pods would have no names."""
    found = objects(on_two_nodes())
    assert found["Service"]["metadata"]["name"] == "chat"
    assert found["LeaderWorkerSet"]["metadata"]["name"] == "chat-group"


def test_another_number_of_nodes_is_refused() -> None:
    bundle = bundle_of_leader()
    assert options_of_first_node(bundle, 2) == LEADER
    with pytest.raises(ConfigError, match=r"`parallel\.nnodes` is 2, and --nodes is 3"):
        options_of_first_node(bundle, 3)


def test_kserve_refuses_a_model_on_several_nodes() -> None:
    with pytest.raises(ConfigError, match="one pod for each replica"):
        kserve(bundle_of_leader(), replace(WANTED, model_uri="pvc://models/tiny"))


def test_the_stream_is_yaml_that_reads_back() -> None:
    text = on_two_nodes()
    again = yaml.safe_dump_all(yaml.safe_load_all(text))
    assert list(yaml.safe_load_all(again)) == list(yaml.safe_load_all(text))


def test_the_number_of_nodes_comes_from_the_file_or_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    from_file = objects(rendered(capsys, "k8s"))["LeaderWorkerSet"]["spec"]
    Path("deploy.yaml").write_text(FILE.replace(", nnodes: 2", ""))
    assert "LeaderWorkerSet" not in objects(rendered(capsys, "k8s"))
    group = objects(rendered(capsys, "k8s", nodes=4))["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    assert (from_file["leaderWorkerTemplate"]["size"], group["size"]) == (2, 4)
    assert "error[R421]" in refused(capsys, "k8s", nodes=3)  # 4 processes


@pytest.mark.parametrize("role", ["leader", "worker"])
def test_every_node_reads_a_valid_deployment(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variables of its pod, once Kubernetes has replaced those in them."""
    found = dict(zip(("leader", "worker"), containers(objects(on_two_nodes())), strict=True))
    there = {
        "$(POD_IP)": "10.0.0.7",
        "$(LWS_LEADER_ADDRESS)": "chat-group-0.chat-group.llm",
        "$(LWS_WORKER_INDEX)": "1",
    }
    for name, value in variables(found[role]).items():
        monkeypatch.setenv(name, there.get(value, value))
    with pytest.raises(SystemExit) as ended:
        main(["validate", "deploy.yaml", "--deny-warnings"])
    assert ended.value.code == 0
    parallel = load_deployment([Path("deploy.yaml")]).config.parallel
    assert (parallel.nnodes, parallel.node_rank) == (2, int(role == "worker"))


def test_all_nodes_have_the_secret_of_the_deployment() -> None:
    text = on_two_nodes()
    assert f'#     --from-literal={VARIABLE}="${VARIABLE}"' in text
    key = {"secretKeyRef": {"name": "chat-secrets", "key": VARIABLE}}
    for container in containers(objects(text)):
        assert {"name": VARIABLE, "valueFrom": key} in container["env"]


def test_a_node_needs_the_memory_of_its_processes() -> None:
    limits = []
    for nodes in ("", ", nnodes: 2"):
        Path("deploy.yaml").write_text(FILE.replace(", nnodes: 2", nodes))
        bundle = pack(Path("deploy.yaml"), HOME, {}, settings={"server.host": HOST})
        assert bundle.memory_bytes is not None
        limits.append(bundle.memory_bytes)
    assert limits[0] > limits[1]
