"""What is rendered for KServe: valid, and complete enough that nothing of KServe's own template is left in the pod."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import stoker.builtin
from stoker.cli.app import main
from stoker.config import load_deployment

from .rendering import GOLDEN, check_object, objects, refused, rendered

HUB = "model: {model: Qwen/Qwen3-0.6B}\nserver: {api_key: {env: API_KEY}}\n"
TINY = "model: {model: builtin:tiny}\nserver: {auth: none}\n"
TINY_FOLDER = Path(stoker.builtin.__file__).parent / "tiny"
URI = "pvc://models/tiny"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    Path("deploy.yaml").write_text(HUB)


def service(capsys: pytest.CaptureFixture[str], **wanted: Any) -> dict[str, Any]:
    found: dict[str, Any] = objects(rendered(capsys, "kserve", name="chat", **wanted))["LLMInferenceService"]
    return found


def container(found: dict[str, Any]) -> dict[str, Any]:
    (only,) = found["spec"]["template"]["containers"]
    return dict(only)


def test_output_is_deterministic(capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, "kserve", name="chat", namespace="llm", replicas=2)
    assert text == (GOLDEN / "kserve.yaml").read_text()


@pytest.mark.parametrize("more", ["", "kv_events: {enable_kv_cache_events: true}", "device: {device: cuda}"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_every_object_is_valid(more: str, replicas: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(f"{HUB}{more}\n")
    found = objects(rendered(capsys, "kserve", replicas=replicas))
    assert list(found) == ["ConfigMap", "LLMInferenceService"]
    for each in found.values():
        check_object(each)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("apiVersion",), "serving.kserve.io/v1beta1"),
        (("spec", "modelUri"), "hf://a/b"),
        (("spec", "model"), {"name": "no uri"}),
        (("spec", "router", "endpointPicker"), {}),
        (("spec", "template", "container"), []),
        (("spec", "parallelism"), {"tensors": 2}),
    ],
)
def test_the_check_refuses_wrong_fields(path: tuple[str, ...], value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = copy.deepcopy(service(capsys))
    *parents, last = path
    place = wrong
    for name in parents:
        place = place[name]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        check_object(wrong)


@pytest.mark.parametrize(
    ("model", "uri"),
    [
        ("{model: Qwen/Qwen3-0.6B}", "hf://Qwen/Qwen3-0.6B"),
        ("{model: Qwen/Qwen3-0.6B, revision: v1.0}", "hf://Qwen/Qwen3-0.6B:v1.0"),
    ],
)
def test_the_model_is_fetched_by_kserve(model: str, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(HUB.replace("{model: Qwen/Qwen3-0.6B}", model))
    assert service(capsys)["spec"]["model"] == {"uri": uri, "name": "Qwen/Qwen3-0.6B"}


def test_the_server_reads_what_kserve_mounts_and_keeps_its_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The embedded file with the variables of the container is a valid deployment, of the folder that KServe mounts."""
    monkeypatch.setenv("API_KEY", "k")
    env = {each["name"]: each.get("value", "k") for each in container(service(capsys))["env"]}
    deployment = load_deployment([Path("deploy.yaml")], env=env)
    assert (deployment.model.model, deployment.model.served_model_name) == ("/mnt/models", ("Qwen/Qwen3-0.6B",))
    env["ENGINE__MODEL__MODEL"] = str(TINY_FOLDER)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        main(["validate", "deploy.yaml"])
    assert ended.value.code == 0


def test_written_names_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(HUB.replace("0.6B}", "0.6B, served_model_name: [chat, qwen]}"))
    found = service(capsys)
    assert found["spec"]["model"]["name"] == "chat"
    assert "ENGINE__MODEL__SERVED_MODEL_NAME" not in {each["name"] for each in container(found)["env"]}


def test_nothing_of_kserves_template_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """It sets these for another engine: a merge keeps what is not written."""
    found = service(capsys)
    only = container(found)
    assert only["name"] == "main"
    assert (only["command"], only["args"]) == (["engine"], ["up", "/etc/stoker/deploy.yaml"])
    assert found["spec"]["template"]["terminationGracePeriodSeconds"] == 45
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert (only[name]["httpGet"]["scheme"], only[name]["httpGet"]["port"]) == ("HTTP", "http")
    assert only["ports"] == [{"name": "http", "containerPort": 8000}]


def test_probes_use_tls_if_the_server_does(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("c.pem", "k.pem"):
        Path(name).write_text("PEM")
    Path("deploy.yaml").write_text(HUB.replace("server: {", "server: {ssl_certfile: c.pem, ssl_keyfile: k.pem, "))
    assert container(service(capsys))["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_only_several_pods_have_a_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    assert service(capsys)["spec"]["router"] == {"gateway": {}, "route": {}}
    assert service(capsys, replicas=3)["spec"]["router"] == {"gateway": {}, "route": {}, "scheduler": {}}


def test_a_folder_is_mounted_by_kserve_from_where_it_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("builtin:tiny", str(TINY_FOLDER)):
        Path("deploy.yaml").write_text(TINY.replace("builtin:tiny", model))
        talk = refused(capsys, "kserve")
        assert "error[C133]" in talk
        assert "--model-uri" in talk
    Path("deploy.yaml").write_text(TINY)
    found = service(capsys, model_uri=URI)
    assert found["spec"]["model"]["uri"] == URI
    assert container(found)["resources"]["limits"]["memory"].endswith("Mi")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("port: 8080", "KServe sends requests to port 8000"),
        ("ssl_certfile: c.pem, ssl_keyfile: k.pem, ssl_ca_certs: c.pem, ssl_cert_reqs: 2", "without a certificate"),
    ],
)
def test_a_server_that_kserve_cannot_reach_is_refused(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("c.pem", "k.pem"):
        Path(name).write_text("PEM")
    Path("deploy.yaml").write_text(f"{{model: {{model: Qwen/Qwen3-0.6B}}, server: {{auth: none, {options}}}}}\n")
    talk = refused(capsys, "kserve")
    assert "error[C133]" in talk
    assert message in talk


@pytest.mark.parametrize(
    "words",
    [["kserve", "deploy.yaml", "--model-uri", "weights"], ["k8s", "deploy.yaml", "--model-uri", "hf://a/b"]],
)
def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["render", *words])
    assert ended.value.code == 2
