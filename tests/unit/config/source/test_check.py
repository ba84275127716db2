from __future__ import annotations

from pathlib import Path

import pytest

from ..deployments import findings, load, message


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("server: {port: http}", "C104", '`server.port` is "http"'),
        ("server: {port: true}", "C104", "`server.port` is true"),
        ("server: {port: 70000}", "C107", "allowed: at least 0, at most 65535"),
        ("server: {port: [1]}", "C104", "`server.port` is a list"),
        ("server: {port: {a: 1}}", "C104", "`server.port` is a mapping"),
        ("cache: {gpu_memory_utilization: 1.4}", "C107", "allowed: greater than 0, at most 1"),
        ("cache: {gpu_memory_utilization: .nan}", "C107", "allowed: a number, greater than 0, at most 1"),
        ("cache: {block_size: 17}", "C107", "allowed: auto, 8, 16, 32, 64 or 128"),
        ("cache: {enable_prefix_caching: yes}", "C104", "did you mean `true`?"),
        ("cache: {enable_prefix_caching: 1}", "C104", "allowed: true or false"),
        ("scheduler: {scheduling_policy: priorty}", "C107", "did you mean `priority`?"),
        ("scheduler: {max_num_seqs: 0}", "C107", "allowed: auto or a whole number, at least 1"),
        ("scheduler: {max_num_seqs: 99999999999}", "C107", "at most 2147483647"),
        ("scheduler: {max_queued_tokens: 1.5K}", "C104", "write 1.5k for powers of 1000"),
        ("device: {device: 'cuda:1'}", "C118", "CUDA_VISIBLE_DEVICES selects the GPU"),
        ("device: {device: gpu}", "C118", "write cuda"),
        ("scheduler: {cuda_graph_sizes: [1, x]}", "C104", "allowed: a whole number or a list of them, at least 1"),
        ("scheduler: {cuda_graph_sizes: [1, '8']}", "C104", "write it without quotes"),
        ("scheduler: {cuda_graph_sizes: [1, 0]}", "C107", "at least 1"),
        ("server: {drain_timeout: .inf}", "C107", "`server.drain_timeout` is .inf"),
        ("server: {root_path: llm/}", "C107", '`server.root_path` is "llm/"'),
        ("server: {served: 1}", "C103", "no such key `server.served`"),
        ("cache: 16", "C104", "`cache` is a section"),
        ("server: port:8000", "C104", "write a space after `port:`"),
        ("server: {\u00a0port: 8000}", "C103", "U+00A0 NO-BREAK SPACE"),
        ("scheduler: {policy: fcfs}", "C103", "did you mean `scheduler.scheduling_policy`?"),
        ("lora: {max_prompt_adapters: 2}", "C118", "this build reads no prompt adapters"),
        (
            "parallel: {dp_sync_interval: 2}",
            "C118",
            "replicas that share experts agree before every step",
        ),
        ("parallel: {dp_sync_interval: many}", "C118", "it takes 16"),
        ("speculative: {method: medusa}", "C118", "drafts are found by `ngram`, or made by"),
        ("speculative: {metod: ngram}", "C103", "did you mean `speculative.method`?"),
        ("preset: fast", "C115", "there are: cpu-laptop, latency, long-context"),
        ("apiVersion: stoker/v2", "C107", "allowed: stoker/v1"),
        ("max-num-seqs: 3", "C103", "this key exists under `scheduler.`: `scheduler.max_num_seqs`"),
        ("server: {api_key: {vault: x}}", "C113", "allowed: a text, {env: NAME} or {file: path}"),
        ("server: {api_key: {env: NOWHERE}}", "C113", "the variable `NOWHERE` is not set"),
        ("server: {api_key: {file: nowhere}}", "C113", "no such file or directory"),
        ("server: {api_key: ['']}", "C113", "the secret is empty"),
        ("load: {load_format: tensorizer}", "C118", "this build does not read tensorizer's files; write safetensors"),
        ("load: {load_format: runai_streamer_sharded}", "C118", "this build reads files from a folder"),
        ("load: {load_format: fastsafetensors}", "C118", "its direct reads are for GPUs"),
    ],
)
def test_what_is_wrong_with_a_value_is_said(tmp_path: Path, line: str, code: str, said: str) -> None:
    text = f"model: {{model: x}}\n{line}\n"
    assert findings(tmp_path, text) == [code]
    assert said in message(tmp_path, text)


