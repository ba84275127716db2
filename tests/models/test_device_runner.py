"""The CUDA runner without graphs: its kernels are interpreted and called one by one.

Its tokens are compared with those of the CPU's runner over plain torch, with steps launched ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from tests.slow_cases import slow_but
from tests.unit.engine.runner.plans import admission, ids, make_plan

from stoker.config import ModelFilesError
from stoker.convert.loaded_state import pack
from stoker.convert.loaded_state import save as save_packed
from stoker.engine.api import EngineOutput, EngineRequest, FinishReason, RequestInputs, SamplingParams
from stoker.engine.executor.build import build_core
from stoker.engine.kernels.gpu.launch import is_interpreted
from stoker.engine.layers.step_input import StepInput
from stoker.engine.loop.engine_core import EngineCore
from stoker.engine.runner.cuda.buckets import Buckets
from stoker.engine.runner.cuda.device_parts import sampling_parts
from stoker.engine.runner.cuda.loading import load_on_device
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.load_runner import load_runner
from stoker.engine.runner.measure import PhaseClock
from stoker.engine.runner.state_cache import StateCache
from stoker.engine.runner.step_shape import StepShape

from .checkpoints import build, save
from .conftest import Saved
from .engine import WITH_GPU, joined, resolved
from .quantised import METHODS, write

PROMPTS = [[5, 6, 7], list(range(20, 34)), [9]]  # of several blocks, and of more than one step
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="needs Triton's interpreter"),
    # Padding rows compute with uninitialised memory, for which numpy warns.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]


def core(folder: Path, place: Path, device: str, **sections: dict[str, Any]) -> EngineCore:
    given = {"device": {"device": device}, **sections}
    if device == "cpu":
        given["model"] = {"enforce_eager": True} | given.get("model", {})
    return build_core(resolved(folder, place, WITH_GPU, **given))


def run(engine: EngineCore, samplings: list[SamplingParams], prompts: list[list[int]] = PROMPTS) -> list[EngineOutput]:
    """The prompts, each with its parameters; some arrive while others are running. Returns joined outputs."""
    requests = [
        EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, sampling))
        for index, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]
    done: dict[str, EngineOutput] = {}
    waiting = requests[::-1]
    num_steps = 0
    while waiting or engine.has_work:
        if waiting and num_steps % 3 == 0:
            engine.add(waiting.pop())
        for output in engine.step():
            before = done.get(output.request_id)
            done[output.request_id] = output if before is None else joined(before, output)
        num_steps += 1
    assert all(output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) for output in done.values())
    return [done[request.request_id] for request in requests]


GREEDY = SamplingParams(temperature=0, max_tokens=4)
PLAIN = [GREEDY, replace(GREEDY, temperature=0.8, seed=1), replace(GREEDY, temperature=1.5, seed=2**63 - 5)]
RICH = [
    replace(GREEDY, temperature=1.2, seed=1, top_k=5, top_p=0.9, frequency_penalty=0.7, presence_penalty=0.3),
    replace(
        GREEDY,
        repetition_penalty=1.4,
        logit_bias={3: 2.5, 11: -100.0},
        allowed_token_ids=tuple(range(0, 97, 3)),
        bad_word_ids=((6,),),
    ),
    replace(GREEDY, temperature=0.9, seed=4, min_p=0.05, min_tokens=3, stop_token_ids=tuple(range(0, 97, 2))),
]
# Bad words of several tokens are found by the host.
HOSTED = [GREEDY, replace(GREEDY, bad_word_ids=tuple((first, last) for first in range(50) for last in range(0, 97, 2)))]


@pytest.mark.parametrize(
    ("family", "samplings"),
    [
        pytest.param("llama with biases", PLAIN, marks=pytest.mark.slow),
        pytest.param("qwen3", RICH, marks=pytest.mark.slow),
        pytest.param("qwen3", [*HOSTED, RICH[0]], marks=pytest.mark.slow),
    ],
)
def test_tokens_equal_those_of_the_cpu(
    family: str, samplings: list[SamplingParams], saved: Callable[[str], Saved], tmp_path: Path
):
    folder = saved(family)[1]
    assert is_interpreted()
    expected = run(core(folder, tmp_path, "cpu"), samplings)
    engine = core(folder, tmp_path, "cuda")
    found = run(engine, samplings)
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert [each.finish_reason for each in found] == [each.finish_reason for each in expected]
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


@pytest.mark.slow
@pytest.mark.parametrize("sections", [{}, {"scheduler": {"disable_hybrid_kv_cache_manager": True}}])
def test_layers_with_windows_have_tables_of_their_own(
    sections: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
):
    """One of two layers has a window of 5 tokens: a prompt of 14 gives back a block, and its table still has it."""
    types = ["sliding_attention", "full_attention"]
    model = build("qwen2", layer_types=types, sliding_window=5)
    folder = save(model, tmp_path_factory.mktemp("windows"))
    cache, prompts = {"num_gpu_blocks_override": 8}, PROMPTS[1:]
    expected = run(core(folder, tmp_path, "cpu", cache=cache), PLAIN[:2], prompts)
    engine = core(folder, tmp_path, "cuda", cache=cache, **sections)
    assert engine.stats.num_blocks == (8 if sections else 2 * 8)
    assert [each.token_ids for each in run(engine, PLAIN[:2], prompts)] == [each.token_ids for each in expected]
    assert engine.stats.num_free_blocks == engine.stats.num_blocks


# The second prompt continues from the first one's block and, of models with states, from the state that was kept at its
# end; both prompts take more than one step. The third one is computed by the host, with others in the same steps.
SMALL: dict[str, dict[str, Any]] = {
    "model": {"max_model_len": 24},
    "cache": {"num_gpu_blocks_override": 4},
    "scheduler": {"max_num_seqs": 3, "cuda_graph_sizes": [3]},
}
SHARED = [[*range(20, 31), 5], [*range(20, 29), 3, 4], [9]]
THREE = replace(GREEDY, max_tokens=3)
MIXED = [THREE, THREE, replace(GREEDY, max_tokens=1, prompt_logprobs=0)]
# Gated delta rule, Mamba-2 with experts and beside attention, short convolutions; keys and values of several widths;
# experts, sinks, windows and softcaps, latents.
KINDS = ("qwen3_5", "kimi_linear", "bailing_hybrid", "minimax", "lfm3", "nemotron_h", "falcon_h1", "lfm2")
KINDS += ("zamba2", "zamba", "diffllama", "recurrent_gemma")
KINDS += ("gemma4", "gemma4 narrow", "gemma4 shared", "hy_v4", "deepseek_v4", "axk2", "dots3", "qwen4_exp")
KINDS += ("qwen3_moe", "gpt_oss", "gemma2", "gemma3", "deepseek_v3", "openai-gpt", "xglm", "phimoe")


def tokens_of(folder: Path, place: Path, device: str) -> tuple[list[list[int]], list[int]]:
    """Of each request of MIXED: its tokens, and how many of its prompt came from the cache."""
    found = run(core(folder, place, device, **SMALL), MIXED, SHARED)
    return [each.token_ids for each in found], [each.num_cached_tokens for each in found]


@pytest.mark.parametrize("family", slow_but(KINDS, "lfm2"))
def test_every_kind_of_layer_gives_the_tokens_of_the_cpu(
    family: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    folder = saved(family)[1]
    expected = tokens_of(folder, tmp_path, "cpu")
    assert expected[1] == [0, 8, 0]
    assert tokens_of(folder, tmp_path, "cuda") == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "mamba2", "gemma3"])
def test_a_sequence_that_was_preempted_goes_on(family: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """Its states are computed again, or taken from those that were kept."""
    folder = saved(family)[1]
    asked, prompts = [replace(GREEDY, max_tokens=12), replace(GREEDY, max_tokens=8)], [[20, 21, 22], [*range(5, 12)]]
    sections = SMALL | {"cache": {"num_gpu_blocks_override": 3}}
    expected = run(core(folder, tmp_path, "cpu", **SMALL), asked, prompts)
    engine = core(folder, tmp_path, "cuda", **sections)
    assert [each.token_ids for each in run(engine, asked, prompts)] == [each.token_ids for each in expected]
    assert engine.stats.num_preemptions > 0


def _reversed(cache: KVCache, steps: Sequence[StepInput]) -> list[StepInput]:
    return BY_LAYER(cache, [replace(step, block_tables=step.block_tables.flip(-1).contiguous()) for step in steps])


def _not_reset(cache: KVCache, steps: Sequence[StepInput]) -> list[StepInput]:
    return BY_LAYER(cache, [replace(step, context_lens=step.context_lens + 1) for step in steps])


BY_LAYER = KVCache.by_layer
MUTATIONS = {
    "block tables are read in reverse": ("gemma4", KVCache, "by_layer", _reversed),
    "parts of a block are not distinguished": ("gemma4 narrow", KVCache, "by_layer", lambda cache, steps: [
        steps[view.group] for view in (cache.groups.views[at] for at in cache.groups.view_of_layer)
    ]),
    "states are not reset": ("mamba2", KVCache, "by_layer", _not_reset),
    "states are not copied": ("mamba2", StateCache, "copy", lambda states, places: None),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_cache_changes_the_tokens(
    mutation: str, saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the test before would notice one."""
    family, owner, name, wrong = MUTATIONS[mutation]
    folder = saved(family)[1]
    expected = tokens_of(folder, tmp_path, "cpu")
    monkeypatch.setattr(owner, name, wrong)
    assert tokens_of(folder, tmp_path, "cuda") != expected


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
def test_log_probabilities_equal_those_of_the_cpu(mode: str, saved: Callable[[str], Saved], tmp_path: Path):
    """Also those of prompts and processed ones, which only the host computes: host and device steps alternate."""
    folder = saved("qwen3")[1]
    samplings = [
        replace(GREEDY, logprobs=3),
        replace(GREEDY, prompt_logprobs=2, logprobs=0, temperature=0.9, seed=3),
        replace(GREEDY, logprobs=1, frequency_penalty=0.5),
        replace(GREEDY, logprobs=2, processed_logprobs=True),
        replace(GREEDY, logprobs=2, processed_logprobs=True, temperature=0.5, seed=5),
    ]
    sections = {"model": {"logprobs_mode": mode}}
    prompts = [*PROMPTS, [11, 12], [30]]
    expected = run(core(folder, tmp_path, "cpu", **sections), samplings, prompts)
    found = run(core(folder, tmp_path, "cuda", **sections), samplings, prompts)
    for each, other in zip(found, expected, strict=True):
        assert each.token_ids == other.token_ids
        for entries, others in ((each.logprobs, other.logprobs), (each.prompt_logprobs, other.prompt_logprobs)):
            assert (entries is None) == (others is None)
            for entry, same in zip(entries or [], others or [], strict=True):
                if entry is None or same is None:
                    assert entry is same
                    continue
                assert (entry.token_ids, entry.rank) == (same.token_ids, same.rank)
                assert entry.logprobs == pytest.approx(same.logprobs, abs=1e-4)


