"""What is rendered: the same bytes every time, valid for the program that reads it, and true to the one file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from tests.models.gguf_files import write_gguf

import stoker.builtin
from stoker import __version__
from stoker.cli.app import main
from stoker.cli.flags.writing import RenderFlags
from stoker.cli.render import run
from stoker.config import load_deployment

from ..config.model_files import write_safetensors
from .rendering import GOLDEN, check_object, objects, refused, rendered

SECRET = "sk-written-4711"
FILES = {
    "base.yaml": "scheduler: {max_num_seqs: 4}\n",
    "deploy.yaml": (
        "# one file for everything\n"
        "extends: ./base.yaml\n"
        "model:\n"
        "  model: builtin:tiny\n"
        "  max_model_len: ${LENGTH:-1k}\n"
        "device: {num_threads: 2}\n"
        "server:\n"
        '  api_key: [{env: API_KEY}, "${OTHER_KEY:?set it}", {file: ./keys/team-a}]\n'
        "  chat_template: templates/chat.jinja\n"
        "  drain_timeout: 45s\n"
        "  port: 8080\n"
    ),
    "open.yaml": "model: {model: builtin:tiny}\nserver: {auth: none}\n",
    "gpu.yaml": "model: {model: builtin:tiny}\ndevice: {device: cuda}\nserver: {auth: none}\n",
    "keys/team-a": SECRET,
    "templates/chat.jinja": "{{ messages[0].content }}\n",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ENGINE_")] + ["API_KEY", "OTHER_KEY"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LENGTH", "512")
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)


@pytest.mark.parametrize("form", ["k8s", "compose", "systemd"])
def test_output_is_deterministic(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    golden = GOLDEN / {"k8s": "k8s.yaml", "compose": "compose.yaml", "systemd": "stoker.service"}[form]
    more = {"replicas": 2, "namespace": "llm"} if form == "k8s" else {}
    text = rendered(capsys, form, name="chat", **more)
    assert SECRET not in text
    assert text == golden.read_text()


@pytest.mark.parametrize("file", ["deploy.yaml", "open.yaml", "gpu.yaml"])
def test_every_object_is_valid_in_kubernetes(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = objects(rendered(capsys, "k8s", file, replicas=2))
    assert list(found) == ["ConfigMap", "Deployment", "Service", "PodDisruptionBudget"]
    for each in found.values():
        check_object(each)


@pytest.mark.parametrize("file", ["deploy.yaml", "open.yaml", "gpu.yaml"])
def test_the_compose_file_is_valid(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, "compose", file, replicas=2)
    jsonschema.validate(yaml.safe_load(text), json.loads((GOLDEN / "compose.schema.json").read_text()))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
@pytest.mark.parametrize("file", ["deploy.yaml", "open.yaml", "gpu.yaml"])
def test_the_unit_is_valid_in_systemd(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    unit = Path("stoker-chat.service")
    unit.write_text(rendered(capsys, "systemd", file, name="chat", program=shutil.which("true")))
    result = subprocess.run(["systemd-analyze", "verify", f"./{unit}"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_device_cuda_requests_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    pod = objects(rendered(capsys, "k8s", "gpu.yaml"))["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    (service,) = yaml.safe_load(rendered(capsys, "compose", "gpu.yaml"))["services"].values()
    devices = [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
    assert service["deploy"] == {"resources": {"reservations": {"devices": devices}}}
    assert "mem_limit" not in service
    unit = rendered(capsys, "systemd", "gpu.yaml")
    assert "PrivateDevices" not in unit
    assert "ProtectKernelModules=yes" in unit
    assert "PrivateDevices=yes" in rendered(capsys, "systemd", "open.yaml")


@pytest.mark.parametrize(("file", "image"), [("open.yaml", "stoker:VERSION"), ("gpu.yaml", "stoker:VERSION-cuda")])
def test_the_image_is_that_of_make_image(file: str, image: str, capsys: pytest.CaptureFixture[str]) -> None:
    image = image.replace("VERSION", __version__)
    assert run(RenderFlags("k8s", file)) == run(RenderFlags("compose", file)) == 0
    assert re.findall(r"^ *(?:- )?image: (.+)$", capsys.readouterr().out, re.MULTILINE) == [image, image]


def test_the_bundle_is_a_deployment_on_the_other_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ConfigMap and the Secret, laid out as the volumes say, are what was written."""
    found = objects(rendered(capsys, "k8s"))
    pod = found["Deployment"]["spec"]["template"]["spec"]
    config_map, secret = pod["volumes"][0]["projected"]["sources"]
    there = tmp_path / "there"
    for item in config_map["configMap"]["items"]:
        target = there / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(found["ConfigMap"]["data"][item["key"]])
    for item in secret["secret"]["items"]:
        (there / item["path"]).parent.mkdir(parents=True, exist_ok=True)
        (there / item["path"]).write_text("from the secret")
    (container,) = pod["containers"]
    file = there / Path(container["command"][-1]).relative_to("/etc/stoker")
    env = {each["name"]: each.get("value", "from the environment") for each in container["env"]}
    deployment = load_deployment([file], env=env)
    keys = [key.get_secret_value() for key in deployment.server.api_key]
    assert keys == ["from the environment", "from the environment", "from the secret"]
    assert (deployment.model.max_model_len, deployment.scheduler.max_num_seqs) == (512, 4)
    assert deployment.server.host == "0.0.0.0"
    assert Path(deployment.located("server.chat_template")).read_text() == FILES["templates/chat.jinja"]


