from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config.examine import report_on
from stoker.config.presets import preset_names
from stoker.config.schema.options import options
from stoker.config.source.node import Node
from stoker.config.source.presets import PresetSource

from ..deployments import MACHINE, load


def values(name: str) -> dict[str, Node]:
    tree = PresetSource(name).tree
    return {f"{section}.{key}": node for section, home in tree.items() for key, node in home.value.items()}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", preset_names())
def test_every_value_of_a_preset_is_allowed_has_a_reason_and_differs_from_the_default(name: str) -> None:
    assert PresetSource(name).title
    for path, node in values(name).items():
        assert options()[path].adapter.validate_python(node.value) != options()[path].default
        assert len(node.reason) > 20


def test_a_preset_is_weaker_than_everything_written(tmp_path: Path) -> None:
    deployment = load(tmp_path, "preset: latency\nmodel: {model: x}\nscheduler: {max_num_seqs: 3}\n")
    assert deployment.scheduler.max_num_seqs == 3
    assert deployment.scheduler.max_num_batched_tokens == 512
    assert str(deployment.origin("scheduler.max_num_batched_tokens")).startswith("preset latency: bounds how long")
    assert [str(old.origin)[:14] for old in deployment.overridden["scheduler.max_num_seqs"]] == ["preset latency"]


def test_the_strongest_layer_names_the_preset(tmp_path: Path) -> None:
    deployment = load(tmp_path, "preset: latency\nmodel: {model: x}\n", "--preset", "throughput")
    assert deployment.scheduler.max_num_seqs == 256
    assert load(tmp_path, "preset: latency\nmodel: {model: x}\n", "--preset!").scheduler.max_num_seqs == "auto"


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_runs_with_a_model_of_short_context(name: str) -> None:
    report = report_on([], ["--model", "builtin:tiny", "--preset", name], MACHINE, {})
    assert report.errors == []
    assert report.decisions is not None
    assert report.decisions.get("model.max_model_len") <= 2048


def test_where_a_preset_goes_further_than_the_model_the_model_counts_and_it_is_said() -> None:
    report = report_on([], ["--model", "builtin:tiny", "--preset", "low-memory"], MACHINE, {})
    assert report.decisions is not None
    assert report.decisions.get("model.max_model_len") == 2048
    origin = report.decisions.origins["model.max_model_len"]
    assert origin.reason == "the model's own limit, below the 4096 of preset low-memory"
    written = report_on([], ["--model", "builtin:tiny", "--max-model-len", "4096"], MACHINE, {})
    assert [finding.code for finding in written.errors] == ["R205"]


def test_a_preset_gives_way_without_a_word() -> None:
    """Once a written size of the KV cache was warned about, beside a share that only the preset had named."""
    words = ["--model", "builtin:tiny", "--kv-cache-memory-bytes", "64MiB"]
    assert report_on([], [*words, "--preset", "low-memory"], MACHINE, {}).findings == ()
    both = report_on([], [*words, "--gpu-memory-utilization", "0.5"], MACHINE, {})
    assert [finding.code for finding in both.findings] == ["R084"]
