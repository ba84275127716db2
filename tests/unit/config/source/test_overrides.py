from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.config import ConfigError, Deployment, load_deployment
from stoker.config.diagnostics import Diagnostic
from stoker.config.source.flags import all_flags
from stoker.config.source.overrides import command_line, split_words


def load(*words: str) -> Deployment:
    return load_deployment([], ["--model", "x", *words], {})


def codes(*words: str) -> list[str]:
    try:
        return [finding.code for finding in load(*words).warnings]
    except ConfigError as error:
        return [finding.code for finding in error.diagnostics]


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-seqs", "64"],
        ["--max-num-seqs=64"],
        ["--max_num_seqs", "64"],
        ["--scheduler.max-num-seqs", "64"],
        ["--scheduler.max_num_seqs=64"],
        ["--max-num-seqs", "1", "--max-num-seqs!", "--max-num-seqs", "64"],
    ],
)
def test_one_option_has_many_spellings(words: list[str]) -> None:
    assert load(*words).scheduler.max_num_seqs == 64


@pytest.mark.parametrize(
    ("words", "is_on"),
    [
        (["--enable-prefix-caching"], True),
        (["--no-enable-prefix-caching"], False),
        (["--enable-prefix-caching", "false"], False),
        (["--enable-prefix-caching=False"], False),
        (["--cache.enable-prefix-caching", "true"], True),
        (["--no-enable-prefix-caching", "--enable-prefix-caching"], True),
    ],
)
def test_booleans_are_flags(words: list[str], is_on: bool) -> None:
    assert load(*words).cache.enable_prefix_caching is is_on


def test_parts_of_a_mapping_are_merged_in_order() -> None:
    words = ["--hf-overrides", '{"a": {"b": 1}, "c": [1]}', "--hf-overrides.a.d", "1e6", "--hf-overrides.c+", "2,x"]
    assert load(*words, "--model.hf-overrides.e=text").model.hf_overrides == {
        "a": {"b": 1, "d": 1e6},
        "c": [1, 2, "x"],
        "e": "text",
    }


def test_a_key_of_a_mapping_can_be_unset(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model: {model: x, hf_overrides: {a: 1, b: {c: 2, d: 3}}}")
    words = ["--hf-overrides.a!", "--hf-overrides.b.c!", "--hf-overrides.e!"]
    assert load_deployment([file], words, {}).model.hf_overrides == {"b": {"d": 3}}


def test_null_in_a_mapping_is_a_value() -> None:
    assert load("--hf-overrides.sliding_window", "null").model.hf_overrides == {"sliding_window": None}


def test_lists_take_words_and_are_added_to(tmp_path: Path) -> None:
    assert load("--served-model-name", "a", "b", "--port", "1").model.served_model_name == ("a", "b")
    assert load("--served-model-name", '["a", "b"]').model.served_model_name == ("a", "b")
    file = tmp_path / "a.yaml"
    file.write_text("model: {model: x, served_model_name: [a]}")
    for words in (["--served-model-name+", "b", "--served-model-name+=c"], ["--served-model-name+=b,c"]):
        assert load_deployment([file], words, {}).model.served_model_name == ("a", "b", "c")
    assert load_deployment([file], ["--served-model-name!", "--served-model-name+=b"], {}).model.served_model_name == (
        "b",
    )


@pytest.mark.parametrize("value", ["None", "", "null"])
def test_none_unsets(value: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model: {model: x, tokenizer: y, max_model_len: 4k}")
    words = ["--tokenizer", "None" if value == "null" else value, "--max-model-len", value]
    deployment = load_deployment([file], words, {})
    assert (deployment.model.tokenizer, deployment.model.max_model_len) == ("auto", "auto")


def test_minus_one_and_auto_mean_the_same_context() -> None:
    assert load("--max-model-len", "-1").model.max_model_len == "auto"
    assert load("--max-logprobs", "-1").model.max_logprobs == -1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--max-num-seq", "3"], "C120"),
        (["--x"], "C120"),
        (["-z"], "C120"),
        (["--no-max-num-seqs"], "C120"),
        (["--cache.max-num-seqs", "3"], "C120"),
        (["--server"], "C120"),
        (["--port.x", "3"], "C120"),
        (["--hf-overrides..a", "3"], "C120"),
        (["--extends", "a.yaml"], "C120"),
        (["--port"], "C121"),
        (["--port", "--host"], "C121"),
        (["--no-enable-prefix-caching=true"], "C121"),
        (["--max-num-seqs!=3"], "C121"),
        (["--port+", "3"], "C121"),
        (["--hf-overrides", "{"], "C121"),
        (["--hf-overrides", "[1]"], "C121"),
        (["--served-model-name"], "C121"),
        (["loose"], "C121"),
    ],
)
def test_a_wrong_command_line_ends_with_2(words: list[str], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*words)
    assert code in [finding.code for finding in caught.value.diagnostics]
    assert caught.value.exit_code == 2


def test_a_bad_value_is_a_bad_configuration() -> None:
    with pytest.raises(ConfigError) as caught:
        load("--port", "http")
    assert caught.value.exit_code == 78


def test_an_option_given_twice_is_warned_about() -> None:
    assert codes("--port", "1", "--port", "2") == ["C122"]
    assert (
        codes("--hf-overrides.a", "1", "--hf-overrides.b", "2", "--served-model-name+=a", "--served-model-name+=b")
        == []
    )


def test_a_commands_own_words_stay_with_it() -> None:
    found: list[Diagnostic] = []
    words = [
        "deploy.yaml",
        "--port",
        "1",
        "-o",
        "json",
        "--served-model-name",
        "a",
        "over.yaml",
        "--wait",
        "-f=x",
        "--",
        "--y",
    ]
    mine, theirs, _ = split_words(words, {"-o": True, "--wait": False, "-f": True}, found)
    assert mine == ["deploy.yaml", "-o", "json", "over.yaml", "--wait", "-f=x", "--", "--y"]
    assert theirs == ["--port", "1", "--served-model-name", "a"]
    assert not found


def test_an_unknown_flag_does_not_swallow_the_file() -> None:
    """Click's ignore_unknown_options would bind the flag's value to FILE."""
    found: list[Diagnostic] = []
    mine, _, _ = split_words(["--wach", "deploy.yaml"], {"--watch": False}, found)
    assert mine == ["deploy.yaml"]
    assert found[0].suggestions == ("--watch",)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.sampled_from([*sorted(all_flags())[::5], "--hf-overrides", "--hf-overrides.a", "--x"]).flatmap(
            lambda flag: st.tuples(st.just(flag), st.text("+!=.,{}[]\"'1a-\0é ", max_size=6)).map("".join)
        )
        | st.text("-=+! a1{[", max_size=6),
        max_size=5,
    )
)
def test_no_words_make_it_stumble(words: list[str]) -> None:
    found: list[Diagnostic] = []
    found += command_line(words, found).found
    assert all(finding.as_text() and finding.as_github() for finding in found)