def test_ports_and_probes_follow_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    found = objects(rendered(capsys, "k8s"))
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    assert found["Service"]["spec"]["ports"][0]["port"] == 8080
    probes = {name: container[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/livez"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("events", "ports"),
    [
        ("{}", {}),
        ("{enable_kv_cache_events: true}", {"kv-events": 5557}),
        (
            "{enable_kv_cache_events: true}\nparallel: {data_parallel_size: 2}",
            {"kv-events-0": 5557, "kv-events-1": 5558},
        ),
        ('{enable_kv_cache_events: true, replay_endpoint: "tcp://*:5558"}', {"kv-events": 5557, "kv-replay": 5558}),
        ('{enable_kv_cache_events: true, endpoint: "tcp://router:5557"}', {}),
        ('{enable_kv_cache_events: true, endpoint: "ipc:///run/events"}', {}),
        ('{endpoint: "tcp://*:5600"}', {}),
    ],
)
def test_subscribers_of_events_reach_a_port_of_the_pod(
    events: str, ports: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("events.yaml").write_text(f"{FILES['open.yaml']}kv_events: {events}\n")
    found = objects(rendered(capsys, "k8s", "events.yaml"))
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"][1:]} == ports
    assert len(found["Service"]["spec"]["ports"]) == 1


@pytest.mark.parametrize(
    ("options", "address", "ports"),
    [
        ("{}", None, []),
        ("{kv_connector: TcpConnector}", "$(POD_IP)", [5600]),
        ("{kv_connector: TcpConnector, kv_role: kv_consumer}", "$(POD_IP)", []),
        ("{kv_connector: TcpConnector, kv_ip: 10.0.0.9}", None, [5600]),
        ("{kv_connector: TcpConnector}\nparallel: {data_parallel_size: 2}", "$(POD_IP)", [5600, 5601]),
    ],
)
def test_other_engines_read_blocks_at_the_address_of_the_pod(
    options: str, address: str | None, ports: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("transfer.yaml").write_text(f"{FILES['open.yaml']}kv_transfer: {options}\n")
    found = objects(rendered(capsys, "k8s", "transfer.yaml"))
    check_object(found["Deployment"])
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env.get("ENGINE__KV_TRANSFER__KV_IP") == address
    assert [port["containerPort"] for port in container["ports"][1:]] == ports


@pytest.mark.parametrize(("certificates", "probe"), [(0, "httpGet"), (2, "tcpSocket")])
def test_probes_use_tls_if_the_server_does(certificates: int, probe: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cert.pem", "key.pem", "ca.pem"):
        Path(name).write_text("PEM")
    tls = "ssl_certfile: cert.pem, ssl_keyfile: key.pem, ssl_ca_certs: ca.pem"
    Path("tls.yaml").write_text(
        f"model: {{model: builtin:tiny}}\nserver: {{auth: none, {tls}, ssl_cert_reqs: {certificates}}}\n"
    )
    found = objects(rendered(capsys, "k8s", "tls.yaml"))
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert probe in container["readinessProbe"]
    if not certificates:
        assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert sorted(found["ConfigMap"]["data"]) == ["ca.pem", "cert.pem", "tls.yaml"]  # the key is a secret


@pytest.mark.effect("server.drain_timeout")
def test_every_supervisor_waits_longer_than_the_drain(capsys: pytest.CaptureFixture[str]) -> None:
    pod = objects(rendered(capsys, "k8s"))["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 45 + 5 + 10
    service = yaml.safe_load(rendered(capsys, "compose"))["services"]["deploy"]
    assert service["stop_grace_period"] == "55s"
    assert "\nTimeoutStopSec=55s\n" in rendered(capsys, "systemd")


@pytest.mark.parametrize(("kv", "memory"), [("1GiB", 2304), ("9GiB", 11520)])
def test_memory_is_that_of_the_plan(kv: str, memory: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights and KV cache at 0.9 of the memory, and 1 GiB for the rest, in steps of 256 MiB."""
    Path("deploy.yaml").write_text(
        f"model: {{model: builtin:tiny}}\ncache: {{kv_cache_memory_bytes: {kv}}}\nserver: {{auth: none}}\n"
    )
    pod = objects(rendered(capsys, "k8s"))["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["memory"] == f"{memory}Mi"
    assert f"\nMemoryMax={memory}M\n" in rendered(capsys, "systemd")


def test_replicas_need_their_memory_and_threads_together(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(
        "model: {model: builtin:tiny}\ncache: {kv_cache_memory_bytes: 1GiB}\nserver: {auth: none}\n"
        "parallel: {data_parallel_size: 2}\ndevice: {num_threads: 3}\n"
    )
    pod = objects(rendered(capsys, "k8s"))["Deployment"]["spec"]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    assert resources["limits"]["memory"] == "4352Mi"
    assert resources["requests"]["cpu"] == "6"
    Path("gpus.yaml").write_text(FILES["gpu.yaml"] + "parallel: {data_parallel_size: 2}\n")
    pod = objects(rendered(capsys, "k8s", "gpus.yaml"))["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    service = yaml.safe_load(rendered(capsys, "compose", "gpus.yaml"))["services"]["gpus"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2


def test_memory_and_threads_are_of_all_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: a model on two processes got the memory of one."""
    found = []
    for size in (1, 2):
        Path("two.yaml").write_text(
            "model: {model: builtin:tiny}\nserver: {auth: none}\ndevice: {num_threads: 3}\n"
            f"cache: {{kv_cache_memory_bytes: 1GiB}}\nparallel: {{tensor_parallel_size: {size}}}\n"
        )
        pod = objects(rendered(capsys, "k8s", "two.yaml"))["Deployment"]["spec"]["template"]["spec"]
        requests = pod["containers"][0]["resources"]["requests"]
        found.append((int(requests["memory"].removesuffix("Mi")), requests["cpu"]))
    (one, cpu), (two, cpus) = found
    assert (cpu, cpus) == ("3", "6")
    assert two >= one + 2 * 1024  # a process has 1 GiB of KV cache and 1 GiB for the rest


def test_a_container_may_bind_processes_if_the_deployment_does(capsys: pytest.CaptureFixture[str]) -> None:
    Path("numa.yaml").write_text(
        "model: {model: builtin:tiny}\nparallel: {tensor_parallel_size: 2}\nserver: {auth: none}\n"
        "device: {numa_bind_nodes: [0, 0]}\n"
    )
    found = objects(rendered(capsys, "k8s", "numa.yaml"))
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_NICE"]}
    check_object(found["Deployment"])
    compose = yaml.safe_load(rendered(capsys, "compose", "numa.yaml"))
    jsonschema.validate(compose, json.loads((GOLDEN / "compose.schema.json").read_text()))
    (service,) = compose["services"].values()
    assert (service["cap_drop"], service["cap_add"]) == (["ALL"], ["SYS_NICE"])
    assert "SYS_NICE" not in rendered(capsys, "k8s", "open.yaml")


@pytest.mark.parametrize("device", ["{numa_bind: true}", "{num_threads: 100}", "{device: cuda}"])
def test_nothing_is_said_about_the_machine_that_is_planned_for(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A deployment with `numa_bind` had the warning that "this system lists no NUMA nodes"."""
    Path("there.yaml").write_text(f"model: {{model: builtin:tiny}}\nserver: {{auth: none}}\ndevice: {device}\n")
    assert run(RenderFlags("compose", "there.yaml")) == 0
    assert "warning" not in capsys.readouterr().err


def test_without_the_models_files_no_memory_request_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hub.yaml").write_text("model: {model: org/none}\nserver: {auth: none}\n")
    assert run(RenderFlags("k8s", "hub.yaml")) == 0
    answer, talk = capsys.readouterr()
    assert "memory" not in objects(answer)["Deployment"]["spec"]["template"]["spec"]["containers"][0].get(
        "resources", {}
    )
    assert "org/none is not on this machine, so no memory request is written" in talk


@pytest.mark.parametrize("form", ["k8s", "compose", "systemd"])
@pytest.mark.parametrize("secret", [SECRET, f"${{NOWHERE:-{SECRET}}}", f"[{{env: A}}, {SECRET}]"])
def test_a_secret_in_plain_text_is_not_copied(form: str, secret: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text(f"model: {{model: builtin:tiny}}\nserver:\n  api_key: {secret}\n")
    talk = refused(capsys, form)
    assert "error[C130]: `server.api_key` holds a secret in plain text" in talk
    assert SECRET not in talk


def test_a_container_serves_the_network_so_it_needs_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text("model: {model: builtin:tiny}\n")
    for form in ("k8s", "compose"):
        talk = refused(capsys, form)
        assert "error[R201]" in talk
        assert "note: in a container the server listens on 0.0.0.0" in talk
    assert run(RenderFlags("systemd", "deploy.yaml")) == 0  # it stays on 127.0.0.1


def test_a_models_folder_is_bundled_where_possible(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(Path(stoker.builtin.__file__).parent / "tiny", "weights")
    Path("deploy.yaml").write_text("model: {model: ./weights}\nserver: {auth: none}\n")
    assert "error[C131]: `model.model` cannot be bundled" in refused(capsys, "k8s")
    assert "write its absolute path" in refused(capsys, "systemd")
    volumes = yaml.safe_load(rendered(capsys, "compose"))["services"]["deploy"]["volumes"]
    assert volumes[0] == {
        "type": "bind", "source": "./weights", "target": "/etc/stoker/weights", "read_only": True
    }  # fmt: skip
    Path("deploy.yaml").write_text(f"model: {{model: {Path('weights').resolve()}}}\nserver: {{auth: none}}\n")
    assert "The image, or a volume that you add, must hold" in rendered(capsys, "k8s")
    file, _ = write_gguf(Path("weights"), Path("own"), "Q8_0")
    model = f"{{model: ./{file}, skip_tokenizer_init: true}}"
    Path("deploy.yaml").write_text(f"model: {model}\nserver: {{auth: none}}\n")
    assert "write its directory, which is mounted as it is" in refused(capsys, "compose")


def test_folders_of_adapters_are_mounted(capsys: pytest.CaptureFixture[str]) -> None:
    """They are part of a mapping, so that no option is the path of one."""
    shapes = {}
    for layer in range(5):
        module = f"base_model.model.model.layers.{layer}.mlp.down_proj"
        shapes |= {f"{module}.lora_A.weight": [4, 768], f"{module}.lora_B.weight": [256, 4]}
    Path("sql").mkdir()
    write_safetensors(Path("sql/adapter_model.safetensors"), shapes)
    Path("sql/adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    lora = "lora: {enable_lora: true, modules: {sql: {path: ./sql}}}"
    Path("deploy.yaml").write_text(f"model: {{model: builtin:tiny}}\nserver: {{auth: none}}\n{lora}\n")
    assert "error[C131]: `lora.modules` cannot be bundled" in refused(capsys, "k8s")
    volumes = yaml.safe_load(rendered(capsys, "compose"))["services"]["deploy"]["volumes"]
    assert volumes[0] == {"type": "bind", "source": "./sql", "target": "/etc/stoker/sql", "read_only": True}
    lora = f"lora: {{enable_lora: true}}\nserver: {{auth: none, lora_modules: ['sql={Path('sql').resolve()}']}}"
    Path("deploy.yaml").write_text(f"model: {{model: builtin:tiny}}\n{lora}\n")
    assert f"must hold {Path('sql').resolve()} (server.lora_modules)" in rendered(capsys, "k8s")


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("port: 0", "C131"),
        ("uds: /run/stoker.sock", "C131"),
        ("ssl_certfile: ./nowhere.pem, ssl_keyfile: ./nowhere.key", "C131"),
        ("port: http", "C104"),
    ],
)
def test_options_without_sense_in_a_container_are_reported(
    option: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("deploy.yaml").write_text(f"model: {{model: builtin:tiny}}\nserver: {{auth: none, {option}}}\n")
    assert f"error[{code}]" in refused(capsys, "k8s")


def test_variables_of_this_shell_are_not_bundled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = rendered(capsys, "k8s")
    monkeypatch.setenv("ENGINE__SERVER__PORT", "81")
    assert rendered(capsys, "k8s") == before


def test_systemd_passes_secret_files_to_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    """As root, so that the service's own user need not be able to read them."""
    unit = rendered(capsys, "systemd", name="chat")
    (line,) = re.findall(r'^Environment="ENGINE__SERVER__API_KEY=(.*)"$', unit, re.MULTILINE)
    written = json.loads(line.replace('\\"', '"'))
    assert written == [{"file": "%d/keys--team-a"}, {"env": "API_KEY"}, {"env": "OTHER_KEY"}]
    assert "\nLoadCredential=keys--team-a:/etc/stoker/chat/keys/team-a\n" in unit


@pytest.mark.parametrize(
    "words",
    [
        ["nomad", "deploy.yaml"],
        ["k8s", "-"],
        ["k8s", "deploy.yaml", "--name", "Not_A_Name"],
        ["k8s", "deploy.yaml", "--replicas", "0"],
        ["systemd", "deploy.yaml", "--image", "x"],
        ["compose", "deploy.yaml", "--namespace", "x"],
        ["systemd", "deploy.yaml", "--program", "engine"],
        ["k8s"],
    ],
)
def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["render", *words])
    assert ended.value.code == 2


def test_a_file_that_is_not_there_ends_with_78(capsys: pytest.CaptureFixture[str]) -> None:
    assert "error[C101]" in refused(capsys, "k8s", "nowhere.yaml")


def test_names_with_blanks_stay_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: systemd got the path `/etc/stoker/my-app/My`."""
    Path("My 50% App.yaml").write_text("model: {model: builtin:tiny}\nserver: {api_key: {file: ./keys/team a}}\n")
    Path("keys/team a").write_text("k")
    assert run(RenderFlags("systemd", "My 50% App.yaml", name="my-app")) == 0
    unit = capsys.readouterr().out
    assert 'ExecStart=/opt/stoker/bin/engine up "/etc/stoker/my-app/My 50%% App.yaml"\n' in unit
    assert "0644 './My 50% App.yaml' '/etc/stoker/my-app/My 50% App.yaml'\n" in unit
    assert run(RenderFlags("k8s", "My 50% App.yaml", name="my-app")) == 0
    assert "--from-file='keys--team-a=./keys/team a'\n" in capsys.readouterr().out


def test_a_socket_next_to_the_manifest_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deploy.yaml").write_text("model: {model: builtin:tiny}\nserver: {uds: ./s.sock}\n")
    assert run(RenderFlags("systemd", "deploy.yaml", name="mine")) == 78
    said = capsys.readouterr().err
    assert "the unit is not allowed to write there" in said
    assert "write /run/stoker/mine/NAME.sock" in said


def test_a_pod_with_gpus_ends_before_the_next_one_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """On a full node the new pod waited for the GPUs of the old one, which waited for the new one."""
    for file, surge in (("gpu.yaml", 0), ("open.yaml", 1)):
        assert run(RenderFlags("k8s", file)) == 0
        (found,) = (each for each in yaml.safe_load_all(capsys.readouterr().out) if each["kind"] == "Deployment")
        assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": surge, "maxUnavailable": 1 - surge}
