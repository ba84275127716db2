from __future__ import annotations

import pytest
from tests.unit.config.plan.shapes import spec_of

from stoker.model.context_parallel import context_parallel_problem, prompt_sharing_problem
from stoker.model.read import read_config


@pytest.mark.parametrize(
    ("name", "devices", "parts", "reason"),
    [
        ("deepseek-v3", 8, 8, None),
        ("deepseek-v3", 8, 4, None),
        ("llama-3.1-8b", 16, 2, None),
        ("llama-3.1-8b", 16, 4, "each of its keys and values is on 2 of 16 processes, no multiple of 4"),
        ("llama-3.1-8b", 8, 2, "each of its keys and values is on 1 of 8 processes, no multiple of 2"),
        ("deepseek-v3.2", 8, 2, "attention is to chosen tokens, and each process chooses among all"),
        ("gemma-3-1b", 2, 2, "some of its layers attend to a window, whose tokens each process keeps"),
        ("qwen3.5-27b", 8, 2, "some of its layers keep a recurrent state, which is of all tokens before"),
    ],
)
def test_tokens_are_shared_by_devices_with_the_same_keys(
    name: str, devices: int, parts: int, reason: str | None
) -> None:
    assert context_parallel_problem(spec_of(name), devices, parts) == reason
    assert context_parallel_problem(spec_of(name), devices, 1) is None


def test_what_depends_on_more_than_the_kept_tokens_is_not_shared() -> None:
    spec = spec_of("llama-3.1-8b")

    def reason(**changes: object) -> str | None:
        layers = tuple(
            layer.model_copy(update={"mixer": layer.mixer.model_copy(update=changes)})
            for layer in spec.layers
            if layer.mixer is not None
        )
        return context_parallel_problem(spec.model_copy(update={"layers": layers}), 16, 2)

    assert reason() is None
    assert reason(has_sinks=True) == "attention has sinks, which would be added once for each process"
    assert "ALiBi" in str(reason(alibi="after_scale"))


def test_tokens_that_see_later_ones_are_computed_together() -> None:
    spec, _ = read_config({"architectures": ["ModernBertModel"]})
    assert prompt_sharing_problem(spec) == "tokens see later ones, which another process would compute"
    assert context_parallel_problem(spec, 2, 2) == "tokens see later ones, and nothing is kept of a sequence"
