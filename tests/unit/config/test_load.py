from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from stoker.config import ConfigError, Deployment, load_deployment
from stoker.config.schema.options import Option, options

from .deployments import load
from .generated import is_taken, mappings

WRITABLE = [
    option
    for option in options().values()
    if option.has_flag and option.name not in ("preset", "config") and option.status == "effective"
]
WORDS = st.text("abcXYZ019._/-", min_size=1, max_size=12).filter(lambda text: text[0] not in "-" and text != "None")


def values(option: Option) -> st.SearchStrategy[Any]:
    """Values that an option takes, as JSON writes them."""
    match option.kind:
        case "flag":
            return st.sampled_from([True, False, *option.choices])
        case "choice":
            return st.sampled_from(option.choices)
        case "text":
            known = {
                "root_path": ["/llm"],
                "otlp_traces_endpoint": option.examples,
                "show_hidden_metrics_for_version": option.examples,
                "endpoint": option.examples,
                "replay_endpoint": option.examples,
            }
            return st.sampled_from(known[option.name]) if option.name in known else WORDS
        case "texts" if option.words:
            return st.lists(st.sampled_from(option.words), min_size=1, max_size=3)
        case "texts" if option.name == "prefill_servers":
            return st.lists(st.sampled_from(["http://a:1", "https://b", "http://[::1]:8000/"]), min_size=1, max_size=3)
        case "texts":
            return st.lists(WORDS.filter(lambda text: not text.endswith((".yaml", ".yml"))), min_size=1, max_size=3)
        case "wholes":
            return st.lists(st.integers(1, 512), min_size=1, max_size=3)
        case "mapping":
            if option.has_known_keys or option.has_text_values:
                return st.sampled_from(mappings(option))
            return st.dictionaries(st.text("abc", min_size=1), st.integers() | st.booleans() | WORDS, max_size=3)
        case "number":
            return st.floats(0.01, 1.0).map(lambda number: round(number, 3))
        case "human int":
            return st.sampled_from([1, 7, 4096, "32k", "2M", "25.6k", *option.choices])
        case "size":
            return st.sampled_from([1, "512MiB", "4GB", "2G", *option.choices])
        case "duration":
            return st.sampled_from([1, 0.5, "30s", "500ms", "1m30s"])
        case _:
            return st.sampled_from([value for value in (1, 7, 100, *option.choices) if is_taken(option, value)])


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def revealed(deployment: Deployment) -> Any:
    return deployment.config.model_dump(context={"reveal_secrets": True})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.sampled_from(WRITABLE).flatmap(lambda option: st.tuples(st.just(option), values(option))))
def test_file_environment_flag_and_argument_mean_the_same(tmp_path: Path, chosen: tuple[Option, Any]) -> None:
    option, value = chosen
    base = ["--model", "x"] if option.path != "model.model" else []
    file = tmp_path / "deploy.yaml"
    file.write_text(json.dumps({option.section: {option.name: value}}))
    ways = [
        load_deployment([file], base, {}),
        load_deployment([], base, {option.variable: text_of(value)}),
        load_deployment([], [*base, option.flags[0], text_of(value)], {}),
        load_deployment([], [*base, f"{option.flags[-1]}={text_of(value)}"], {}),
        load_deployment([], base, {}, {option.name if option.is_flat else option.path: value}),
    ]
    assert [revealed(way) for way in ways] == [revealed(ways[0])] * len(ways)


def test_the_command_line_beats_the_environment_and_that_the_file(tmp_path: Path) -> None:
    """Every option, each layer with a value of its own."""
    for option in WRITABLE:
        check_layers_of(option, tmp_path)


def check_layers_of(option: Option, folder: Path) -> None:
    pairs: dict[str, list[Any]] = {
        "flag": [False, True, False],
        "text": ["a", "b", "c"],
        "texts": [[word] for word in (option.words or "abc")] * 3,
        "wholes": [[1], [2, 4], [3]],
        "mapping": mappings(option) if option.kind == "mapping" else [],
        "number": [0.1, 0.2, 0.3],
        "size": [1, 2, 3],
        "duration": [1, 2, 3],
    }
    numbers = [number for number in range(1, 6) if is_taken(option, number)]
    choices = [*option.choices] * 3 if option.kind == "choice" else numbers
    file_value, variable, flag = pairs.get(option.kind, choices)[:3]
    if option.name == "root_path":
        file_value, variable, flag = "/a", "/b", "/c"
    if option.name == "otlp_traces_endpoint":
        file_value, variable, flag = "http://a", "http://b", "http://c"
    if option.name == "prefill_servers":
        file_value, variable, flag = ["http://a"], ["http://b"], ["http://c"]
    if option.path in ("kv_events.endpoint", "kv_events.replay_endpoint"):
        file_value, variable, flag = "ipc:///a", "ipc:///b", "tcp://*:1"
    if option.name == "show_hidden_metrics_for_version":
        file_value, variable, flag = "0.6", "0.7", "0.8"
    if option.name == "pt_load_map_location":  # cpu is its only value, and different keys would be merged
        file_value = variable = flag
    text = json.dumps({"model": {"model": "x"}} | {option.section: {option.name: file_value}})
    text = text if option.section != "model" else json.dumps({"model": {"model": "x", option.name: file_value}})
    env = {option.variable: text_of(variable)}
    deployment = load(folder, text, f"{option.flag}={text_of(flag)}", env=env)
    alone = load_deployment([], ["--model=x", f"{option.flag}={text_of(flag)}"][option.path == "model.model" :], {})
    assert revealed(deployment) == revealed(alone), option.path
    assert str(deployment.origin(option.path)) == f"command line {option.flag}"
    if option.kind != "mapping":
        layers = [str(old.origin).split(":")[0] for old in deployment.overridden[option.path]]
        assert layers == [f"environment {option.variable}", str(folder / "deploy.yaml")]


