"""Launches in files of other programs, and what of a launch only its machine can know: nothing is lost silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.flags.writing import ImportFlags
from stoker.cli.import_ import run
from stoker.config import ConfigError, load_deployment
from stoker.config.importer.draft import Draft
from stoker.config.importer.manifest import manifest_text, manifest_tree
from stoker.config.importer.read import import_script, import_yaml, summary_of


def left_of(draft: Draft) -> dict[str, str]:
    return {left.written: left.kind for left in draft.left if left.kind != "needless"}


@pytest.mark.parametrize(
    "expansion",
    ["$(date +%F)", "$((8000 + 1))", "`date`", "$1", "${N%%-*}", '${N/a/"b c"}', "${1:-a}", "$(a $(b) ')')"],
)
def test_the_words_after_an_expansion_are_read(expansion: str) -> None:
    """`$(...)` ended the command: the key after it was lost, and the manifest said that there was none."""
    line = f"vllm serve m/x --host 0.0.0.0 --served-model-name q-{expansion} --api-key SECRET --seed 7"
    draft = import_script(line)
    assert set(draft.values) == {"model.model", "model.seed", "server.host"}
    assert draft.secrets == {"server.api_key": ("API_KEY",)}
    assert left_of(draft) == {f"--served-model-name q-{expansion}": "undecided"}
    assert expansion in manifest_text(draft).replace("\n  #   ", " ")


def test_a_container_is_found_behind_an_expansion() -> None:
    draft = import_script("docker run -v $(pwd)/models:/m -p 1:2 ghcr.io/ggml-org/llama.cpp:server -m a.gguf")
    assert draft.values["model.model"].value == "a.gguf"
    assert any("$(pwd)/models:/m" in note for note in draft.notes)


def test_forms_within_forms_are_those_of_a_manifest(tmp_path: Path) -> None:
    """`$` was doubled, so that the model was called `${X:-${Y:-m/x}}`."""
    file = tmp_path / "deploy.yaml"
    file.write_text(manifest_text(import_script('A="${X:-${Y:-m/x}}"; vllm serve "$A"')))
    assert load_deployment([file], [], {}).model.model == "m/x"
    assert load_deployment([file], [], {"Y": "n/y"}).model.model == "n/y"


UNIT = """\
[Unit]
Description=a model
[Service]
# a comment
Environment=VLLM_API_KEY=K
Environment="MODEL_ID=m/x" 'OTHER=1'
EnvironmentFile=-/etc/vllm.env
User=vllm
ExecStart=-@/v/bin/vllm vllm serve ${MODEL_ID} --host 0.0.0.0 \\
  # a comment within
  --port 80%i --served-model-name "a b" 100%% $FLAGS --revision a$b
