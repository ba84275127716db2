"""The whole syntax of command lines, one promise per test: what launch scripts of any age may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config import ConfigError, Deployment, load_deployment
from stoker.config.codes import CODES
from stoker.config.diagnostics import Diagnostic
from stoker.config.schema.options import options
from stoker.config.source.flags import all_flags
from stoker.config.source.merge import merge
from stoker.config.source.overrides import OverrideSource, command_line, split_words


def load(*words: str) -> Deployment:
    return load_deployment([], ["--model", "x", *words], {})


def failure(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*words)
    return str(caught.value)


def codes(*words: str) -> list[str]:
    return [finding.code for finding in load(*words).warnings]


def layer(*words: str) -> dict[str, Any]:
    """What the words say, whether this build can do it or not."""
    found: list[Diagnostic] = []
    source = command_line(words, found)
    assert [*found, *source.found] == []
    tree: dict[str, Any] = {}
    for path, entry in merge([source.trees]).items():
        section, _, name = path.rpartition(".")
        home = tree.setdefault(section, {}) if section else tree
        home[name] = entry.effective.plain() if entry.effective is not None else None
    return tree


# spelling


@pytest.mark.parametrize("flag", ["--max-num-seqs", "--max_num_seqs", "--max-num_seqs", "--scheduler.max_num-seqs"])
def test_dashes_and_underscores_are_one_up_to_the_first_dot(flag: str) -> None:
    assert load(flag, "7").scheduler.max_num_seqs == 7


def test_keys_behind_the_first_dot_stay_as_they_are() -> None:
    assert load("--hf_overrides.a-b.c_d", "1").model.hf_overrides == {"a-b": {"c_d": 1}}


def test_a_value_is_a_word_of_its_own_or_follows_an_equals_sign() -> None:
    assert load("--revision=a=b").model.revision == load("--revision", "a=b").model.revision == "a=b"


# booleans


@pytest.mark.parametrize(
    ("words", "is_on"),
    [
        (["--enable-chunked-prefill"], True),
        (["--enable-chunked-prefill", "True"], True),
        (["--enable-chunked-prefill", "false"], False),
        (["--enable-chunked-prefill=False"], False),
        (["--no-enable-chunked-prefill"], False),
        (["--no_enable_chunked_prefill"], False),
    ],
)
@pytest.mark.holds("R005")
def test_a_switch_is_true_alone_and_takes_true_or_false(words: list[str], is_on: bool) -> None:
    """R005: some switches of old took their value as a word."""
    assert load(*words).scheduler.enable_chunked_prefill is is_on


@pytest.mark.parametrize("flag", ["--multi-step-stream-outputs", "--disable-logprobs-during-spec-decoding"])
def test_switches_of_old_take_a_value_too(flag: str) -> None:
    assert codes(flag, "false", "--port", "1") == codes(flag) == ["C123"]


# short names


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["-tp", "2"], "parallel.tensor_parallel_size"),
        (["-pp=2"], "parallel.pipeline_parallel_size"),
        (["-dcp", "2"], "parallel.decode_context_parallel_size"),
        (["-dp", "2"], "parallel.data_parallel_size"),
        (["-asc", "2"], "server.api_server_count"),
    ],
)
def test_short_names_of_several_letters_start_with_one_dash(words: list[str], path: str) -> None:
    section, name = path.split(".")
    assert layer(*words) == {section: {name: 2}}


def test_every_alias_means_its_option() -> None:
    for flag, option in all_flags().items():
        if flag.startswith("-") and not flag.startswith("--") and "." not in flag and option.kind == "whole":
            assert layer(flag, "3") == layer(f"--{option.path}", "3"), flag


# lists


def test_a_list_takes_the_words_behind_its_flag() -> None:
    assert load("--served-model-name", "a", "b", "--port", "1").model.served_model_name == ("a", "b")


@pytest.mark.parametrize(
    ("flag", "path"), [("--middleware", "server.middleware"), ("--ignore-patterns", "load.ignore_patterns")]
)
def test_some_lists_take_one_item_each_time(flag: str, path: str, tmp_path: Path) -> None:
    """R009. What a weaker layer says is replaced, not added to."""
    section, name = path.split(".")
    file = tmp_path / "a.yaml"
    file.write_text(f"model: {{model: x}}\n{section}: {{{name}: [z.z]}}")
    deployment = load_deployment([file], [flag, "a.b", flag, "c.d", f"{flag}=e.f"], {})
    assert getattr(getattr(deployment.config, section), name) == ("a.b", "c.d", "e.f")
    assert deployment.warnings == ()


def test_other_lists_are_replaced_with_a_warning() -> None:
    deployment = load("--served-model-name", "a", "--served-model-name", "b")
    assert deployment.model.served_model_name == ("b",)
    assert [finding.code for finding in deployment.warnings] == ["C122"]


# JSON


@pytest.mark.holds("R004")
def test_json_is_given_whole_by_key_or_both_and_merged_in_order() -> None:
    """R004."""
    words = ["--hf-overrides", '{"a": {"b": 1, "c": [1]}}', "--hf-overrides.a.b", "2", "--hf-overrides.a.d=text"]
    assert load(*words).model.hf_overrides == {"a": {"b": 2, "c": [1], "d": "text"}}
    assert load(*words, "--hf-overrides", '{"a": {"b": 3}}').model.hf_overrides["a"]["b"] == 3


@pytest.mark.parametrize(
    ("text", "value"),
    [("500", 500), ("1e6", 1e6), ("true", True), ("null", None), ('"1"', "1"), ("[1, 2]", [1, 2]), ("a b", "a b")],
)
def test_the_value_of_a_key_is_json_where_it_can_be(text: str, value: object) -> None:
    assert load("--hf-overrides.k", text).model.hf_overrides == {"k": value}


@pytest.mark.parametrize(
    "words",
    [
        ["--hf-overrides.s+", "1", "--hf-overrides.s+=8,16"],
        ["--hf-overrides.s", "[1]", "--hf-overrides.s+", "[8, 16]"],
        ["--hf-overrides", '{"s": [1, 8]}', "--hf-overrides.s+=16"],
    ],
)
def test_a_plus_behind_a_key_adds_to_its_list(words: list[str]) -> None:
    assert load(*words).model.hf_overrides == {"s": [1, 8, 16]}


def test_sections_that_are_json_elsewhere_take_their_keys_too() -> None:
    words = ["--compilation-config.cudagraph_capture_sizes+", "1", "--compilation-config.cudagraph_capture_sizes+=8,16"]
    assert layer(*words) == {"compilation": {"cudagraph_capture_sizes": [1, 8, 16]}}
    whole = ["--speculative-config", '{"method": "ngram"}', "--speculative-config.num_speculative_tokens", "4"]
    assert layer(*whole) == {"speculative": {"method": "ngram", "num_speculative_tokens": 4}}


def test_broken_json_is_reported_with_its_place() -> None:
    assert "is not valid JSON: expecting property name" in failure("--hf-overrides", "{a: 1}").lower().replace(
        "json", "JSON"
    )


# -O


@pytest.mark.parametrize(
    "words",
    [
        ["-O3"],
        ["-O", "3"],
        ["-O=3"],
        ["-O.level=3"],
        ["-O.level", "3"],
        ["-O", '{"level": 3}'],
        ['-O={"level": 3}'],
        ["--compilation-config", "3"],
        ["--compilation-config", '{"level": 3}'],
        ["-cc", '{"level": 3}'],
        ["--compilation_config.level=3"],
    ],
)
@pytest.mark.holds("R008")
def test_the_level_of_compilation_has_many_spellings(words: list[str]) -> None:
    """R008."""
    assert str(layer(*words)["compilation"]["level"]) == "3"


def test_further_keys_are_merged_with_the_level() -> None:
    assert layer("-O3", "-O.cudagraph_capture_sizes=[1]") == {
        "compilation": {"level": 3, "cudagraph_capture_sizes": [1]}
    }


# numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25600),
        ("2M", 2097152),
        ("2m", 2000000),
        ("0.5g", 500_000_000),
        ("4096", 4096),
    ],
)
@pytest.mark.parametrize("flag", ["--max-model-len", "--max-num-batched-tokens", "--kv-cache-memory-bytes"])
@pytest.mark.holds("R001")
def test_human_integers(flag: str, text: str, value: int) -> None:
    """R001."""
    option = all_flags()[flag]
    assert getattr(getattr(load(flag, text).config, option.section), option.name) == value


@pytest.mark.parametrize("flag", ["--max-model-len", "--max-num-batched-tokens", "--kv-cache-memory-bytes"])
@pytest.mark.holds("R002")
def test_a_fraction_of_a_binary_unit_is_refused_with_the_decimal_one_offered(flag: str) -> None:
    """R002."""
    assert "write 1.5k" in failure(flag, "1.5K")
    assert "C104" in failure(flag, "1kk")


def test_tera_is_a_unit() -> None:
    assert load("--kv-cache-memory-bytes", "1t").cache.kv_cache_memory_bytes == 10**12
    assert load("--kv-cache-memory-bytes", "1T").cache.kv_cache_memory_bytes == 2**40


def test_auto_and_minus_one_ask_for_the_longest_context() -> None:
    """R003."""
    assert (
        load("--max-model-len", "-1").model.max_model_len == load("--max-model-len=auto").model.max_model_len == "auto"
    )


# null

_NULLABLE = "tokenizer revision code-revision tokenizer-revision hf-config-path download-dir quantization"
_NULLABLE += " logits-processor-pattern generation-config speculative-model speculative-model-quantization"
_NULLABLE += " long-lora-scaling-factors model-loader-extra-config tokenizer-pool-extra-config"


@pytest.mark.parametrize("value", ["None", ""])
@pytest.mark.parametrize("name", _NULLABLE.split())
@pytest.mark.holds("R006")
def test_none_and_nothing_stand_for_null(name: str, value: str) -> None:
    """R006."""
    assert load(f"--{name}={value}").config == load().config


# syntax of single options


def test_limits_of_media_were_pairs_once() -> None:
    """R007."""
    now = layer("--limit-mm-per-prompt", '{"image": 16, "video": 2}')
    assert layer("--limit-mm-per-prompt", "image=16,video=2") == layer("--limit_mm_per_prompt=image=16, video=2") == now
    assert "is not valid JSON" in failure("--limit-mm-per-prompt", "image=many")


@pytest.mark.holds("R010")
def test_traces_are_parted_by_commas() -> None:
    """R010."""
    assert layer("--collect-detailed-traces", "model,worker") == layer("--collect-detailed-traces", "model", "worker")
    assert layer("--collect-detailed-traces=all") == {"observability": {"collect_detailed_traces": ["all"]}}


def test_adapters_are_pairs_objects_or_one_list() -> None:
    """R012."""
    one, two = '{"name": "a", "path": "/x"}', '{"name": "b", "path": "/y"}'
    assert layer("--lora-modules", "a=/x", "b=/y") == {"server": {"lora_modules": ["a=/x", "b=/y"]}}
    assert layer("--lora-modules", one, two) == {"server": {"lora_modules": [one, two]}}
    assert len(layer("--lora-modules", f"[{one}, {two}]")["server"]["lora_modules"]) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("xgrammar:no-fallback,disable-any-whitespace", "structured_outputs"),
        ("outlines:no-fallback", "structured_outputs"),
        ("lm-format-enforcer:no-fallback", "structured_outputs"),
    ],
)
def test_a_backend_of_old_had_its_options_behind_a_colon(text: str, said: str) -> None:
    """R171: the options become keys of the section, whether this build has the backend or not."""
    becomes = options()["structured_outputs.guided_decoding_backend"].becomes(text)
    assert becomes["structured_outputs.backend"] == text.partition(":")[0]
    assert becomes["structured_outputs.disable_fallback"] is True
    assert all(path.startswith(said) for path in becomes)
    assert becomes.get("structured_outputs.disable_any_whitespace", False) is ("whitespace" in text)


def test_an_option_of_a_backend_that_is_unknown_is_reported() -> None:
    assert "unknown backend option `no-fall-back`" in failure("--guided-decoding-backend", "xgrammar:no-fall-back")


# layers


def test_an_option_given_twice_is_warned_about_and_the_last_counts() -> None:
    deployment = load("--port", "1", "--server.port=2")
    assert deployment.server.port == 2
    assert [finding.code for finding in deployment.warnings] == ["C122"]


@pytest.mark.effect("config", "preset")
@pytest.mark.holds("R014")
def test_stronger_layers_win(tmp_path: Path) -> None:
    """Default < preset < files in order < --config < environment < command line, seen one layer after the other."""
    preset = "long-context"
    base, above, flat = tmp_path / "base.yaml", tmp_path / "above.yaml", tmp_path / "flat.yaml"
    base.write_text("model: {model: x}\nscheduler: {max_num_seqs: 101}")
    above.write_text("scheduler: {max_num_seqs: 102}")
    flat.write_text("max-num-seqs: 103")
    name = "scheduler.max_num_seqs"
    model = ["--model", "x"]
    steps: list[tuple[list[Path], list[str], dict[str, str]]] = [
        ([], model, {}),
        ([], [*model, "--preset", preset], {}),
        ([base], ["--preset", preset], {}),
        ([base, above], ["--preset", preset], {}),
        ([base, above], ["--preset", preset, "--config", str(flat)], {}),
        ([base, above], ["--preset", preset, "--config", str(flat)], {"ENGINE__SCHEDULER__MAX_NUM_SEQS": "104"}),
        (
            [base, above],
            ["--preset", preset, "--config", str(flat), "--max-num-seqs", "105"],
            {"ENGINE__SCHEDULER__MAX_NUM_SEQS": "104"},
        ),
    ]
    values = [load_deployment(files, words, env).scheduler.max_num_seqs for files, words, env in steps]
    assert values[2:] == [101, 102, 103, 104, 105]
    assert len(set(values)) == 7
    *_, last = (load_deployment(files, words, env) for files, words, env in steps)
    places = [str(old.origin).split(":")[0].rpartition("/")[2] for old in last.overridden[name]]
    assert places == [
        "environment ENGINE__SCHEDULER__MAX_NUM_SEQS",
        "flat.yaml",
        "above.yaml",
        "base.yaml",
        f"preset {preset}",
    ]


# whatever comes

WORDS = st.lists(
    st.sampled_from(
        [flag for option in options().values() for flag in option.flags[:3]]
        + [
            "-O3",
            "-O",
            "-O.level",
            "--no-x",
            "--",
            "-",
            "-tp",
            "=",
            "+",
            "!",
            "{",
            '{"a": [1',
            "image=1",
            "None",
            "a.yaml",
        ]
    )
    | st.builds(lambda flag, end: flag + end, st.sampled_from(list(all_flags())), st.text("=+!.a-{}", max_size=4))
    | st.text(max_size=6),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(words=WORDS)
def test_any_words_are_parted_without_loss_and_every_finding_has_a_page(words: list[str]) -> None:
    found: list[Diagnostic] = []
    mine, theirs, overrides = split_words(words, {"--own": True}, found)
    assert [word for override in overrides for word in override.words] == theirs
    assert len(mine) + len(theirs) <= len(words)
    assert len(mine) + len(theirs) == len(words) or found
    found += OverrideSource(overrides).found
    assert {finding.code for finding in found} <= set(CODES)
    assert all(finding.as_text() for finding in found)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(words=WORDS)
def test_any_words_make_a_deployment_or_findings(words: list[str]) -> None:
    try:
        said = load_deployment([], words, {}).warnings
    except ConfigError as error:
        said = error.diagnostics
    assert {finding.code for finding in said} <= set(CODES)
