"""Deprecated names in today's words; everything else stays byte for byte."""

from __future__ import annotations

import pytest

from stoker.config.migrate import migrate
from stoker.config.schema.options import options
from stoker.config.yaml_writer import inline


def migrated(text: str) -> str:
    done = migrate(text, "deploy.yaml", {})
    assert not done.left
    return done.text


def test_a_name_changes_in_place() -> None:
    text = 'cache:\n  block_size: 16   # blocks\nmodel:\n  # the job\n  "task": &t "generate"   # kept\n  seed: 7\n'
    assert migrated(text) == text.replace('"task"', "runner")


def test_what_is_gone_leaves_with_its_line() -> None:
    text = "# head\ncache:\n  swap_space: 4  # GiB\n  block_size: 16\n\n# tail\n"
    assert migrated(text) == "# head\ncache:\n  block_size: 16\n\n# tail\n"


def test_what_belongs_elsewhere_moves() -> None:
    text = "model: {model: m}\nparallel:\n  tensor_parallel_size: 1\n  worker_use_ray: true\nserver:\n  port: 81\n"
    assert migrated(text) == (
        "model: {model: m}\nparallel:\n  tensor_parallel_size: 1\n  distributed_executor_backend: ray\n"
        "server:\n  port: 81\n"
    )
    text = (
        "parallel: {enable_multimodal_encoder_data_parallel: true}\n"
        "multimodal: {mm_processor_cache_gb: 4}\nmodel: {model: m}\n"
    )
    assert migrated(text) == (
        "parallel: {}\nmultimodal: {mm_processor_cache_gb: 4, mm_encoder_tp_mode: data}\nmodel: {model: m}\n"
    )


def test_a_section_that_is_not_there_yet_is_made() -> None:
    text = "parallel:\n  enable_multimodal_encoder_data_parallel: true  # old\nmodel:\n  model: m\n"
    assert migrated(text) == "multimodal:\n  mm_encoder_tp_mode: data\nmodel:\n  model: m\n"


def test_flow_mappings_stay_flow_mappings() -> None:
    text = (
        "{model: {model: m, task: embed}, cache: {swap_space: 4, block_size: 16}, scheduler: {num_scheduler_steps: 8}}"
    )
    assert migrated(text) == (
        "{model: {model: m, runner: pooling, convert: embed}, cache: {block_size: 16}, scheduler: {}}\n"
    )


def test_several_values_become_several_lines() -> None:
    assert migrated("model:\r\n  model: m\r\n  task: embed") == (
        "model:\r\n  model: m\r\n  runner: pooling\r\n  convert: embed\r\n"
    )


def test_keys_go_into_the_mapping_that_is_there() -> None:
    text = "load:\n  model_loader_extra_config:\n    a: 1\n  qlora_adapter_name_or_path: org/x\nmodel:\n  model: m\n"
    assert migrated(text) == (
        "load:\n  model_loader_extra_config:\n    a: 1\n    qlora_adapter_name_or_path: org/x\nmodel:\n  model: m\n"
    )
    assert migrated("load:\n  qlora_adapter_name_or_path: org/x\n") == (
        "load:\n  model_loader_extra_config: {qlora_adapter_name_or_path: org/x}\n"
    )


def test_today_is_left_alone() -> None:
    text = '\ufeff# x\nmodel: {model: m}\nserver: {port: "${PORT}"}\n'
    assert migrate(text, "deploy.yaml", {}).text == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model: {model: m, task: '${TASK}'}\n", "a variable in its value is not set here"),
        ("model: {model: m, task: sing}\n", "`model.task` is"),
        ("scheduler: {preemption_mode: swap}\n", "swapping is not supported"),
        ("x-c: &c {swap_space: 4}\ncache: *c\n", "used in several places"),
    ],
)
def test_what_cannot_be_rewritten_is_reported_and_left(text: str, why: str) -> None:
    done = migrate(text, "deploy.yaml", {})
    assert done.text == text
    (finding,) = done.left
    assert "has to be rewritten by hand" in finding.message
    assert why in finding.message


def test_every_deprecated_option_can_be_rewritten() -> None:
    """Its own example is either rewritten, or reported with a reason; afterwards the file has no warning about it."""
    for option in options().values():
        if option.status != "deprecated":
            continue
        text = f"model:\n  model: m\n{option.section}:\n  {option.name}: {inline(option.examples[0])}\n"
        if option.section == "model":
            text = text.replace("model:\n  model: m\nmodel:\n", "model:\n  model: m\n")
        done = migrate(text, "deploy.yaml", {})
        assert bool(done.left) == (f"  {option.name}:" in done.text), option.path
        assert not migrate(done.text, "deploy.yaml", {}).renamed, option.path


def test_a_flow_mapping_whose_only_key_is_replaced_gets_no_leading_comma() -> None:
    """It was `{, runner: ...}`, and migrate failed with invalid YAML."""
    assert migrated("model: {task: embed}\n") == "model: {runner: pooling, convert: embed}\n"


def test_a_section_that_becomes_empty_goes_too() -> None:
    """`cache:` remained without a key."""
    assert migrated("cache:\n  swap_space: 4  # GiB\nmodel:\n  model: m\n") == "model:\n  model: m\n"
    kept = "cache:\n  # why\n  swap_space: 4\nmodel:\n  model: m\n"
    assert migrated(kept) == "cache:\n  # why\nmodel:\n  model: m\n"