"""


@pytest.mark.parametrize("prefix", ["", "-", "-@", "+", ":!"])
def test_a_unit_of_systemd(prefix: str) -> None:
    """Its Environment= was dropped without a word, so that a server with a key became an open one."""
    draft = import_script(UNIT.replace("-@/v/bin/vllm vllm", f"{prefix}/v/bin/vllm" + " vllm" * ("@" in prefix)))
    assert draft.secrets == {"server.api_key": ("VLLM_API_KEY",)}
    if ":" not in prefix:  # which means that variables are not replaced
        assert draft.values["model.model"].value == "m/x"
        assert draft.values["model.revision"].text == "a$$b"
        assert draft.values["model.served_model_name"].plain() == ["a b", "100%"]
    flags = {} if ":" in prefix else {"${FLAGS}": "undecided"}
    assert left_of(draft) == flags | {
        "OTHER=1": "no counterpart",
        "--port 80%i": "undecided",
        "/etc/vllm.env": "undecided",
    }
    assert "Description, User" in " ".join(draft.notes)


def test_a_drop_in_replaces_what_a_unit_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = tmp_path / "vllm.service"
    unit.write_text(UNIT)
    (tmp_path / "vllm.service.d").mkdir()
    (tmp_path / "vllm.service.d" / "10.conf").write_text("[Service]\nExecStart=\nExecStart=/v/vllm serve n/y\n")
    assert run(ImportFlags([str(unit)])) == 0
    assert "model: n/y\n" in capsys.readouterr().out


def test_programs_of_supervisord() -> None:
    draft = import_script('[program:llm]\ncommand=vllm serve m --host 0.0.0.0\nenvironment=VLLM_API_KEY="k",A="b"\n')
    assert draft.secrets == {"server.api_key": ("VLLM_API_KEY",)}
    assert left_of(draft) == {"A=b": "no counterpart"}


def test_a_dockerfile() -> None:
    text = "FROM vllm/vllm-openai AS a\nENV VLLM_API_KEY=k \\\n  M=m/x\nRUN x\n"
    text += 'CMD ["--model", "m/x", "--host", "0.0.0.0"]\n'
    draft = import_script(text)
    assert draft.values["model.model"].value == "m/x"
    assert draft.secrets == {"server.api_key": ("VLLM_API_KEY",)}
    assert import_script("FROM python\nENV M m/x\nCMD vllm serve $M\n").values["model.model"].value == "m/x"


@pytest.mark.parametrize(
    "launch",
    [
        "docker run --env-file e vllm/vllm-openai --model m --host 0.0.0.0",
        "source .env; vllm serve m --host 0.0.0.0",
        "export $(cat .env); vllm serve m --host 0.0.0.0",
        "vllm serve m --host 0.0.0.0 $EXTRA",
        'vllm serve m --host 0.0.0.0 "$@"',
        "vllm serve m --host 0.0.0.0 --keys-file f",
        "vllm serve m --host 0.0.0.0 --auth-token t",
        "A=(m); if [ $K ]; then A+=(--api-key $K); fi; vllm serve ${A[@]} --host 0.0.0.0",
        "python -m sglang.launch_server --model-path m --host 0.0.0.0 --admin-api-key k",
        "VLLM_API_KEY=k; vllm serve m --host 0.0.0.0",
        'while read line; do export "$line"; done < .env; vllm serve m --host 0.0.0.0',
        'eval "$(cat env.sh)"; vllm serve m/x --host 0.0.0.0',
        "env $(cat .env) vllm serve m/x --host 0.0.0.0",
        "op run --env-file=.env -- vllm serve m/x --host 0.0.0.0",
        "nohup dotenv run vllm serve m/x --host 0.0.0.0",
        "cat arguments | xargs vllm serve m/x --host 0.0.0.0",
        "kubectl exec pod -- vllm serve m/x --host 0.0.0.0",
        "podman run --secret key,type=env,target=VLLM_API_KEY vllm/vllm-openai --model m/x --host 0.0.0.0",
        "python -m sglang.launch_server --config sglang.yaml --host 0.0.0.0",
    ],
)
def test_what_may_hold_a_key_is_never_called_no_key(launch: str) -> None:
    """A key file became `auth: none` with the remark that no key was given."""
    draft = import_script(launch)
    assert "server.auth" not in draft.values
    assert "may hold a key" in " ".join(draft.notes)
    assert summary_of(draft)["lost"] > 0


@pytest.mark.parametrize(
    "launch",
    [
        "export VLLM_API_KEY; vllm serve m/x --host 0.0.0.0",
        "read -s VLLM_API_KEY; export VLLM_API_KEY\nvllm serve m/x --host 0.0.0.0",
        "declare -x VLLM_API_KEY=SECRET; vllm serve m/x --host 0.0.0.0",
        "set -a; VLLM_API_KEY=SECRET; set +a; vllm serve m/x --host 0.0.0.0",
        "set -o allexport; VLLM_API_KEY=SECRET; vllm serve m/x --host 0.0.0.0",
        "apptainer exec --nv --env VLLM_API_KEY=SECRET a.sif vllm serve m/x --host 0.0.0.0",
        "systemd-run -E VLLM_API_KEY=SECRET vllm serve m/x --host 0.0.0.0",
        "systemd-run --setenv=VLLM_API_KEY=SECRET vllm serve m/x --host 0.0.0.0",
    ],
)
def test_a_key_that_a_launch_exports_is_asked_for(launch: str) -> None:
    """Only `export NAME=value` and `NAME=value vllm` were known: the others became an open server."""
    draft = import_script(launch)
    assert draft.secrets == {"server.api_key": ("VLLM_API_KEY",)}
    assert "SECRET" not in manifest_text(draft)


def test_a_flat_file_that_is_named_may_have_a_key() -> None:
    draft = import_script("vllm serve --config vllm.yaml --host 0.0.0.0")
    assert "server.auth" not in draft.values
    assert any("`--config vllm.yaml` may hold a key" in note for note in draft.notes)


@pytest.mark.parametrize("wrapper", ["numactl -N 0", "sudo -E", "timeout 60 nice", "uv run", "ssh host"])
def test_a_wrapper_that_sets_nothing_is_no_doubt(wrapper: str) -> None:
    draft = import_script(f"{wrapper} vllm serve m/x --host 0.0.0.0")
    assert draft.values["server.auth"].text == "none"
    assert any(f"`{wrapper}`" in note for note in draft.notes)


@pytest.mark.parametrize(
    "script",
    [
        "vllm serve m/x \\ \n  --host 0.0.0.0 --api-key SECRET\n",
        "vllm serve m/x\n  --host 0.0.0.0 --api-key SECRET\n",
        "vllm serve m/x \\\n  # for all\n  --host 0.0.0.0 \\\n  --api-key SECRET\n",
        "vllm serve m/x\n--host 0.0.0.0\n--api-key SECRET\n",
    ],
)
def test_options_on_a_line_of_their_own_are_read(script: str) -> None:
    """A space after the backslash, or a comment within, ended the command: a key was lost without a word."""
    draft = import_script(script)
    assert draft.values["server.host"].value == "0.0.0.0"
    assert draft.secrets == {"server.api_key": ("API_KEY",)}
    assert not draft.left
    assert any("begins a line of its own" in note for note in draft.notes)
    assert "SECRET" not in manifest_text(draft)


def test_a_command_of_llama_swap_in_several_lines() -> None:
    """Only its first line was read: `0 options, 0 without a counterpart`."""
    command = ["/app/llama-server", "--port ${PORT}", "-m a.gguf", "--api-key SECRET"]
    lines = "".join(f"      {line}\n" for line in command)
    draft = import_yaml(f"models:\n  q:\n    cmd: |\n{lines}", "swap.yaml")
    assert draft.values["model.model"].value == "a.gguf"
    assert draft.secrets == {"server.api_key": ("API_KEY",)}


def test_places_of_a_template_are_to_be_decided() -> None:
    """`{{ .Values.model }}` was three words, and the model was called `{{`."""
    draft = import_script("vllm serve {{ .Values.model }} --port {{port}} --seed 7")
    assert set(draft.values) == {"model.seed"}
    assert left_of(draft) == {"MODEL {{ .Values.model }}": "undecided", "--port {{port}}": "undecided"}
    draft = import_script("vllm serve '{{ model }}' --chat-template '{{ bos_token }}'")
    assert {path: node.value for path, node in draft.values.items()} == {"server.chat_template": "{{ bos_token }}"}
    assert set(left_of(draft).values()) == {"undecided"}


def test_a_key_file_of_llama_cpp_is_a_secret_in_a_file() -> None:
    draft = import_script("llama-server -m a.gguf --host 0.0.0.0 --api-key-file F")
    assert manifest_tree(draft)["server"] == {"host": "0.0.0.0", "api_key": {"file": "F"}}


def test_the_other_servers_of_a_script_are_lost_words() -> None:
    draft = import_script("vllm serve a\nvllm serve b --api-key sk-1 --port 2")
    assert left_of(draft) == {"vllm: b --api-key ... --port 2": "no counterpart"}


@pytest.mark.parametrize(
    "text",
    [
        "ssh box 'cd x && vllm serve m --seed 7'",
        'tmux new-session -d -s a "vllm serve m --seed 7"',
        "cat > run.sh <<'END'\nvllm serve m --seed 7\nEND",
        "if true; then\n exec vllm serve m --seed 7\nfi",
        "for p in 1 2; do vllm serve m --seed 7 & done",
        "sudo -E numactl -N 0 python3 -u -m vllm.entrypoints.openai.api_server --model=m --seed=7",
        "env A=1 vllm serve m --seed 7",
        "vllm serve m \\\n  --seed 7 \\\n",
        "start() {\n vllm serve m --seed 7\n}\nstart",
    ],
)
def test_a_start_is_found_where_scripts_have_one(text: str) -> None:
    draft = import_script(text)
    assert (draft.values["model.model"].value, draft.values["model.seed"].value) == ("m", 7)


POD = """\
apiVersion: v1
kind: Secret
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    leaderTemplate:
      spec:
        containers:
          - name: leader
            image: vllm/vllm-openai:v1
            command: [sh, -c]
            args: ["vllm serve $MODEL --host 0.0.0.0 --max-model-len $(LEN) --seed $$(A)"]
            env:
              - {name: MODEL, value: m/x}
              - {name: LEN, value: "4096"}
              - {name: OTHER, value: x}
              - {name: VLLM_API_KEY, valueFrom: {secretKeyRef: {name: s, key: k}}}
            envFrom: [{secretRef: {name: more}}]
            ports: [{containerPort: 8000}]