@pytest.mark.slow
@pytest.mark.effect("cache.kv_cache_dtype")
def test_tokens_with_a_cache_in_fp8_equal_those_of_torchs_kernels(saved: Callable[[str], Saved], tmp_path: Path):
    """The second time the prompt's first block comes from the cache."""
    folder, sections = saved("qwen3")[1], {"cache": {"kv_cache_dtype": "fp8"}}
    asked = [replace(GREEDY, max_tokens=2)]
    (expected,) = run(core(folder, tmp_path, "cuda", model={"batch_invariant": True}, **sections), asked, PROMPTS[1:2])
    engine = core(folder, tmp_path, "cuda", **sections)
    assert engine.info.kv_cache_bytes * 4 == resolved(folder, tmp_path).memory.kv_cache_bytes
    for num_cached_tokens in (0, 8):
        (found,) = run(engine, asked, PROMPTS[1:2])
        assert (found.token_ids, found.num_cached_tokens) == (expected.token_ids, num_cached_tokens)


@pytest.mark.effect("scheduler.cuda_graph_sizes")
@pytest.mark.effect("compilation.cudagraph_capture_sizes")
@pytest.mark.effect("compilation.level")
@pytest.mark.effect("model.enforce_eager")
@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, [1, 4, 8]),
        ({"scheduler": {"cuda_graph_sizes": [3, 6]}}, [3, 3, 6]),
        ({"compilation": {"cudagraph_capture_sizes": [5]}}, [5, 5, 5]),
        ({"compilation": {"level": 0}}, [1, 3, 5]),
        ({"model": {"enforce_eager": True}}, [1, 3, 5]),
    ],
)
def test_decode_steps_are_padded_to_the_sizes_of_graphs(
    sections: dict[str, Any], expected: list[int], saved: Callable[[str], Saved], tmp_path: Path
):
    settings = resolved(saved("qwen3")[1], tmp_path, WITH_GPU, device={"device": "cuda"}, **sections)
    runner = load_runner(settings, sampling_parts(), load_on_device)
    shapes: list[StepShape] = []
    runner.parts.body.graphs.run = lambda shape: shapes.append(shape) or torch.empty(0)  # type: ignore[attr-defined, func-returns-value]
    for rows in (1, 3, 5):
        runner.execute(
            make_plan(slots=ids(*range(rows)), num_computed=ids(*range(rows)), num_tokens=ids(*[1] * rows),
                      num_outputs=ids(*[1] * rows))
        )  # fmt: skip
    assert [shape.num_rows for shape in shapes] == expected
    assert all(shape.tokens_per_row == 1 and not shape.flags for shape in shapes)


