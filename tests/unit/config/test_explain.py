from __future__ import annotations

import json

import pytest

from stoker.config.codes import CODES
from stoker.config.explain import find, option_page
from stoker.config.page import as_markdown, as_text
from stoker.config.presets import preset_names
from stoker.config.resolve.rules import BY_ID
from stoker.config.schema.options import options, sections


def names(what: str, recursive: bool = False) -> list[str]:
    return [page.name for page in find(what, recursive)]


def test_every_option_is_found_by_every_spelling() -> None:
    for path, option in options().items():
        for spelling in filter(None, (path, *option.flags, option.variable)):
            assert path in names(spelling), spelling
        text = as_text(find(option.flag if option.has_flag else path))
        for spelling in (*option.flags, option.variable):
            assert spelling in text, path


def test_every_code_rule_and_preset_has_a_page() -> None:
    for name in (*CODES, *BY_ID, *preset_names()):
        (page,) = find(name)
        assert page.name == name
        assert len(page.text) > 20, name
        assert names(name.lower()) == [name]


def test_a_section_is_a_list_and_recursive_shows_all_of_it() -> None:
    assert names("cache") == ["cache"]
    assert names("cache", recursive=True) == ["cache", *(path for path in options() if path.startswith("cache."))]
    for name in sections():
        assert find(name)[0].name == name


def test_a_name_that_is_a_section_and_an_option_shows_both() -> None:
    assert names("model") == ["model", "model.model"]
    assert names("--model") == ["model.model"]


@pytest.mark.slow
def test_any_word_finds_what_mentions_it() -> None:
    (page,) = find("prefix cache")
    assert "cache.enable_prefix_caching" in {fact.name for fact in page.facts}
    assert find("--max-num-sqes")[0].facts[0].name == "scheduler.max_num_seqs"
    assert find("xyzzyq") == []


def test_nothing_lists_the_sections() -> None:
    assert {fact.name for fact in find("")[0].facts} == set(sections())
    for what in ("rules", "codes", "presets", "device-profiles"):
        assert find(what)[0].kind == "list"


def test_auto_is_shown_with_its_value_on_this_machine() -> None:
    assert "auto; here 16 (the block size for cpu)" in as_text(find("cache.block_size"))
    assert "auto; depends on the model" in as_text(find("model.dtype"))


def test_pages_have_three_formats() -> None:
    pages = find("scheduler", recursive=True)
    assert json.loads(json.dumps([page.as_dict() for page in pages]))[0]["kind"] == "section"
    markdown = as_markdown(pages)
    assert "## scheduler.max_num_seqs" in markdown
    assert "`--max-num-seqs 64`" in markdown
    assert all(len(line) < 125 for line in as_text(pages).splitlines())


def test_pages_show_no_secret() -> None:
    assert "KEY" in as_text(find("server.api_key"))


def test_a_refused_option_depends_on_nothing() -> None:
    (page,) = find("model.diffusion_config")
    assert {fact.name: fact.lines for fact in page.facts}["default"] == ("{}",)


def test_options_with_the_word_in_their_name_come_first() -> None:
    (page,) = find("server.ssl")
    paths = [fact.name for fact in page.facts if "." in fact.name]
    assert [path for path in paths if "ssl" in path] == paths[: len([path for path in paths if "ssl" in path])]


def test_values_that_are_refused_for_the_same_reason_are_one_line() -> None:
    """Once sixteen numbers of GPUs had a line each."""
    refused = next(fact for fact in option_page(options()["device.device"]).facts if fact.name == "not supported").lines
    assert refused == (
        "gpu: write cuda",
        "cuda:0 to cuda:15: write cuda; the environment variable CUDA_VISIBLE_DEVICES selects the GPU, by number or "
        "UUID",
        "rocm, mps, tpu, xpu, hpu, neuron, openvino: not supported; write cuda, cpu or auto",
    )


def test_a_rule_shows_its_fixes_without_the_escapes_of_templates() -> None:
    """Regression: the page of R201 suggested `api_key: {{env: API_KEY}}`."""
    (page,) = find("R201")
    fix = next(fact for fact in page.facts if fact.name == "fix")
    assert fix.lines[0] == "set `server.api_key`, for example `api_key: {env: API_KEY}`"


def test_the_default_of_a_deprecated_option_is_not_decided() -> None:
    (page,) = find("server.uvicorn_log_level")
    assert next(fact for fact in page.facts if fact.name == "default").lines == ("auto",)