"""


def test_containers_of_kubernetes_are_found_at_any_depth() -> None:
    """They were refused, or read as a flat file without options."""
    draft = import_yaml(POD, "pod.yaml")
    assert {path: node.plain() for path, node in draft.values.items()} == {
        "model.model": "m/x",
        "model.max_model_len": 4096,
        "server.host": "0.0.0.0",
    }
    assert draft.secrets == {"server.api_key": ("VLLM_API_KEY",)}
    assert left_of(draft) == {
        "--seed $(A)": "undecided",
        "OTHER=x": "no counterpart",
        "secretRef name=more": "undecided",
    }
    assert any("secretKeyRef name=s key=k" in note for note in draft.notes)


def test_a_runtime_of_kserve_is_vllm() -> None:
    draft = import_yaml(
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nspec:\n  predictor:\n    model:\n"
        "      modelFormat: {name: huggingface}\n      args: [--model, m/x, --max-model-len=4096]\n",
        "isvc.yaml",
    )
    assert draft.values["model.max_model_len"].value == 4096


def test_services_of_compose() -> None:
    draft = import_yaml(
        "services:\n  db: {image: postgres}\n  llm:\n    image: vllm/vllm-openai\n    env_file: .env\n"
        "    ports: ['1:2']\n"
        "    command: >\n      --model ${MODEL:-m/x} --revision 'a$$b' --seed $SEED --port ${P-1}\n"
        "    environment: [VLLM_API_KEY, A=1]\n",
        "compose.yaml",
    )
    assert {path: node.text for path, node in draft.values.items()} == {
        "model.model": "${MODEL:-m/x}",
        "model.revision": "a$$b",
        "model.seed": "${SEED}",
    }
    assert draft.secrets == {"server.api_key": ("VLLM_API_KEY",)}
    assert left_of(draft) == {"--port ${P-1}": "undecided", "A=1": "no counterpart", ".env": "undecided"}


@pytest.mark.parametrize(
    "content",
    [
        "resources: {accelerators: L4}\nenvs: {MODEL: m/x}\nrun: |\n  vllm serve $MODEL --host 127.0.0.1\n",
        "type: service\nenv: [MODEL=m/x]\ncommands:\n  - pip install vllm\n  - vllm serve $MODEL --host 127.0.0.1\n",
        "data:\n  run.sh: |\n    MODEL=m/x\n    vllm serve $MODEL --host 127.0.0.1\n",
    ],
)
def test_texts_of_documents_that_are_scripts(content: str) -> None:
    draft = import_yaml(content, "task.yaml")
    assert {path: node.text for path, node in draft.values.items()} == {
        "model.model": "m/x",
        "server.host": "127.0.0.1",
    }


@pytest.mark.parametrize(
    "content",
    [
        "image: {repository: a}\nreplicas: 3\n",
        "proxy_location: HeadOnly\napplications: [{name: a, import_path: b}]\n",
        "apiVersion: v1\nkind: Pod\nspec: {containers: [{image: nginx, args: [a]}]}\n",
        "a: 1\n---\nb: 2\n",
        "services: {a: {image: nginx}}\n",
    ],
)
def test_yaml_that_starts_no_server_is_refused(content: str) -> None:
    """It became a manifest without an option, with exit code 0."""
    with pytest.raises(ConfigError) as caught:
        import_yaml(content, "x.yaml")
    assert [finding.code for finding in caught.value.diagnostics] == ["C125"]
    assert caught.value.exit_code == 2


def test_several_values_of_an_unknown_flag_are_named_with_it() -> None:
    """The second and further ones were `a word that belongs to no option`."""
    assert left_of(import_script("vllm serve m --new-flag a b c --seed 7")) == {"--new-flag a b c": "unknown"}
    assert left_of(import_script("sglang serve --new-flag a b --tp 1")) == {"--new-flag a b": "unknown"}


def test_tokens_that_are_counted_are_no_secret() -> None:
    draft = import_script("sglang serve --model m --max-prefill-tokens 16384")
    assert "--max-prefill-tokens 16384" in left_of(draft)


def test_strict_fails_exactly_if_something_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ImportFlags(["vllm serve m --seed 7"], strict=True)) == 0
    assert "0 without a counterpart" in capsys.readouterr().err
    assert run(ImportFlags(["vllm serve m --seed $(x)"], strict=True)) == 1
    assert "1 without a counterpart" in capsys.readouterr().err


def test_what_only_says_how_to_start_is_no_start() -> None:
    """The line of an `echo "Usage: ... vllm serve args"` was read instead of the one that starts the server."""
    draft = import_script('echo "Usage: x, as in vllm serve a"; echo vllm serve b; pkill -f "vllm serve"\nvllm serve m')
    assert (draft.values["model.model"].value, left_of(draft)) == ("m", {})


def test_a_variable_after_a_list_is_no_item_of_it() -> None:
    """`--api-key $KEY $ARGS` made two keys, and `--model m $ARGS` another model."""
    draft = import_script('vllm serve --model m --port 80 --api-key $KEY $ARGS --served-model-name a "$B" $(c)')
    assert draft.values["model.model"].value == "m"
    assert draft.secrets == {"server.api_key": ("KEY",)}
    assert draft.values["model.served_model_name"].plain() == ["a"]
    assert left_of(draft) == {"${ARGS}": "undecided", "${B}": "undecided", "$(c)": "undecided"}
    draft = import_script("vllm serve --model m $ARGS")
    assert (draft.values["model.model"].value, left_of(draft)) == ("m", {"${ARGS}": "undecided"})


def test_a_template_that_only_the_other_engine_has_is_named() -> None:
    """`chatml` became the template itself, so that the model would have been asked: chatml."""
    for line, name in (("llama-server -m a.gguf", "chatml"), ("sglang serve --model m", "qwen2-vl")):
        draft = import_script(f"{line} --chat-template {name}")
        assert "server.chat_template" not in draft.values
        assert left_of(draft) == {f"--chat-template {name}": "no counterpart"}
        for written in ("./a.jinja", "'{{ messages }}'", "$T"):
            assert "server.chat_template" in import_script(f"{line} --chat-template {written}").values


def test_an_argument_of_a_wrapper_is_no_variable_and_environments_are_no_files() -> None:
    draft = import_script("source venv/bin/activate\nsystemd-run --scope -p MemoryMax=9G vllm serve m")
    assert left_of(draft) == {}
    assert "It ran under `systemd-run --scope -p MemoryMax=9G`" in " ".join(draft.notes)


def test_objects_in_a_here_document_are_read() -> None:
    draft = import_script(f"kubectl apply -f - <<END\n{POD}END\n")
    assert draft.values["model.model"].value == "m/x"


def test_a_makefile_is_no_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "Makefile"
    file.write_text("all:\n\tvllm serve m\n")
    assert run(ImportFlags([str(file)])) == 0
    assert "model: m\n" in capsys.readouterr().out
    file.write_text("# a comment\nservices:\n  a: {image: vllm/vllm-openai, command: --model other}\n")
    assert run(ImportFlags([str(file)])) == 0
    assert "model: other\n" in capsys.readouterr().out


def test_the_one_value_of_an_option_that_is_not_in_this_build_is_not_written() -> None:
    """`lora: {max_prompt_adapters: 1}` was kept where everything else about soft prompts was refused."""
    draft = import_script("vllm serve m --enable-prompt-adapter --max-prompt-adapters 1")
    assert set(draft.values) == {"model.model"}
    assert {left.written: left.kind for left in draft.left} == {
        "--enable-prompt-adapter": "refused",
        "--max-prompt-adapters 1": "needless",
    }


def test_a_supervisor_of_servers_is_refused_with_what_to_write_instead() -> None:
    options = {
        "-dpm": "data_parallel_multi_port_external_lb",
        "--data-parallel-supervisor-port 9300": "data_parallel_supervisor_port",
        "--dp-supervisor-probe-interval-s 2": "dp_supervisor_probe_interval_s",
        "--dp-supervisor-probe-timeout-s 2": "dp_supervisor_probe_timeout_s",
        "--dp-supervisor-probe-failure-threshold 5": "dp_supervisor_probe_failure_threshold",
    }
    draft = import_script(f"vllm serve m -dp 2 {' '.join(options)}")
    assert left_of(draft) == dict.fromkeys(options, "refused")
    assert [left.path for left in draft.left] == [f"parallel.{name}" for name in options.values()]
    assert all("`engine up FILE --data-parallel-rank R --port P`" in left.reason for left in draft.left)


def test_a_modelfile_is_quoted_as_it_is_written() -> None:
    """Messages about its values named an option `-x=`."""
    text = manifest_text(import_script("FROM ./m.gguf\nPARAMETER num_ctx abc\n", engine="ollama"))
    assert "PARAMETER num_ctx abc" in text
    assert "-x" not in text


def test_a_container_unit_of_podman() -> None:
    text = "[Container]\nImage=vllm/vllm-openai:latest\nExec=--model m --host 0.0.0.0\n"
    draft = import_script(f"{text}Environment=VLLM_API_KEY=k A=1\nPublishPort=80:8000\n")
    assert draft.values["model.model"].value == "m"
    assert draft.secrets == {"server.api_key": ("VLLM_API_KEY",)}
    assert left_of(draft) == {"A=1": "no counterpart"}
    assert "PublishPort" in " ".join(draft.notes)


@pytest.mark.parametrize(
    "line",
    [
        "cmake --build build -j 8 --target llama-server",
        "make llama-server",
        "cp build/bin/llama-server /usr/local/bin/",
        "sudo chmod +x /usr/local/bin/llama-server",
        "if [ ! -x ./build/bin/llama-server ]; then exit 1; fi",
        "[[ -x llama-server ]] || exit 1",
        "command -v llama-server || exit 1",
        "sudo -n systemctl restart llama-server",
        "docker rm -f llama-server",
        "docker compose logs -f llama-server",
        "timeout 5 pgrep -f llama-server",
        "killall -q -15 text-generation-launcher && sleep 1",
        "llama-server --version",
        "vllm serve --help",
    ],
)
def test_a_command_about_a_program_does_not_start_it(line: str) -> None:
    """The first server was `llama-server` without a word, and the one that starts was said to be another."""
    draft = import_script(f"{line}\nllama-server -m a.gguf -c 4096\n")
    assert draft.values["model.model"].text == "a.gguf"
    assert not any("servers are started" in note for note in draft.notes)


@pytest.mark.parametrize(
    "line",
    ["B=$(command -v vllm)", "B=$(which vllm || echo none)", "B=`which vllm`", 'B="${VLLM_BIN:-/opt/v/bin/vllm}"'],
)
def test_a_program_is_known_by_the_path_that_it_most_likely_has(line: str) -> None:
    draft = import_script(f'{line}\n"$B" serve m/x --seed 7')
    assert {path: node.text for path, node in draft.values.items()} == {"model.model": "m/x", "model.seed": "7"}


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve m/x --not-an-option 3 $MORE",
        "vllm serve m/x --not-an-option $MORE",
        "python -m sglang.launch_server --model-path m/x --not-an-option 3 $(cat more.txt)",
        'A=(); [ -n "$K" ] && A=(--admin "$K"); sglang serve --model-path m/x --not-an-option "${A[@]}"',
    ],
)
def test_a_variable_behind_an_unknown_option_may_hold_a_key(command: str) -> None:
    """`auth: none` was written, though the variable may hold `--api-key`."""
    draft = import_script(f"{command} --host 0.0.0.0")
    assert "server.auth" not in draft.values
    assert any("may hold a key of the API" in note for note in draft.notes)
    assert "server.auth" in import_script("vllm serve m/x --not-an-option 3 --host 0.0.0.0").values


WRITES_UNIT = """\
#!/bin/bash
BIN=/opt/v/bin
PORT="${PORT:-8005}"
cat > /etc/systemd/system/m.service <<EOF
[Unit]
Description=a model
[Service]
Environment=VLLM_API_KEY=K
ExecStart=$BIN/vllm serve m/x \\\\
    --host 0.0.0.0 --port $PORT --revision \\$REVISION \\\\
    --max-num-seqs $(nproc --all | head -1)