def test_every_layer_has_its_place(tmp_path: Path) -> None:
    text = "preset: cpu-laptop\nmodel:\n  model: x\n  seed: 1\nserver:\n  port: 1\n"
    env = {"ENGINE__SERVER__PORT": "2", "ENGINE__SERVER__HOST": "::1"}
    deployment = load(tmp_path, text, "--port", "3", env=env)
    origins = {path: str(deployment.origin(path)).replace(f"{tmp_path}/", "") for path in deployment.origins}
    assert origins["model.seed"] == "deploy.yaml:4:9"
    assert origins["server.host"] == "environment ENGINE__SERVER__HOST"
    assert origins["server.port"] == "command line --port"
    assert origins["scheduler.max_num_seqs"].startswith("preset cpu-laptop: ")
    assert str(deployment.origin("server.auth")) == "default"


def test_keys_of_a_mapping_have_their_own_places(tmp_path: Path) -> None:
    text = "model:\n  model: x\n  hf_overrides:\n    a: {b: 1}\n    c: 2\n"
    deployment = load(tmp_path, text, "--hf-overrides.c", "3")
    assert deployment.model.hf_overrides == {"a": {"b": 1}, "c": 3}
    assert str(deployment.origin("model.hf_overrides.a.b")).endswith("deploy.yaml:4:12")
    assert str(deployment.origin("model.hf_overrides.c")) == "command line --hf-overrides.c"


def test_paths_are_relative_to_the_file_that_wrote_them(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    (folder / "weights").mkdir(parents=True)
    (folder / "base.yaml").write_text("model: {model: ./weights}\nload: {download_dir: cache}\n")
    deployment = load(tmp_path, "extends: sub/base.yaml\n")
    assert deployment.model.model == "./weights"
    assert deployment.located("model.model") == str(folder / "weights")
    assert deployment.located("load.download_dir") == str(folder / "cache")
    hub = load(tmp_path, "model: {model: Qwen/Qwen3-0.6B}\n")
    assert hub.located("model.model") == "Qwen/Qwen3-0.6B"


def test_the_record_is_frozen(tmp_path: Path) -> None:
    deployment = load(tmp_path, "model: {model: x}\n")
    with pytest.raises(ValueError, match="frozen"):
        deployment.server.port = 1  # type: ignore[misc]


def test_warnings_do_not_stop_anything(tmp_path: Path) -> None:
    deployment = load(tmp_path, "model: {model: x}\n", env={"ENGINE_SERVER_PORT": "81"})
    assert [finding.code for finding in deployment.warnings] == ["C117"]


def test_secrets_pass_only_when_asked(tmp_path: Path) -> None:
    deployment = load(tmp_path, "model: {model: x}\nserver: {api_key: sk-123}\n")
    assert deployment.server.api_key == (SecretStr("sk-123"),)
    assert "sk-123" not in repr(deployment) + deployment.config.model_dump_json()
    assert "sk-123" in deployment.config.model_dump_json(context={"reveal_secrets": True})


def test_no_model_at_all_names_the_flag() -> None:
    with pytest.raises(ConfigError, match="give --model"):
        load_deployment([], env={})


KEYS = st.sampled_from(
    [
        *(option.name for option in WRITABLE),
        *(option.section for option in WRITABLE),
        "x-a",
        "<<",
        "extends",
        "preset",
        "",
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a${}:-? \n\0é", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, ANYTHING, max_size=4) | ANYTHING, max_size=4))
def test_no_manifest_makes_the_loader_stumble(tmp_path: Path, content: dict[str, Any]) -> None:
    try:
        load(tmp_path, json.dumps({"model": {"model": "x"}} | content))
    except ConfigError as error:
        said = [(finding.as_text(), finding.as_github(), finding.as_dict()) for finding in error.diagnostics]
        assert said
