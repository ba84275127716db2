"""A server that finds no compiled kernels begins with torch and changes to the C++ kernels while requests run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.slow_cases import slow

from stoker.config.cpu_features import NoKernels, choose_level, find_compiler, this_cpu, wanted_level
from stoker.config.cpu_library import LibrarySpec
from stoker.engine.api import EngineOutput, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.kernels.cpu.background import BackgroundCompilation
from stoker.engine.kernels.cpu.library import CpuLibrary, load_library
from stoker.engine.kernels.cpu.progress import Progress
from stoker.engine.layers.linear import Linear
from stoker.engine.runner import loaded_model
from stoker.engine.runner.load_runner import load_runner
from stoker.engine.runner.loaded_model import load_on_cpu

from .adapters import adapter, inputs_of, with_lora
from .conftest import Saved
from .engine import Engine, resolved, scheduler_of
from .test_generation import make_prompts


class SwitchingEngine(Engine):
    """Begins with torch. `switch` ends the compilation and waits for the new kernels."""

    def __init__(self, settings: Any, monkeypatch: pytest.MonkeyPatch, failure: str = "") -> None:
        compiled = threading.Event()

        def load(spec: LibrarySpec, *, report: Callable[[Progress], None], nice: bool) -> CpuLibrary:
            report(Progress(3, 9, 20.4))
            assert nice
            compiled.wait()
            if failure:
                raise NoKernels(failure)
            return load_library(spec)

        with monkeypatch.context() as patch:
            patch.setattr(loaded_model, "is_loadable", lambda _: False)
            patch.setattr(loaded_model, "BackgroundCompilation", partial(BackgroundCompilation, load=load))
            self.runner = load_runner(settings, load=partial(load_on_cpu, may_compile_later=True))
        self.compilation = self.runner.loaded.compilation
        assert self.compilation is not None
        self._compiled = compiled
        self.runner.warm_up()
        self.scheduler = scheduler_of(settings, self.runner)
        self.num_mixed_steps = 0

    def switch(self) -> None:
        self._compiled.set()
        self.compilation.join()

    def run_and_switch(self, requests: list[EngineRequest], steps_before: int) -> dict[str, EngineOutput]:
        """As `run`; the kernels change after some steps."""
        execute, num_steps = self.runner.execute, 0

        def counting(plan: Any) -> Any:
            nonlocal num_steps
            if num_steps == steps_before:
                self.switch()
            num_steps += 1
            return execute(plan)

        self.runner.execute = counting  # type: ignore[method-assign]
        try:
            return self.run(requests)
        finally:
            self.runner.execute = execute  # type: ignore[method-assign]


def requests(**sampling: Any) -> list[EngineRequest]:
    """Requests of several lengths: when the kernels change, some are in prefill, some in decode, some wait."""
    return [
        EngineRequest(
            request_id=str(index),
            inputs=RequestInputs(
                prompt, SamplingParams(temperature=0, max_tokens=6 + index % 7, ignore_eos=True, **sampling)
            ),
        )
        for index, prompt in enumerate(make_prompts(12))
    ]


def packed_weights(engine: Engine) -> list[tuple[torch.Tensor | None, ...]]:
    layers = [layer for layer in engine.runner.loaded.model.loadables() if isinstance(layer, Linear)]
    return [(layer.packed.weight, layer.packed.bias, layer.packed.scales) for layer in layers]


@pytest.fixture(autouse=True)
def _kernels() -> None:
    try:
        choose_level(wanted_level(), this_cpu())
        find_compiler()
    except NoKernels as error:
        pytest.skip(str(error))


@pytest.fixture
def settings(saved: Callable[[str], Saved], tmp_path: Path) -> Callable[..., Any]:
    def make(dtype: str = "float32", model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Any:
        return resolved(saved("qwen3")[1], tmp_path, model={"dtype": dtype} | (model or {}), **sections)

    return make


@pytest.mark.parametrize("steps_before", [5, slow(1), slow(12)])
def test_requests_that_run_get_the_same_tokens(
    steps_before: int, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    made = settings()
    begun = Engine(made)
    expected = begun.run(requests())
    engine = SwitchingEngine(made, monkeypatch)
    found = engine.run_and_switch(requests(), steps_before)
    assert {key: output.token_ids for key, output in found.items()} == {
        key: output.token_ids for key, output in expected.items()
    }
    assert engine.runner.info().kernels == begun.runner.info().kernels


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT reads it
def test_adapters_are_computed_before_and_after(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    base, folder = saved("qwen3")
    own = adapter(base, tmp_path / "own", 1)
    made = with_lora(folder, tmp_path)
    adapted = [
        replace(each, inputs=inputs_of(each.inputs.prompt_token_ids, own if index % 2 else None, each.inputs.sampling))
        for index, each in enumerate(requests())
    ]
    expected = Engine(made).run(adapted)
    found = SwitchingEngine(made, monkeypatch).run_and_switch(adapted, 5)
    assert {key: output.token_ids for key, output in found.items()} == {
        key: output.token_ids for key, output in expected.items()
    }
    plain = Engine(made).run(requests())
    assert {key for key, output in found.items() if output.token_ids != plain[key].token_ids} <= {
        each.request_id for each in adapted if each.inputs.adapter
    }
    assert found["1"].token_ids != plain["1"].token_ids


@pytest.mark.parametrize("dtype", ["bfloat16", slow("float32")])
def test_afterwards_the_engine_is_as_if_it_had_begun_with_the_kernels(
    dtype: str, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """Bit for bit: weights in the same order, decode steps replayed. Without prefixes that torch has computed."""
    made = settings(dtype, cache={"enable_prefix_caching": False})
    begun = Engine(made)
    engine = SwitchingEngine(made, monkeypatch)
    engine.run_and_switch(requests(logprobs=3), steps_before=5)
    for found, expected in zip(packed_weights(engine), packed_weights(begun), strict=True):
        for one, other in zip(found, expected, strict=True):
            assert one is other is None or torch.equal(one, other)
    assert engine.run(requests(logprobs=3)) == begun.run(requests(logprobs=3))
    assert engine.runner.info().kernels == begun.runner.info().kernels


def test_the_table_says_how_far_the_compilation_is(settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    engine = SwitchingEngine(settings(), monkeypatch)
    said = "compiling in the background: 3 of 9 files, about 20 s left; torch until then"
    assert set(engine.runner.info().kernels.values()) == {f"torch: {said}"}
    engine.switch()


def test_the_change_is_logged_once(
    settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "stoker")
    engine = SwitchingEngine(settings(), monkeypatch)
    engine.switch()
    engine.run(requests())
    said = [record.message for record in caplog.records if record.message.startswith("kernels: C++ ")]
    assert len(said) == 1
    assert "replaces torch" in said[0]


def test_a_compilation_that_fails_leaves_torch_in_use(
    settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    engine = SwitchingEngine(settings(), monkeypatch, failure="the compiler ran out of memory")
    engine.switch()
    assert caplog.messages == ["torch stays in use: the compiler ran out of memory"]
    assert set(engine.runner.info().kernels.values()) == {"torch: the compiler ran out of memory"}
    assert len(engine.run(requests())) == 12


@pytest.mark.parametrize(
    ("model", "available"),
    [({"batch_invariant": True}, 8 << 30), ({"quantization": "int8"}, 8 << 30), ({}, 1 << 20)],
    ids=["invariant", "quantised", "no room"],
)
def test_the_start_waits_where_torch_is_no_replacement(
    model: dict[str, Any], available: int, settings: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """Results that must not depend on the batch must not depend on the time either; the other two need another form."""
    made = settings(model=model)
    Engine(made)
    model_spec = loaded_model.read_machine_spec()
    monkeypatch.setattr(loaded_model, "is_loadable", lambda _: False)
    monkeypatch.setattr(
        loaded_model, "read_machine_spec", lambda: model_spec.model_copy(update={"available_memory_bytes": available})
    )
    monkeypatch.setattr(loaded_model.KVMemory, "check_room", lambda *_: None)
    runner = load_runner(made, load=partial(load_on_cpu, may_compile_later=True))
    assert runner.loaded.compilation is None
    assert runner.info().kernels["sampling"].startswith("c++ ")