def test_texts_count_as_written(tmp_path: Path) -> None:
    model = load(tmp_path, "model: {model: 4.10, revision: 0123, served_model_name: [1.0, true, x]}").model
    assert (model.model, model.revision, model.served_model_name) == ("4.10", "0123", ("1.0", "true", "x"))


def test_a_single_value_is_a_list_of_one(tmp_path: Path) -> None:
    deployment = load(tmp_path, "model: {model: x, served_model_name: a}\nserver: {api_key: k}")
    assert deployment.model.served_model_name == ("a",)
    assert [key.get_secret_value() for key in deployment.server.api_key] == ["k"]


def test_secrets_come_from_variables_and_files_beside_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "team").write_text("sk-file\n")
    text = "model: {model: x, hf_token: {env: TOKEN}}\nserver: {api_key: [{file: keys/team}, {env: KEY}, plain]}"
    deployment = load(tmp_path, text, env={"TOKEN": "hf", "KEY": "sk-env"})
    assert deployment.model.hf_token is not None
    assert deployment.model.hf_token.get_secret_value() == "hf"
    assert [key.get_secret_value() for key in deployment.server.api_key] == ["sk-file", "sk-env", "plain"]


def test_a_wrong_value_that_is_overridden_is_reported_too(tmp_path: Path) -> None:
    assert findings(tmp_path, "model: {model: x}\nserver: {port: http}", "--port", "1") == ["C104"]


def test_all_errors_are_reported_in_one_run(tmp_path: Path) -> None:
    text = "model: {modle: x}\ncache: {block_sise: 16, gpu_memory_utilization: 2}\nserver: {port: http, auth: maybe}\n"
    assert findings(tmp_path, text, "--nope", env={"ENGINE__X__Y": "1"}) == [
        *("C103", "C103", "C107", "C104", "C107", "C120", "C116")
    ]


def test_a_model_is_required(tmp_path: Path) -> None:
    assert findings(tmp_path, "server: {port: 1}") == ["C105"]
    assert findings(tmp_path, "model: null\n") == ["C105"]
    assert findings(tmp_path, "") == ["C105"]


def test_minutes_and_mebibytes(tmp_path: Path) -> None:
    text = "model: {model: x}\nserver: {drain_timeout: 2m, max_request_bytes: 1MiB}\ncache: {kv_cache_memory_bytes: 4G}"
    deployment = load(tmp_path, text)
    assert deployment.server.drain_timeout == 120
    assert deployment.server.max_request_bytes == 1 << 20
    assert deployment.cache.kv_cache_memory_bytes == 4 << 30


@pytest.mark.parametrize("path", ["server.api_key", "model.hf_token"])
@pytest.mark.parametrize("written", ["${K:-}", "${K}", '"${K:-}"'])
def test_an_empty_variable_never_takes_a_secret_away(tmp_path: Path, path: str, written: str) -> None:
    """Once `api_key: ${KEY:-}` without quotes was null, and the server open."""
    section, _, name = path.partition(".")
    text = f"{section}:\n  {name}: {written}\n"
    assert findings(tmp_path, text, "--model", "x", env={"K": ""}) == ["C113"]


def test_a_secret_is_unset_by_null_alone(tmp_path: Path) -> None:
    text = "model: {model: x}\nserver: {api_key: written}\n"
    assert load(tmp_path, text, "--api-key!").server.api_key == ()
    assert load(tmp_path, text.replace("written", "null")).server.api_key == ()
    assert findings(tmp_path, text, "--api-key", "") == ["C113"]
    assert findings(tmp_path, text, env={"ENGINE__SERVER__API_KEY": ""}) == ["C113"]
    assert findings(tmp_path, text, env={"ENGINE__MODEL__HF_TOKEN": ""}) == ["C113"]


