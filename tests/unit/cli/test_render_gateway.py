"""What is rendered for a gateway with the inference extension: the pool, the route, labels and the topic of events."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stoker.cli.app import main
from stoker.config import load_deployment

from .rendering import GOLDEN, check_object, objects, refused, rendered

OPEN = "model: {model: builtin:tiny, served_model_name: Qwen/Qwen3-0.6B}\nserver: {auth: none, port: 8080}\n"
EVENTS = "kv_events: {enable_kv_cache_events: true}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deploy.yaml").write_text(OPEN + EVENTS)


def pool(capsys: pytest.CaptureFixture[str], **wanted: Any) -> dict[str, Any]:
    return objects(rendered(capsys, "k8s", name="chat", inference_pool=True, **wanted))


def variables(found: dict[str, Any]) -> dict[str, str]:
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_output_is_deterministic(capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, "k8s", name="chat", namespace="llm", replicas=2, inference_pool=True)
    assert text == (GOLDEN / "inference-pool.yaml").read_text()


def test_every_object_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    found = pool(capsys, replicas=2)
    assert list(found)[-2:] == ["InferencePool", "HTTPRoute"]
    for each in found.values():
        check_object(each)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("InferencePool", ("spec", "targetPortNumber"), 8080),
        ("InferencePool", ("spec", "targetPorts"), []),
        ("InferencePool", ("spec", "endpointPickerRef", "portNumber"), 9002),
        ("InferencePool", ("spec", "endpointPickerRef", "failureMode"), "Open"),
        ("HTTPRoute", ("spec", "parentRef"), {}),
        ("HTTPRoute", ("spec", "rules"), [{"timeouts": {"request": "none"}}]),
        ("HTTPRoute", ("apiVersion",), "gateway.networking.k8s.io/v1beta1"),
    ],
)
def test_the_check_refuses_wrong_fields(
    kind: str, path: tuple[str, ...], value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = copy.deepcopy(pool(capsys)[kind])
    *parents, last = path
    place = wrong
    for name in parents:
        place = place[name]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        check_object(wrong)


def test_a_pool_without_the_pickers_port_is_refused_by_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = pool(capsys)["InferencePool"]
    del wrong["spec"]["endpointPickerRef"]["port"]
    with pytest.raises(jsonschema.ValidationError, match="'port' is a required property"):
        check_object(wrong)


def test_the_pool_selects_the_pods_of_the_deployment_at_their_port(capsys: pytest.CaptureFixture[str]) -> None:
    found = pool(capsys)
    spec, template = found["InferencePool"]["spec"], found["Deployment"]["spec"]["template"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert spec["targetPorts"] == [{"number": 8080}]
    assert spec["endpointPickerRef"]["name"] == "chat-epp"
    (backend,) = found["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == ("InferencePool", found["InferencePool"]["metadata"]["name"])


def test_gateway_and_picker_have_the_names_that_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    found = pool(capsys, gateway="edge", endpoint_picker="picker")
    assert found["HTTPRoute"]["spec"]["parentRefs"][0]["name"] == "edge"
    assert found["InferencePool"]["spec"]["endpointPickerRef"]["name"] == "picker"


@pytest.mark.parametrize(
    ("name", "label"),
    [("Qwen/Qwen3-0.6B", "Qwen-Qwen3-0.6B"), ("a b", "a-b"), ("x" * 62 + "/y", "x" * 62), ("-/m", "m")],
)
def test_pods_have_the_label_of_their_model(name: str, label: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(OPEN.replace("Qwen/Qwen3-0.6B", f'"{name}"'))
    found = pool(capsys)
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert (labels["llm-d.ai/engine-type"], labels["llm-d.ai/model"]) == ("vllm", label)


@pytest.mark.parametrize(
    ("options", "role"),
    [
        ("", None),
        ("kv_transfer: {kv_connector: TcpConnector}", None),
        ("kv_transfer: {kv_connector: TcpConnector, kv_role: kv_producer}", "prefill"),
        ("kv_transfer: {kv_connector: TcpConnector, kv_role: kv_consumer}", "decode"),
    ],
)
def test_pods_have_the_label_of_their_role(options: str, role: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(f"{OPEN}{options}\n")
    assert pool(capsys)["Deployment"]["spec"]["template"]["metadata"]["labels"].get("llm-d.ai/role") == role


def test_the_topic_of_events_names_pod_and_model(capsys: pytest.CaptureFixture[str]) -> None:
    """As the server reads it, once Kubernetes has replaced the variable."""
    found = pool(capsys)
    env = {name: value.replace("$(POD_IP)", "10.0.0.7") for name, value in variables(found).items()}
    deployment = load_deployment([Path("deploy.yaml")], env=env)
    assert deployment.config.kv_events.topic == "kv@10.0.0.7:8080@Qwen/Qwen3-0.6B"
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["env"][0] == {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


@pytest.mark.parametrize("events", ["", "kv_events: {enable_kv_cache_events: true, topic: mine}\n"])
def test_a_written_topic_is_kept(events: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(OPEN + events)
    assert "ENGINE__KV_EVENTS__TOPIC" not in variables(pool(capsys))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("ssl_certfile: c.pem, ssl_keyfile: k.pem", "a gateway sends HTTP without TLS"),
        ("ssl_certfile: c.pem, ssl_keyfile: k.pem, ssl_ca_certs: c.pem, ssl_cert_reqs: 2", "without a certificate"),
    ],
)
def test_a_server_that_a_gateway_cannot_reach_is_refused(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("c.pem", "k.pem"):
        Path(name).write_text("PEM")
    Path("deploy.yaml").write_text(f"model: {{model: builtin:tiny}}\nserver: {{auth: none, {options}}}\n")
    talk = refused(capsys, "k8s", inference_pool=True)
    assert "error[C133]" in talk
    assert message in talk


@pytest.mark.parametrize(
    ("options", "is_noted"),
    [("api_key: {env: K}", True), ("api_key: {env: K}, routes_without_key: [/metrics]", False), ("auth: none", False)],
)
def test_metrics_that_need_a_key_are_noted(options: str, is_noted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(f"model: {{model: builtin:tiny}}\nserver: {{{options}}}\n")
    text = rendered(capsys, "k8s", inference_pool=True)
    assert ("# The endpoint picker reads /metrics without a key" in text) is is_noted


@pytest.mark.parametrize(
    "words",
    [
        ["compose", "deploy.yaml", "--inference-pool"],
        ["k8s", "deploy.yaml", "--gateway", "edge"],
        ["k8s", "deploy.yaml", "--endpoint-picker", "picker"],
        ["k8s", "deploy.yaml", "--inference-pool", "--gateway", "A_B"],
    ],
)
def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["render", *words])
    assert ended.value.code == 2
