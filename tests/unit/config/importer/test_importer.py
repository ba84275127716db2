"""Launches as users write them: what they become, whole for some (tests/golden/import), by property for all."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.config import ConfigError, Deployment, load_deployment
from stoker.config.codes import CODES
from stoker.config.examine import report_on
from stoker.config.importer.draft import Draft
from stoker.config.importer.engine_tables import TABLES
from stoker.config.importer.launch import launches_of
from stoker.config.importer.manifest import manifest_text, manifest_tree
from stoker.config.importer.read import import_script, import_words, import_yaml
from stoker.config.schema.options import Option, options, section_flags

from ..deployments import MACHINE

HERE = Path(__file__).parent
GOLDEN = HERE.parents[2] / "golden" / "import"
COMMANDS: list[dict[str, Any]] = yaml.safe_load((HERE / "commands.yaml").read_text())
SECRETS = ("sk-123", "secret123", "secret-key", "key-one", "key-two", "<secret>")
SET = {
    name: f"value-of-{name}"
    for name in ("API_KEY", "API_KEY_2", "HF_TOKEN", "INFINITY_API_KEY", "VLLM_API_KEY", "VLLM_KEY", "LEN")
} | {"LEN": "1024"}
every_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command["name"])


def manifest(folder: Path, draft: Draft) -> Path:
    file = folder / "imported.yaml"
    file.write_text(manifest_text(draft))
    (folder / "vllm.yaml").write_text("model: Qwen/Qwen3-0.6B\n")
    return file


def loaded(folder: Path, draft: Draft) -> Deployment:
    return load_deployment([manifest(folder, draft)], [], SET)


def words_of(command: str) -> list[str]:
    """The options of a vLLM command line, as `engine serve` takes them."""
    (launch,) = launches_of(command)
    words = [word.replace("$$", "$") for word in launch.words]
    return words if words[0].startswith("-") else ["--model", *words]


@every_command
def test_the_result_is_a_deployment_that_nothing_is_wrong_with(command: dict[str, Any], tmp_path: Path) -> None:
    draft = import_script(command["text"])
    report = report_on([manifest(tmp_path, draft)], [], MACHINE, SET, is_elsewhere=True)
    assert [finding.as_text() for finding in report.errors if not finding.code.startswith("M")] == []


@every_command
def test_no_word_vanishes(command: dict[str, Any]) -> None:
    """Each flag of the command is a value in the manifest or in a comment."""
    draft = import_script(command["text"])
    text = manifest_text(draft)
    (launch, *_) = launches_of(command["text"])
    for word in launch.words:
        name = word.partition("=")[0]
        if not name.startswith("-") or name.lstrip("-")[:1].isdigit():
            continue
        plain = name.lstrip("-").partition(".")[0].rstrip("+").replace("-", "_").removeprefix("no_")
        keys = {option.name for option in options().values() if name.rstrip("+") in option.flags} | {plain}
        keys |= {"level"} if re.fullmatch("-O[0-3]", name) else {name.partition(".")[2].rstrip("+")} - {""}
        keys |= {section_flags()[name]} if name in section_flags() else set()
        is_there = any(re.search(rf"^ *#?{key}:", text, re.MULTILINE) for key in keys)
        renamed = launch.engine in ("sglang", "llama.cpp", "tgi", "tei", "infinity") and _is_set(draft, name)
        assert is_there or renamed or name in text, f"{name} is missing:\n{text}"


def _is_set(draft: Draft, name: str) -> bool:
    found = TABLES[draft.engine].get(name)
    return found is not None and any(
        found.path.startswith(path)
        for path in (*draft.values, *draft.secrets, *(left.path for left in draft.left if left.path))
    )


@every_command
def test_secrets_are_never_copied(command: dict[str, Any]) -> None:
    text = manifest_text(import_script(command["text"]))
    assert not [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.get("same")], ids=lambda command: command["name"])
def test_the_manifest_says_the_same_as_the_command_line(command: dict[str, Any], tmp_path: Path) -> None:
    direct = load_deployment([], words_of(command["text"]), SET)
    assert loaded(tmp_path, import_script(command["text"])).config == direct.config


@pytest.mark.parametrize("command", [c for c in COMMANDS if "lost" in c], ids=lambda command: command["name"])
def test_what_has_no_place_here_is_listed(command: dict[str, Any]) -> None:
    draft = import_script(command["text"])
    assert sorted(left.written for left in draft.left if left.kind != "needless") == sorted(command["lost"])


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.get("golden")], ids=lambda command: command["name"])
def test_the_manifest_is_the_one_in_the_golden_file(command: dict[str, Any]) -> None:
    """Delete a golden file and run the test to write it again."""
    file = GOLDEN / f"{command['name']}.yaml"
    text = manifest_text(import_script(command["text"]))
    if not file.exists():
        file.write_text(text)
    assert text == file.read_text()


@every_command
def test_the_tree_holds_what_the_text_says(command: dict[str, Any]) -> None:
    draft = import_script(command["text"])
    written = yaml.safe_load(manifest_text(draft))
    tree = manifest_tree(draft)
    assert {name: set(part) for name, part in written.items() if isinstance(part, dict)} == {
        name: set(part) for name, part in tree.items() if isinstance(part, dict)
    }


FLAGS = [option for option in options().values() if option.status == "effective" and option.section and option.examples]


def _written(option: Option) -> list[str]:
    value = option.examples[0]
    if option.kind == "flag":
        return [option.flags[0] if value else option.flags[1]]
    if option.kind == "mapping":
        return [option.flags[0], value if isinstance(value, str) else json.dumps(value)]
    values = value if isinstance(value, list) else [value]
    return [option.flags[0], *(item if isinstance(item, str) else str(item) for item in values)]


def test_every_effective_option_comes_through(tmp_path: Path) -> None:
    decided = {"server.auth"}  # not by a script of another engine
    for option in FLAGS:
        if option.is_secret:
            continue
        words = [*([] if option.path == "model.model" else ["--model", "x"]), *_written(option)]
        draft = import_words(["engine", "serve", *words])
        assert draft.left == [], option.path
        assert loaded(tmp_path, draft).config == load_deployment([], words, SET).config, option.path
        as_text = import_script("vllm serve " + " ".join(map(shlex.quote, words)))
        assert as_text.values.keys() | decided == draft.values.keys() | decided, option.path


def test_sizes_and_numbers_stay_as_they_were_written() -> None:
    text = manifest_text(
        import_script("vllm serve x --max-model-len 25.6k --gpu-memory-utilization 0.90 --revision 0123")
    )
    assert "max_model_len: 25.6k\n" in text
    assert "gpu_memory_utilization: 0.90\n" in text
    assert 'revision: "0123"\n' in text


def test_an_open_address_without_a_key_is_written_down_as_such() -> None:
    draft = import_script("vllm serve x --host 0.0.0.0")
    assert draft.values["server.auth"].value == "none"
    assert "server.auth" not in import_script("vllm serve x --host 127.0.0.1").values
    assert "server.auth" not in import_script("vllm serve x --host 0.0.0.0 --api-key k").values


def test_variables_of_the_shell_stay_variables(tmp_path: Path) -> None:
    draft = import_script("vllm serve x --port ${PORT:-9000} --api-key \"$KEY\" --revision 'a$b' --max-model-len $LEN")
    text = manifest_text(draft)
    assert "port: ${PORT:-9000}\n" in text
    assert "api_key: {env: KEY}\n" in text
    deployment = load_deployment([manifest(tmp_path, draft)], [], {"KEY": "k", "LEN": "2k"})
    assert (deployment.server.port, deployment.model.revision, deployment.model.max_model_len) == (9000, "a$b", 2000)


def test_words_that_a_shell_has_read_are_taken_as_they_are(tmp_path: Path) -> None:
    draft = import_words(["vllm", "serve", "x", "--revision", "a$b${c} 'd"])
    assert loaded(tmp_path, draft).model.revision == "a$b${c} 'd"


def test_the_first_of_several_servers_is_read_and_the_others_are_reported() -> None:
    draft = import_script("vllm serve a &\nvllm serve b --port 8001")
    assert draft.values["model.model"].value == "a"
    assert "2 servers are started there; this is the first of them." in draft.notes


FLAT = """\
model: Qwen/Qwen3-0.6B
max-model-len: 8k
enable-prefix-caching: false
async-scheduling: true
served-model-name: [a, b]
hf-overrides: {rope_theta: 1e6, nested: {deep: [1, 2]}}
revision: "0123"
download-dir: None
api-key: sk-123
"""


def test_a_flat_file_says_the_same_as_with_config(tmp_path: Path) -> None:
    file = tmp_path / "flat.yaml"
    file.write_text(FLAT.replace("api-key: sk-123", "api-key: value-of-API_KEY"))
    draft = import_yaml(FLAT, "flat.yaml")
    assert draft.left == []
    mine = loaded(tmp_path, draft).config
    assert mine.model_copy(update={"config": str(file)}) == load_deployment([], ["--config", str(file)], {}).config


def test_a_flat_file_of_sglang_is_known_by_its_keys() -> None:
    draft = import_yaml("model-path: x\ntp-size: 1\ndisable-radix-cache: true\nenable-metrics: false\n", "s.yaml")
    assert draft.engine == "sglang"
    assert {path: node.value for path, node in draft.values.items()} == {
        "model.model": "x",
        "parallel.tensor_parallel_size": 1,
        "cache.enable_prefix_caching": False,
    }


@pytest.mark.parametrize(
    "content", ["", "- a", "services: {}", "apiVersion: v1", "model: {model: x}", "a: [", "a: 1\na: 2", "\t"]
)
def test_what_is_not_a_flat_file_is_said_in_words(content: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_yaml(content, "x.yaml")
    assert {finding.code for finding in caught.value.diagnostics} <= set(CODES)


@pytest.mark.parametrize(
    "text", ["", "ls -l", "vllm", "vllm bench latency", "python -m http.server", "docker run x", "'"]
)
def test_what_starts_no_server_is_said_in_words(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_script(text)
    assert [finding.code for finding in caught.value.diagnostics] == ["C125"]


def test_options_alone_need_the_name_of_their_engine() -> None:
    assert import_words(["-c", "4096", "-m", "x"], "llama.cpp").values["model.max_model_len"].value == 4096
    assert import_script("--model x -q awq", engine="vllm").values["model.model"].value == "x"


WORD = st.sampled_from(
    [flag for option in options().values() for flag in option.flags[:2]]
    + [
        "-O3",
        "-O",
        "--no-x",
        "--",
        "-c",
        "-m",
        "--tp",
        "--cuda-graph-bs",
        "a=b",
        "{",
        '{"a":1}',
        "[1",
        "image=1",
        "",
        "$X",
        "${",
    ]
) | st.text(max_size=8)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(words=st.lists(WORD, max_size=8), engine=st.sampled_from(["vllm", "sglang", "llama.cpp"]))
@example(words=["--hf-overrides", "{}", "--hf-overrides.a!", "--model!"], engine="vllm")
def test_any_words_become_yaml_and_never_a_traceback(words: list[str], engine: Any) -> None:
    draft = import_words(words, engine)
    tree = yaml.safe_load(manifest_text(draft))
    assert tree["kind"] == "Deployment"
    assert {left.path for left in draft.left} <= {"", *options(), *(path.partition(".")[0] for path in options())}


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.sampled_from("abvllm serve -x'\"\\$#&;|<>(){}=\n\t "), max_size=40))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        said = manifest_text(import_script("vllm serve " + text))
    except ConfigError as error:
        said = str(error)
    assert "C125" in said or "kind: Deployment" in said


def test_a_dollar_in_a_key_is_not_doubled_since_keys_are_not_interpolated(tmp_path: Path) -> None:
    """It was: `--hf-overrides '{"a$b": "c$d"}'` became the key `a$$b`."""
    text = manifest_text(import_script("""vllm serve m --hf-overrides '{"a$b": "c$d"}'"""))
    file = tmp_path / "deploy.yaml"
    file.write_text(text)
    assert load_deployment([file], [], {}).model.hf_overrides == {"a$b": "c$d"}


def test_the_flag_that_lets_a_repositorys_code_run_is_carried() -> None:
    """It is in many scripts whose model needs no code, for which it has no effect; others are refused at the start."""
    draft = import_script("vllm serve Qwen/Qwen3-0.6B --trust-remote-code")
    assert draft.values["model.trust_remote_code"].value is True
    assert draft.left == []


# name in commands.yaml -> what is set of `speculative`, options that are refused, and words without a counterpart
DRAFTS: dict[str, tuple[dict[str, str], str, str]] = {
    "vllm-ngram-metrics": (
        {"method": "ngram", "num_speculative_tokens": "5", "prompt_lookup_max": "4", "prompt_lookup_min": "2"}, "", ""
    ),
    "vllm-suffix": (
        {"num_speculative_tokens": "32"},
        "method suffix_decoding_max_cached_requests suffix_decoding_min_token_prob",
        "",
    ),
    "vllm-draft-model": (
        {"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": "4", "parallel_drafting": "false"},
        "draft_tensor_parallel_size revision draft_sample_method",
        "",
    ),
    "vllm-dflash-adaptive": (
        {"method": "dflash", "model": "z-lab/Qwen3-8B-DFlash", "num_speculative_tokens": "15"},
        "num_speculative_tokens_per_batch_size",
        "",
    ),
    "vllm-fly": ({"num_speculative_tokens": "3"}, "method rejection_sample_method fly_window_size", ""),
    "vllm-docker-ngram": ({"method": "ngram", "num_speculative_tokens": "5"}, "", ""),
    "sglang-eagle-of-the-model": ({"method": "mtp", "num_speculative_tokens": "4"}, "", ""),
    "sglang-eagle-drafts": (
        {"method": "eagle", "model": "lmsys/sglang-EAGLE-llama2-chat-7B", "num_speculative_tokens": "8"},
        "",
        "",
    ),
    "sglang-eagle3-drafts": (
        {
            "method": "eagle3",
            "model": "jamesliu1/sglang-EAGLE3-Llama-3.1-Instruct-8B",
            "num_speculative_tokens": "32",
        },
        "revision",
        "--speculative-num-steps --speculative-eagle-topk",
    ),
    "sglang-standalone-drafts": (
        {"method": "draft_model", "model": "Qwen/Qwen3-0.6B"}, "", "--speculative-accept-threshold-single"
    ),
    "sglang-ngram-trie": (
        {"method": "ngram", "num_speculative_tokens": "12"},
        "",
        "--speculative-ngram-capacity --speculative-ngram-max-bfs-breadth --speculative-ngram-match-type",
    ),
    "llama-draft-all": (
        {"model": "qwen3-0.6b.gguf", "num_speculative_tokens": "16"}, "", "--draft-min --draft-p-min -ngld -cd -devd"
    ),
    "llama-ngram": (
        {"method": "ngram", "num_speculative_tokens": "64", "prompt_lookup_min": "12"}, "", "--spec-ngram-size-m"
    ),
    "tgi-speculate-docker": ({"method": "auto", "num_speculative_tokens": "2"}, "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAFTS)
def test_each_option_of_drafts_is_set_or_refused_by_name(name: str) -> None:
    """No launch with drafts has an option that is not known: those of draft models have their reason, too."""
    (command,) = [each for each in COMMANDS if each["name"] == name]
    draft = import_script(command["text"])
    values, refused, lost = DRAFTS[name]
    assert {
        path.removeprefix("speculative."): node.text
        for path, node in draft.values.items()
        if path.startswith("speculative.")
    } == values
    left = [one for one in draft.left if one.kind != "needless"]
    assert sorted(one.path.removeprefix("speculative.") for one in left if one.kind == "refused") == sorted(
        refused.split()
    )
    assert sorted(one.written.split()[0] for one in left if one.kind == "no counterpart") == sorted(lost.split())
    assert {one.kind for one in left} <= {"refused", "no counterpart"}
    assert all(one.reason for one in draft.left)