def test_rows_of_the_same_number_of_tokens_have_a_shape(saved: Callable[[str], Saved], tmp_path: Path):
    """Two tokens in each of three rows, padded to four rows, give the tokens of a step whose rows may differ."""
    settings = resolved(saved("qwen3")[1], tmp_path, WITH_GPU, device={"device": "cuda"})
    begun = [admission(slot, [5 + slot, 6, 7, 8], [slot], temperature=0) for slot in range(3)]
    first = make_plan(admissions=begun, slots=ids(0, 1, 2), num_computed=ids(0, 0, 0), num_tokens=ids(2, 2, 2),
                      num_outputs=ids(0, 0, 0))  # fmt: skip
    then = replace(first, step=1, admissions=[], num_computed=ids(2, 2, 2), num_outputs=ids(1, 1, 1))
    found: list[list[int]] = []
    shapes: list[StepShape] = []
    for counts in ((1,), (1, 2)):
        runner = load_runner(settings, sampling_parts(), load_on_device)
        body: Any = runner.parts.body
        body._head._buckets, compute = Buckets((1, 4), 8, 11, tokens_per_row=counts), body.graphs.run
        body.graphs.run = lambda shape, compute=compute: shapes.append(shape) or compute(shape)
        found.append([*runner.execute(first).token_ids, *runner.execute(then).token_ids])
    assert found[0] == found[1]
    assert shapes == [StepShape(11, 8, 0)] * 2 + [StepShape(8, 4, 2)] * 2