EOF
systemctl enable --now m
"""


def test_a_unit_that_a_script_writes_is_read_as_the_script_leaves_it() -> None:
    """The script was read as the unit: the model and each option were lost, and its variables were settings."""
    draft = import_script(WRITES_UNIT)
    values = {path: node.text for path, node in draft.values.items()}
    assert values == {
        "model.model": "m/x",
        "server.host": "0.0.0.0",
        "server.port": "${PORT:-8005}",
        "model.revision": "${REVISION}",
    }
    assert draft.secrets == {"server.api_key": ("VLLM_API_KEY",)}
    assert left_of(draft) == {"--max-num-seqs $(nproc --all | head -1)": "undecided"}
    assert not any("BIN" in note for note in draft.notes)


def test_a_program_of_supervisord_that_a_script_writes_is_found() -> None:
    draft = import_script("P=8005\ncat >x.conf << CONF\n[program:m]\ncommand=vllm serve m/x --port $P\nCONF\n")
    assert {path: node.text for path, node in draft.values.items()} == {"model.model": "m/x", "server.port": "8005"}
    quoted = import_script("P=8005\ncat >x <<'CONF'\n[program:m]\ncommand=vllm serve m/x --revision a$P\nCONF\n")
    assert quoted.values["model.revision"].text == "a$$P"


def test_a_command_of_supervisord_goes_on_in_indented_lines() -> None:
    """The lines were lost, and `0,1` was the name `CUDA_VISIBLE_DEVICES=0` and more."""
    text = (
        "; a remark\n[program:m]\ncommand=vllm serve\n    m/x\n    ; another\n    --port 8005 ; and one more\n"
        "environment=A=\"0,1\",B='2,3',C=4\nautostart=true ; yes\n"
    )
    draft = import_script(text)
    assert {path: node.text for path, node in draft.values.items()} == {"model.model": "m/x", "server.port": "8005"}
    assert set(left_of(draft)) == {"A=0,1", "B=2,3", "C=4"}


def test_a_container_finds_only_the_variables_that_its_command_names() -> None:
    """An exported MODEL_ID was the model, though the container does not get it; of `-e NAME` the value was lost."""
    image = "ghcr.io/huggingface/text-generation-inference:3"
    draft = import_script(f"export MODEL_ID=m/x MAX_TOTAL_TOKENS=512\ndocker run -e MODEL_ID {image}")
    assert {path: node.text for path, node in draft.values.items()} == {"model.model": "m/x"}
    assert "Variables that the script sets, and the container does not find: `MAX_TOTAL_TOKENS`." in draft.notes
    draft = import_script("export VLLM_API_KEY=k\ndocker run vllm/vllm-openai --model m/x --host 0.0.0.0")
    assert "server.auth" not in draft.values


def test_a_variable_that_branches_export_differently_is_undecided() -> None:
    draft = import_script("if x; then export OMP_NUM_THREADS=4; else export OMP_NUM_THREADS=8; fi; vllm serve m/x")
    assert "device.num_threads" not in draft.values
    assert any("`4` or `8`" in note for note in draft.notes)
    draft = import_script("N=2\n[[ -z $X || $X -lt 1 ]] && N=1\nvllm serve m/x --seed $N")
    assert "model.seed" not in draft.values


def test_a_switch_of_llama_cpp_is_on_or_off_as_a_variable() -> None:
    """`LLAMA_ARG_EMBEDDINGS=true` was the task `true`."""
    draft = import_script("LLAMA_ARG_EMBEDDINGS=true LLAMA_ARG_NO_WEBUI=1 llama-server -m a.gguf")
    assert draft.values["server.disable_web_page"].text == "true"
    assert draft.values["model.runner"].text == "pooling"
    draft = import_script("LLAMA_ARG_EMBEDDINGS=0 LLAMA_ARG_NO_WEBUI=0 llama-server -m a.gguf")
    assert draft.values["server.disable_web_page"].text == "false"
    assert "model.runner" not in draft.values


def test_a_note_on_branches_has_the_value_from_before_them() -> None:
    """`0.006` was named nowhere."""
    draft = import_script("R=${R:-6}\ncase $1 in a) R=$2;; b) R=$2;; esac\nvllm serve m/x --seed $R")
    assert "Branches of the script set `R`: `${R:-6}` or `$2`." in draft.notes


@pytest.mark.parametrize("program", ["$VLLM_BIN serve", "${MY_PYTHON} -m vllm.entrypoints.openai.api_server --model"])
def test_a_program_in_a_variable_is_known_by_the_rest(program: str) -> None:
    draft = import_script(f"{program} m/x --seed 7")
    assert {path: node.text for path, node in draft.values.items()} == {"model.model": "m/x", "model.seed": "7"}
    assert import_script("$LLAMA_SERVER_BIN -m a.gguf").values["model.model"].text == "a.gguf"
    with pytest.raises(ConfigError):
        import_script("$RUN -m a.gguf")


SERVICE = "m:\n  image: vllm/vllm-openai\n  command: >\n    --model m/x\n    --seed 7\n  environment: [A=1]\n"


def test_services_need_no_key_of_their_own() -> None:
    expected = {"model.model": "m/x", "model.seed": "7"}
    assert {path: node.text for path, node in import_yaml(SERVICE, "c.yaml").values.items()} == expected
    draft = import_script(f"cat >> compose.yaml << 'EOF'\n{SERVICE}EOF\ndocker compose up -d m\n")
    assert {path: node.text for path, node in draft.values.items()} == expected
    assert left_of(draft) == {"A=1": "no counterpart"}


def test_a_key_elsewhere_in_the_document_is_not_lost() -> None:
    """`auth: none` was written, though the containers of the cluster have a key."""
    text = (
        "kind: RayJob\nspec:\n  entrypoint: vllm serve m/x --host 0.0.0.0\n  rayClusterSpec:\n    containers:\n"
        "      - {name: h, image: ray, env: [{name: %s, value: secret123}]}\n"
    )
    draft = import_yaml(text % "VLLM_API_KEY", "job.yaml")
    assert "server.auth" not in draft.values
    assert left_of(draft) == {"rayClusterSpec": "undecided"}
    assert "secret123" not in manifest_text(draft)
    assert import_yaml(text % "A", "job.yaml").values["server.auth"].text == "none"


@pytest.mark.parametrize(
    "script",
    [
        'E=""; if x; then E="--api-key sk-123"; fi',
        "if x; then E='--api-key sk-123 --seed 1'; else E='--seed 3'; fi",
        "E='--seed 1'; if x; then E=\"$E --api-key=sk-123\"; fi",
        "E=(--seed 1); [ -n x ] && E+=(--api-key sk-123)",
        "for E in '--api-key sk-123' '--seed 1'; do x; done",
    ],
)
def test_a_key_in_a_branch_is_not_shown(script: str) -> None:
    """A note on the branches had the key itself."""
    text = manifest_text(import_script(f"{script}\nvllm serve m/x --host 0.0.0.0 $E ${{E[@]}}"))
    assert "sk-123" not in text
    assert "\n  auth: none" not in text


def test_a_command_of_supervisord_has_lines_for_a_shell() -> None:
    text = (
        "[program:m]\ncommand=/bin/sh -c 'exec vllm serve m/x \\\n  --seed 7 \\\n  --port 8005 >> log 2>&1'\nuser=u\n"
    )
    draft = import_script(text)
    values = {path: node.text for path, node in draft.values.items()}
    assert values == {"model.model": "m/x", "model.seed": "7", "server.port": "8005"}
    assert left_of(draft) == {}
