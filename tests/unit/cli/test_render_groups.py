"""Processes of one model on several nodes: a leader with the API, workers without, in a LeaderWorkerSet."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from stoker.config.errors import ConfigError
from stoker.config.render.bundle import Bundle, pack
from stoker.config.render.groups import LEADER
from stoker.config.render.k8s import kubernetes, options_of_first_node
from stoker.config.render.kserve import kserve
from stoker.config.render.pod import HOME, HOST
from stoker.config.render.wanted import Pool, Wanted
from stoker.config.schema.options import options

from .rendering import GOLDEN, check_object, objects, refused, rendered

WANTED = Wanted("chat", "registry.local/stoker:1", "llm")
FILE = "model: {model: builtin:tiny}\nserver: {auth: none, drain_timeout: 45s}\nparallel: {tensor_parallel_size: 4}\n"


def on_two_nodes(wanted: Wanted = WANTED, file: str = FILE) -> str:
    return kubernetes(bundle_of_leader(file), wanted)


def bundle_of_leader(file: str = FILE) -> Bundle:
    """Of a deployment whose processes are on two nodes."""
    Path("deploy.yaml").write_text(file)
    bundle = pack(Path("deploy.yaml"), HOME, {}, settings={"server.host": HOST})
    config = bundle.deployment.config
    parallel = config.parallel.model_copy(update={"nnodes": 2})
    deployment = replace(bundle.deployment, config=config.model_copy(update={"parallel": parallel}))
    bundle = replace(bundle, deployment=deployment)
    return replace(bundle, settings={**bundle.settings, **options_of_first_node(bundle, None)})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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


def test_what_this_build_does_not_run_is_not_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(FILE)
    if options()["parallel.nnodes"].status == "refused":
        assert "error[C118]: `parallel.nnodes: 2` is not available in this build" in refused(capsys, "k8s", nodes=2)
    else:
        group = objects(rendered(capsys, "k8s", nodes=2))["LeaderWorkerSet"]
        assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
