from __future__ import annotations

from pathlib import Path

import pytest

from stoker.config import Deployment, load_deployment
from stoker.config.schema.options import options
from stoker.config.schema.parallel import ExpertBalance
from stoker.config.source.flags import read_flag

from ..deployments import findings, load, message

DEPRECATED = [option for option in options().values() if option.status == "deprecated"]


def words(*line: str) -> Deployment:
    return load_deployment([], ["--model", "x", *line], {})


def codes(deployment: Deployment) -> list[str]:
    return [finding.code for finding in deployment.warnings]


def test_an_old_name_is_mapped_with_one_warning() -> None:
    deployment = words("--no-disable-log-requests")
    assert deployment.server.enable_log_requests
    assert codes(deployment) == ["C123"]
    assert str(deployment.origin("server.enable_log_requests")) == "command line --no-disable-log-requests"
    assert "`server.enable_log_requests`" in deployment.warnings[0].as_text()


def test_the_bare_old_flag_means_what_it_meant() -> None:
    assert not words("--disable-log-requests").server.enable_log_requests


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--uvicorn-log-level debug", "http_log_level", "debug"),
        ("--disable-uvicorn-access-log", "disable_access_log", True),
        ("--h11-max-incomplete-event-size 1MiB", "max_incomplete_header_bytes", 1024**2),
        ("--h11-max-incomplete-event-size auto", "max_incomplete_header_bytes", "auto"),
        ("--h11-max-header-count 7", "max_header_count", 7),
        ("--disable-fastapi-docs", "disable_docs", True),
    ],
)
def test_names_of_another_servers_implementation_are_mapped_onto_ours(line: str, name: str, value: object) -> None:
    deployment = words(*line.split())
    assert getattr(deployment.server, name) == value
    assert codes(deployment) == ["C123"]
    assert f"renamed to `server.{name}`" in deployment.warnings[0].as_text()


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("-cc.mode 3", 3),
        ("-cc.mode=0", 0),
        ("--compilation-config.mode 3", 3),
        ("--compilation-config.mode VLLM_COMPILE", 3),
        ("--compilation-config.mode NONE", 0),
        ('--compilation-config {"mode":3}', 3),
    ],
)
def test_the_mode_of_a_compilation_is_the_level(line: str, level: int) -> None:
    """It was an unknown option, for which `speculative.model` was suggested."""
    deployment = words(*line.split())
    assert deployment.config.compilation.level == level
    assert codes(deployment) == ["C123"]
    assert "`compilation.level`" in deployment.warnings[0].as_text()


def test_an_old_name_in_a_file_is_as_strong_as_the_file(tmp_path: Path) -> None:
    deployment = load(
        tmp_path, "model: {model: x}\nserver:\n  disable_log_requests: false\n", "--no-enable-log-requests"
    )
    assert not deployment.server.enable_log_requests
    env = {"ENGINE__SERVER__DISABLE_LOG_REQUESTS": "true"}
    text = "model: {model: x}\nserver: {enable_log_requests: true}\n"
    assert not load(tmp_path, text, env=env).server.enable_log_requests


def test_old_and_new_name_that_contradict_each_other_are_an_error(tmp_path: Path) -> None:
    text = "model: {model: x}\nserver:\n  disable_log_requests: true\n  enable_log_requests: true\n"
    assert "C124" in findings(tmp_path, text)
    agreeing = text.replace("disable_log_requests: true", "disable_log_requests: false")
    assert load(tmp_path, agreeing).server.enable_log_requests


@pytest.mark.parametrize(
    "line",
    [
        "--use-v2-block-manager",
        "--num-scheduler-steps 8",
        "--swap-space 4",
        "--preemption-mode recompute",
        "--disable-cascade-attn",
        "--tokenizer-pool-size 4",
        "--engine-use-ray",
        "--max-context-len-to-capture 8192",
        "--spec-decoding-acceptance-method rejection_sampler",
    ],
)
def test_what_has_no_successor_changes_nothing_and_says_so(line: str) -> None:
    deployment = words(*line.split())
    assert set(codes(deployment)) == {"C123"}
    assert deployment.config == words().config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scheduler: {preemption_mode: swap}", "a preempted sequence is computed again"),
        ("model: {model: x, task: draft}", "name the network that drafts in `speculative.model`"),
        ("speculative: {speculative_model_quantization: awq}", "what drafts is quantised as `model.quantization` says"),
        ("structured_outputs: {guided_decoding_backend: 'xgrammar:fast'}", "unknown backend option `fast`"),
        ("structured_outputs: {enable_reasoning: true}", "by setting `structured_outputs.reasoning_parser`"),
        ("scheduler: {num_scheduler_steps: 0}", "allowed: a whole number, at least 1"),
    ],
)
def test_an_old_name_for_what_this_build_refuses_is_refused_at_its_place(tmp_path: Path, text: str, said: str) -> None:
    text = text if text.startswith("model") else f"model: {{model: x}}\n{text}"
    shown = message(tmp_path, text + "\n")
    assert said in shown
    assert "deploy.yaml:" in shown


def test_four_old_options_are_keys_of_one() -> None:
    old = "--num-redundant-experts 2 --eplb-window-size 5 --eplb-step-interval 7 --eplb-log-balancedness"
    deployment = words(*old.split())
    assert codes(deployment) == ["C123"] * 4
    assert deployment.config.parallel.expert_balance == ExpertBalance(5, 7, 2, True)


def test_an_unknown_key_of_the_expert_balance_is_an_error_at_its_place(tmp_path: Path) -> None:
    shown = message(tmp_path, "model: {model: x}\nparallel:\n  eplb_config: {window: 5}\n")
    assert "parallel.eplb_config" in shown
    assert "window_size" in shown
    assert "deploy.yaml:3" in shown


def test_a_task_is_a_runner() -> None:
    deployment = words("--task", "generate")
    assert deployment.model.runner == "generate"
    assert codes(deployment) == ["C123"]


def test_every_deprecated_option_is_read_in_every_spelling() -> None:
    """Whatever comes of it - a warning or a refusal - it is never an unknown name."""
    for option in DEPRECATED:
        for spelling in option.flags:
            flag = read_flag(spelling)
            assert flag is not None
            assert flag.option == option, spelling