def test_the_asterisks_of_a_hidden_secret_are_no_secret(tmp_path: Path) -> None:
    """What `engine config` prints would otherwise serve with a key that everybody can guess."""
    said = message(tmp_path, 'model: {model: x}\nserver: {api_key: "**********"}\n')
    assert "error[C113]: the asterisks stand for a secret and are none" in said


FAULTS = {
    "  ": "the secret is blank",
    "sesame\n": "the secret contains a line break",
    "sesame\nopen": "the secret contains a line break",
    " sesame": "the secret begins or ends with a blank",
    "sesame ": "the secret begins or ends with a blank",
    "ключ": "the secret contains a character that is not printable ASCII",
    "schlüssel": "the secret contains a character that is not printable ASCII",
    "sesame\topen": "the secret contains a character that is not printable ASCII",
}


@pytest.mark.parametrize("secret", FAULTS)
@pytest.mark.parametrize("path", ["server.api_key", "model.hf_token"])
@pytest.mark.parametrize("form", ["{env: K}", "[good, {env: K}]", '"${K}"', '"%s"'])
def test_a_secret_that_cannot_be_sent_in_a_header_is_refused_with_its_line(
    tmp_path: Path, path: str, secret: str, form: str
) -> None:
    """With such a key every request was answered 401."""
    section, _, name = path.partition(".")
    if form.startswith("[") and name == "hf_token":
        pytest.skip("one token")
    written = form.replace("%s", secret.replace("\n", "\\n").replace("\t", "\\t"))
    said = message(tmp_path, f"# a deployment\n{section}:\n  {name}: {written}\n", "--model", "x", env={"K": secret})
    assert f"error[C113]: {FAULTS[secret]}\n  --> deploy.yaml:3:" in said
    assert not any(part in said for part in secret.split())


def test_a_secret_file_with_two_lines_is_refused_and_one_line_is_not(tmp_path: Path) -> None:
    text = "model: {model: x}\nserver: {api_key: {file: key}}\n"
    (tmp_path / "key").write_text("one\ntwo\n")
    assert "error[C113]: the secret contains a line break" in message(tmp_path, text)
    (tmp_path / "key").write_text(" one two \n")
    assert [key.get_secret_value() for key in load(tmp_path, text).server.api_key] == ["one two"]


def test_the_variables_that_secrets_are_read_from_are_known(tmp_path: Path) -> None:
    text = """
    x-key: &key {env: ALIASED}
    model: {model: "${MODEL}", hf_token: {env: HUB}}
    server:
      api_key: [{env: ONE}, "${TWO}", "a-${THREE}-${FOUR:-${FIVE}}", {file: "${FOLDER}/key"}, written, *key]
    """
    (tmp_path / "key").write_text("k")
    env = dict.fromkeys(["ALIASED", "HUB", "ONE", "TWO", "THREE", "FOUR", "MODEL", "OTHER"], "v")
    env |= {"FOLDER": str(tmp_path), "ENGINE__MODEL__HF_TOKEN": "stronger", "ENGINE__SERVER__PORT": "1"}
    expected = {"ALIASED", "HUB", "ONE", "TWO", "THREE", "FOUR", "FIVE", "ENGINE__MODEL__HF_TOKEN"}
    assert load(tmp_path, text, env=env).secret_variables == expected


def test_a_name_in_place_of_the_model_section_is_shown_where_it_belongs(tmp_path: Path) -> None:
    said = message(tmp_path, "model: builtin:tiny\n")
    assert "write `model: {model: builtin:tiny}`" in said
    assert "sk-1" not in message(tmp_path, "model: {model: x}\nserver: sk-1\n")