# One of each layout of codes; METHODS are read before kernels see them. All codes: tests/kernels/test_grouped.py.
KEPT = ("gptq", "gptq 3", "packed asymmetric", "integers", "fp8 blocks", "mxfp4", "nf4")


@pytest.mark.effect("model.batch_invariant")
def test_batch_invariance_uses_torchs_kernels_one_row_at_a_time(saved: Callable[[str], Saved], tmp_path: Path):
    sections = {"model": {"batch_invariant": True}}
    engine = core(saved("qwen3")[1], tmp_path, "cuda", **sections)
    assert engine.info.kernels["linear"].startswith("torch")
    found = run(engine, PLAIN)
    assert [each.token_ids for each in found] == [
        each.token_ids for each in run(core(saved("qwen3")[1], tmp_path, "cpu"), PLAIN)
    ]


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.slow
def test_a_quantised_checkpoint_keeps_its_codes(name: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """Log-probabilities are those of the dequantised weights, and the plan counts the bytes that are held."""
    folder = tmp_path / "quantised"
    write(saved("qwen3")[1], folder, METHODS[name])
    settings = resolved(folder, tmp_path, WITH_GPU, device={"device": "cuda"}, **SMALL)
    engine, asked = build_core(settings), [replace(GREEDY, max_tokens=2, logprobs=5)]
    (expected,) = run(core(folder, tmp_path, "cpu", **SMALL), asked, PROMPTS[:1])
    (found,) = run(engine, asked, PROMPTS[:1])
    assert found.token_ids == expected.token_ids
    assert found.logprobs is not None
    for entry, same in zip(found.logprobs, expected.logprobs or [], strict=True):
        assert entry.token_ids == same.token_ids
        assert entry.logprobs == pytest.approx(same.logprobs, abs=1e-4)
    held = engine.info.weights_bytes
    assert held == settings.memory.weights_bytes
    files = settings.model_files
    assert held == files.weights_bytes("float32", layout=None if "nf4" in name else "rows")
    assert (held < 0.75 * files.weights_bytes("float32")) == ("nf4" not in name)


@pytest.mark.effect("load.load_format")
def test_weights_as_a_cpu_holds_them_are_refused(saved: Callable[[str], Saved], tmp_path: Path):
    packed = pack(resolved(saved("qwen3")[1], tmp_path), PhaseClock())
    save_packed(packed, packed.parts(1 << 20), tmp_path / "state", lambda _: None)
    with pytest.raises(ModelFilesError, match=r"a sharded state of kernels \w+, not triton, as this start has\. Start"):
        core(tmp_path / "state", tmp_path, "cuda")
    with pytest.raises(ModelFilesError, match=r"`device\.device` is cuda; a sharded state has the weights as a CPU"):
        pack(resolved(saved("qwen3")[1], tmp_path, WITH_GPU, device={"device": "cuda"}), PhaseClock())
