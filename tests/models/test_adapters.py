"""Adapters against PEFT: the engine computes what weights with merged adapters do, for each row of a mixed batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafters import AnswerDrafter
from tests.slow_cases import slow_but

from stoker.engine.api import (
    AdapterError,
    AdapterRef,
    EngineOutput,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    SamplingParams,
)
from stoker.engine.core import Scheduler
from stoker.engine.core.adapter_slots import AdapterSettings
from stoker.engine.core.settings import DraftSettings
from stoker.engine.executor.build import build_core
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.kernels import select_kernels
from stoker.engine.layers.linear import Linear
from stoker.engine.loop.adapter_reader import AdapterReader
from stoker.engine.lora.mix import AdapterMix
from stoker.engine.plugins import PluginError
from stoker.engine.runner import loaded_model
from stoker.engine.runner.adapters import adapted_layers, adapters_of
from stoker.engine.runner.loaded_model import LoadedModel

from .adapters import Adapter, adapter, answers, inputs_of, outputs, with_lora
from .checkpoints import build, reference_greedy, reference_logits, save
from .conftest import Saved
from .engine import Engine, joined, resolved
from .gguf_files import write_gguf
from .quantised import METHODS, write, write_plain
from .ranks import divided
from .stepped import CPU, Row, SteppedModel

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{each}")
    for each in (
        "`is_gradient_checkpointing` is deprecated:FutureWarning",  # PEFT reads it, transformers has renamed it
        "Adapter 'default'. 14 LoRA tensor",  # that a bias is a vector
        "Model (has|with) `tie_word_embeddings=True`:UserWarning",
    )
]
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [3], [40, 41, 42, 43], [*range(20, 50)], [5, 6, 7, 8, 9, 10, 11, 12, 14]]
SCORED = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3, prompt_logprobs=2)
# Their weights are in another order than the rows of a layer, and some layers have experts, which are not adapted.
OUTPUT_LAYER = {"save_embedding_layers": False}  # else PEFT stores the whole matrices too
ORDERED = {"target_modules": ["q_proj", "k_proj", "o_proj", "in_proj_qkvz", "out_proj", "lm_head"], **OUTPUT_LAYER}
FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "qwen3": {}, "gemma2": {}, "phi3": {}, "qwen3_next": ORDERED}


def merged_answers(base: Any, adapters: Sequence[Adapter | None], prompts: Sequence[list[int]]) -> list[list[int]]:
    return [
        reference_greedy(base if own is None else own.merged, prompt, 24)
        for own, prompt in zip(adapters, prompts, strict=True)
    ]


@pytest.mark.effect("lora.enable_lora")
@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_of_a_batch_has_its_own_adapter(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved(family)
    own = FAMILIES[family]
    first = adapter(base, tmp_path / "first", 1, **own)
    second = adapter(base, tmp_path / "second", 2, **{"r": 5, "lora_alpha": 7, "use_rslora": True, **own})
    one_layer = {"r": 1, "lora_alpha": 2, "target_modules": ["o_proj"], "layers_to_transform": [1]}
    third = adapter(base, tmp_path / "third", 3, **one_layer)
    engine = Engine(with_lora(folder, tmp_path))
    plain = merged_answers(base, [None] * 5, PROMPTS)
    for rows in ([first] * 5, [first, None, second, third, None], [None] * 5, [second, third, first, None, second]):
        expected = merged_answers(base, rows, PROMPTS)
        assert answers(engine, PROMPTS, rows) == expected
        if family != "gemma2":  # whose embedding decides the tokens of such a small model: the next test scores them
            assert (expected == plain) == (rows == [None] * 5)
    assert engine.num_mixed_steps > 0


@pytest.mark.effect("lora.max_lora_rank")
@pytest.mark.parametrize(("family", "rank"), [*(("llama", rank) for rank in (1, 5, 8, 64)), ("gemma2", 8), ("phi3", 7)])
def test_ranks_and_patterns(family: str, rank: int, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved(family)
    patterns = {"rank_pattern": {"k_proj": 3, "0.mlp.up_proj": 2}, "alpha_pattern": {"v_proj": 40, "down_proj": 1}}
    own = adapter(base, tmp_path / "own", rank, r=rank, lora_alpha=3, **({} if family == "phi3" else patterns))
    found = outputs(Engine(with_lora(folder, tmp_path)), PROMPTS, [own, None, own, own, None], SCORED)
    for prompt, output, merged in zip(PROMPTS, found, [own, None, own, own, None], strict=True):
        assert_scored_by(base if merged is None else merged.merged, prompt, output)


def assert_scored_by(model: Any, prompt: list[int], output: EngineOutput) -> None:
    """The log-probabilities of an answer are those of this model."""
    logits = reference_logits(model, [*prompt, *output.token_ids])
    expected = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
    assert output.logprobs is not None
    for position, entry in enumerate(output.logprobs):
        assert entry.logprobs == pytest.approx(expected[position][entry.token_ids].tolist(), abs=2e-4)


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
OTHER_FAMILIES: dict[str, Any] = {  # and the modules that are trained: experts are not adapted
    "deepseek_v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gpt_bigcode": ["c_attn", "c_proj", "c_fc"],
    "bloom": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "falcon grouped": ["query_key_value", "dense"],
    **dict.fromkeys(("gemma3", "olmo2", "cohere2", "stablelm parallel"), "all-linear"),
    "qwen3_5": ["q_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj", "up_proj"],
    **dict.fromkeys(("gpt_oss", "qwen3_moe", "llama4", "kimi_linear"), ATTENTION),
    "minimax": ["qkv_proj", "out_proj", "q_proj", "o_proj"],
    "lfm2": ["q_proj", "in_proj", "out_proj", "w1", "w2", "w3"],
    "granite 4": ["in_proj", "out_proj", "q_proj", "o_proj"],
}


@pytest.mark.parametrize("family", slow_but(OTHER_FAMILIES, "deepseek_v3", "gpt2"))
def test_other_families(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved(family)
    own = adapter(base, tmp_path / "own", 1, target_modules=OTHER_FAMILIES[family], fan_in_fan_out=family == "gpt2")
    rows = [own, None, own, None, own]
    found = outputs(Engine(with_lora(folder, tmp_path)), PROMPTS, rows, SCORED)
    for prompt, output, merged in zip(PROMPTS, found, rows, strict=True):
        assert_scored_by(base if merged is None else merged.merged, prompt, output)


def test_experts_whose_router_computes_in_float32(saved: Callable[[str], Saved], tmp_path: Path):
    """Its product is of another type than that of the adapters of a model in bfloat16."""
    base, folder = saved("deepseek_v3")
    own = adapter(base, tmp_path / "own", 1, target_modules=OTHER_FAMILIES["deepseek_v3"])
    engine = Engine(with_lora(folder, tmp_path, model={"dtype": "bfloat16"}))
    assert any(
        each.dtype == torch.float32 for each in engine.runner.loaded.model.loadables() if isinstance(each, Linear)
    )
    rows = [own, None, own, None, own]
    found, plain = (outputs(engine, PROMPTS, each, SCORED) for each in (rows, [None] * len(rows)))
    assert [output.finish_reason for output in found] == [FinishReason.LENGTH] * len(rows)
    assert [output.token_ids for output in found[1::2]] == [output.token_ids for output in plain[1::2]]


@pytest.mark.parametrize("family", ["llama", "qwen3"])  # the second one's is the embedding, which has no deltas
def test_the_output_layer_has_deltas(family: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved(family)
    own = adapter(base, tmp_path / family, 7, target_modules=["lm_head"], **OUTPUT_LAYER)
    rows = [own, None, own, None, own]
    found = outputs(Engine(with_lora(folder, tmp_path)), PROMPTS, rows, SCORED)
    for prompt, output, merged in zip(PROMPTS, found, rows, strict=True):
        assert_scored_by(base if merged is None else own.unmerged, prompt, output)


def test_a_bias_of_b(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama with biases")  # PEFT merges it into the biases of the model
    own = adapter(base, tmp_path / "own", 4, lora_bias=True)
    assert answers(Engine(with_lora(folder, tmp_path)), PROMPTS, [own, None, own, own, None]) == merged_answers(
        base, [own, None, own, own, None], PROMPTS
    )


def scores(found: list[EngineOutput]) -> list[tuple[object, ...]]:
    return [(each.token_ids, each.logprobs, each.prompt_logprobs) for each in found]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_without_an_adapter_have_the_same_bits(dtype: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("qwen3")
    own = adapter(base, tmp_path / "own", 1)
    serving = Engine(with_lora(folder, tmp_path, model={"dtype": dtype}))
    plain = Engine(resolved(folder, tmp_path, model={"dtype": dtype}))
    expected = scores(outputs(plain, PROMPTS, [None] * 5, SCORED))
    assert scores(outputs(serving, PROMPTS, [None] * 5, SCORED)) == expected
    mixed = scores(outputs(serving, PROMPTS, [None, own, None, own, None], SCORED))
    assert [mixed[row] for row in (0, 2, 4)] == [expected[row] for row in (0, 2, 4)]
    assert [mixed[row] for row in (1, 3)] != [expected[row] for row in (1, 3)]


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_replayed_steps_with_adapters_give_the_same_bits(
    family: str, saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The steps are captured with one adapter, and replayed with others."""
    base, folder = saved(family)
    every = [adapter(base, tmp_path / str(seed), seed, r=3 + seed) for seed in range(4)]
    settings = with_lora(folder, tmp_path, {"max_loras": 2}, model={"dtype": "bfloat16"})
    engine = Engine(settings)
    if engine.runner.loaded.kernels.capture is None:
        pytest.skip("no compiler")
    with monkeypatch.context() as patch:
        patch.setattr(loaded_model, "select_kernels", lambda *a, **k: replace(select_kernels(*a, **k), capture=None))
        one_by_one = Engine(settings)
    for rows in (
        [every[0]] * 5,
        [every[1], None, every[2], None, every[3]],
        [None, every[3], every[0], every[3], None],
    ):
        assert scores(outputs(engine, PROMPTS, rows, SCORED)) == scores(outputs(one_by_one, PROMPTS, rows, SCORED))
    launches = engine.runner.launches()
    assert launches.captured > launches.kernels
    assert one_by_one.runner.launches().captured == 0


@pytest.mark.effect("lora.max_loras", "lora.max_cpu_loras")
def test_more_adapters_than_slots_take_turns(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    every = [adapter(base, tmp_path / str(seed), seed) for seed in range(4)]
    engine = Engine(with_lora(folder, tmp_path, {"max_loras": 2, "max_cpu_loras": 2}))
    rows = [*every, None, *every, *every]
    prompts = [PROMPTS[index % 5] for index in range(len(rows))]
    assert answers(engine, prompts, rows) == merged_answers(base, rows, prompts)
    adapters = engine.runner.loaded.adapters
    assert adapters is not None
    assert len(adapters._copies) == 2
    assert engine.runner.info().kernels["adapters"] == "at most 2 in a step, 2 in memory"


def test_adapters_do_not_share_cached_prefixes(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    first, second = (adapter(base, tmp_path / str(seed), seed) for seed in (1, 2))
    engine = Engine(with_lora(folder, tmp_path))
    prompt = [*range(10, 35)]
    cached = []
    for own in (None, first, second, first, None, second):
        (output,) = outputs(engine, [prompt], [own])
        assert output.token_ids == merged_answers(base, [own], [prompt])[0]
        cached.append(output.num_cached_tokens)
    assert cached == [0, 0, 0, 24, 24, 24]


def test_preempted_sequences_keep_their_adapter(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    first, second = (adapter(base, tmp_path / str(seed), seed) for seed in (1, 2))
    few = {"cache": {"num_gpu_blocks_override": 9}}
    engine = Engine(with_lora(folder, tmp_path, {"max_loras": 1, "max_cpu_loras": 1}, **few))
    rows = [first, first, None, first, second]
    assert answers(engine, PROMPTS, rows) == merged_answers(base, rows, PROMPTS)
    assert engine.scheduler.stats().num_preemptions > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_depends_on_the_batch(dtype: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("qwen3")
    first, second = (adapter(base, tmp_path / str(seed), seed) for seed in (1, 2))
    sections = {"model": {"dtype": dtype, "batch_invariant": True}, "cache": {"enable_prefix_caching": False}}
    engine = Engine(with_lora(folder, tmp_path, **sections))
    rows = [first, second, None, first, second]
    together = scores(outputs(engine, PROMPTS, rows, SCORED))
    alone = [scores(outputs(engine, [prompt], [own], SCORED))[0] for prompt, own in zip(PROMPTS, rows, strict=True)]
    assert alone == together


OVER_NETWORK = {"tensor_parallel_size": 2, "disable_custom_all_reduce": True}
IN_TURNS = {"enable_dbo": True, "dbo_prefill_token_threshold": 2, "dbo_decode_token_threshold": 2}
PARALLEL = {
    "columns": {"tensor_parallel_size": 2},
    "stages": {"pipeline_parallel_size": 2},
    "stages of two ranks": {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
    "prompts": {"prefill_context_parallel_size": 2},
    "parts in turns": {**OVER_NETWORK, **IN_TURNS},
}
RANKS = [
    *(("llama with biases", kind) for kind in PARALLEL),
    ("qwen3", "columns"),
    ("phi3", "columns"),
    ("phi3", "stages"),
]


@pytest.mark.parametrize(("family", "kind"), RANKS)
def test_several_ranks_compute_adapters(family: str, kind: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved(family)
    parallel = PARALLEL[kind]
    first = adapter(base, tmp_path / "first", 1)
    biases = {"lora_bias": True} if family == "llama with biases" else {}
    second = adapter(base, tmp_path / "second", 2, r=3, **biases)
    rows = [first, None, second, first, second]
    with divided(with_lora(folder, tmp_path, parallel=parallel)) as engine:
        assert answers(engine, PROMPTS, rows) == merged_answers(base, rows, PROMPTS)
        assert answers(engine, PROMPTS, [None] * 5) == merged_answers(base, [None] * 5, PROMPTS)


def test_ranks_that_share_the_tokens_of_a_block_compute_adapters(tmp_path: Path):
    base = build("llama", num_key_value_heads=1)
    folder = save(base, tmp_path / "model")
    own = adapter(base, tmp_path / "own", 1)
    rows = [own, None, own, own, None]
    parallel = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
    with divided(with_lora(folder, tmp_path, parallel=parallel)) as engine:
        assert answers(engine, PROMPTS, rows) == merged_answers(base, rows, PROMPTS)


def test_files_that_changed_are_refused(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    own = adapter(base, tmp_path / "own", 1)
    engine = Engine(with_lora(folder, tmp_path))
    adapters = engine.runner.loaded.adapters
    assert adapters is not None
    with pytest.raises(AdapterError, match="have changed since adapter `own` was registered") as caught:
        adapters.load(replace(own.ref, digest="0" * 64))
    assert caught.value.code == "adapter_changed"
    with pytest.raises(AdapterError, match="adapter `none`"):
        adapters.load(AdapterRef("none", "0" * 64, str(tmp_path / "none")))
    assert answers(engine, PROMPTS[:1], [own]) == merged_answers(base, [own], PROMPTS[:1])


def test_an_adapter_whose_files_are_gone_ends_its_request_only(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    first, second = (adapter(base, tmp_path / str(seed), seed) for seed in (1, 2))
    engine = Engine(with_lora(folder, tmp_path, {"max_loras": 1, "max_cpu_loras": 1}))
    scheduler = engine.scheduler
    for file in (tmp_path / "2").iterdir():
        file.unlink()
    scheduler.add(EngineRequest(request_id="gone", inputs=inputs_of([5, 6], second)))
    assert scheduler.schedule() is None
    (failed,) = scheduler.take_failed()
    assert failed.request_id == "gone"
    assert failed.error is not None
    assert failed.error.startswith("the adapter of this request: adapter `2`: ")
    assert not scheduler.has_work
    assert answers(engine, PROMPTS[:1], [first]) == merged_answers(base, [first], PROMPTS[:1])


@pytest.mark.parametrize("name", ["gptq", "fp8 channels", "bnb int8"])
def test_codes_of_a_checkpoint_are_the_base_of_adapters(name: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, source = saved("qwen3")
    method = METHODS[name]
    values = write(source, tmp_path / "quantised", method)
    plain = write_plain(source, tmp_path / "plain", values)
    own = adapter(base, tmp_path / "own", 1)
    rows = [own, None, own, None, own]
    found = answers(Engine(with_lora(tmp_path / "quantised", tmp_path)), PROMPTS, rows)
    assert found == answers(Engine(with_lora(plain, tmp_path)), PROMPTS, rows)
    assert found != answers(Engine(with_lora(plain, tmp_path)), PROMPTS, [None] * 5)


@pytest.mark.parametrize("dtype", ["Q4_K", "Q8_0"])
def test_codes_of_a_gguf_file_are_the_base_of_adapters(dtype: str, tmp_path: Path):
    """Its rows of queries and keys are in another order than those of the adapter."""
    base = build("llama", hidden_size=256, intermediate_size=256, head_dim=64)
    file, plain = write_gguf(save(base, tmp_path / "theirs"), tmp_path / "gguf", dtype)
    own = adapter(base, tmp_path / "own", 1, size=20.0)
    rows = [own, None, own, None, own]
    engine = Engine(with_lora(plain, tmp_path))
    found = prompt_scores(outputs(Engine(with_lora(file, tmp_path)), PROMPTS, rows, SCORED))
    torch.testing.assert_close(found, prompt_scores(outputs(engine, PROMPTS, rows, SCORED)), atol=1e-3, rtol=1e-3)
    assert (found - prompt_scores(outputs(engine, PROMPTS, [None] * 5, SCORED))).abs().max() > 0.1


def prompt_scores(found: list[EngineOutput]) -> torch.Tensor:
    """Log-probabilities of the tokens of all prompts."""
    entries = [entry for output in found for entry in output.prompt_logprobs or () if entry is not None]
    return torch.tensor([entry.logprobs[0] for entry in entries])


@dataclass
class WholeDeltas:
    """A mix that multiplies by B @ A, of all tokens."""

    by_part: dict[str, torch.Tensor]

    def added(self, layer: Linear, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for name, part in zip(layer.parts, out.split(list(layer.parts.values()), dim=1), strict=True):
            part += x @ self.by_part[name].T
        return out

    def of_experts(self, layer: object) -> None:
        return None

    def adapt_rows(self, token_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return rows

    def of_tokens(self, tokens: torch.Tensor) -> WholeDeltas:
        return self


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_weights_that_are_rounded_are_the_base_of_adapters(scheme: str, saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    own = adapter(base, tmp_path / "own", 1, target_modules=["q_proj", "o_proj", "up_proj"])
    settings = with_lora(folder, tmp_path, model={"quantization": scheme})
    rows: list[Row] = [(0, [*range(5, 25)]), (0, [10, 11, 12, 13]), (0, [5, 6, 7])]
    stepped = SteppedModel(folder, tmp_path, model={"quantization": scheme})
    loaded = LoadedModel(CPU, stepped.kernels, stepped.model, stepped.cache)
    adapters = adapters_of(settings, loaded)
    assert adapters is not None
    adapters.load(own.ref)
    adapters.place(1, own.ref)
    mix = AdapterMix.of(torch.ones(27, dtype=torch.int32), adapted_layers(loaded, adapters), 3)
    deltas = {
        name.removesuffix(".weight"): own.merged.get_parameter(name) - weight
        for name, weight in base.named_parameters()
    }
    found, plain = stepped.logits(rows, mix=mix), stepped.logits(rows)
    torch.testing.assert_close(found, stepped.logits(rows, mix=WholeDeltas(deltas)), atol=1e-4, rtol=1e-3)
    assert (found - plain).abs().max() > 0.1


def test_drafts_are_verified_with_the_adapter_of_their_row(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    own = adapter(base, tmp_path / "own", 1)
    rows = [own, None, own, None, own]
    expected = merged_answers(base, rows, PROMPTS)
    settings = with_lora(folder, tmp_path, scheduler={"max_num_batched_tokens": 64})
    engine = Engine(settings)
    drafter = AnswerDrafter({tuple(prompt): answer for prompt, answer in zip(PROMPTS, expected, strict=True)})
    adapters = engine.runner.loaded.adapters
    assert adapters is not None
    engine.scheduler = Scheduler(
        scheduler_settings(
            settings,
            drafting=DraftSettings(drafter=drafter),
            adapters=AdapterSettings(3, AdapterReader(adapters, waits=True)),
        )
    )
    assert answers(engine, PROMPTS, rows) == expected
    counts = engine.scheduler.stats().drafts
    assert counts is not None
    assert counts.accepted[0] > 0


def test_an_engine_loads_adapters_and_forgets_them(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    own, other = (adapter(base, tmp_path / name, seed) for seed, name in enumerate(("own", "other")))
    with contextlib.closing(build_core(with_lora(folder, tmp_path))) as core:
        core.load_adapter(own.ref).result()
        core.add(EngineRequest(request_id="own", inputs=inputs_of(PROMPTS[0], own)))
        core.add(EngineRequest(request_id="other", inputs=inputs_of(PROMPTS[0], other)))  # read when it arrives
        changed = replace(inputs_of(PROMPTS[0], own), adapter=replace(own.ref, digest="0"))
        core.add(EngineRequest(request_id="changed", inputs=changed))
        done: dict[str, EngineOutput] = {}
        while core.has_work:
            for output in core.step():
                before = done.get(output.request_id)
                done[output.request_id] = output if before is None else joined(before, output)
                core.unload_adapter(own.ref.digest)  # its sequence goes on
        expected = merged_answers(base, [own, other], [PROMPTS[0]] * 2)
        assert [done["own"].token_ids, done["other"].token_ids] == expected
        assert done["changed"].finish_reason is FinishReason.ERROR
        assert "have changed" in (done["changed"].error or "")
        with pytest.raises(AdapterError, match="have changed"):
            core.load_adapter(replace(own.ref, digest="0")).result()
        for file in (tmp_path / "own").iterdir():
            file.unlink()
        with pytest.raises(AdapterError, match="adapter `own`"):
            core.load_adapter(own.ref).result()
        core.load_adapter(other.ref).result()


def test_a_request_whose_adapter_cannot_be_read_any_more_ends(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    own, other = (adapter(base, tmp_path / name, seed) for seed, name in enumerate(("own", "other")))
    settings = with_lora(folder, tmp_path, {"max_loras": 1, "max_cpu_loras": 1})
    with contextlib.closing(build_core(settings)) as core:
        core.load_adapter(own.ref).result()
        core.load_adapter(other.ref).result()  # in its place
        for file in (tmp_path / "own").iterdir():
            file.unlink()
        core.add(EngineRequest(request_id="own", inputs=inputs_of(PROMPTS[0], own)))
        core.add(EngineRequest(request_id="other", inputs=inputs_of(PROMPTS[0], other)))
        outputs = []
        while core.has_work:
            outputs += core.step()
        failed = next(output for output in outputs if output.request_id == "own")
        assert failed.finish_reason is FinishReason.ERROR
        tokens = [token for output in outputs if output.request_id == "other" for token in output.token_ids]
        assert [tokens] == merged_answers(base, [other], PROMPTS[:1])


def test_a_request_ends_with_the_weights_that_were_loaded_when_it_arrived(
    saved: Callable[[str], Saved], tmp_path: Path
):
    """It waits while another adapter runs, and a third one is loaded; its own files are gone."""
    base, folder = saved("llama")
    own, other, third = (adapter(base, tmp_path / name, seed) for seed, name in enumerate(("own", "other", "third")))
    settings = with_lora(folder, tmp_path, {"max_loras": 1, "max_cpu_loras": 1})
    with contextlib.closing(build_core(settings)) as core:
        core.load_adapter(other.ref).result()
        core.add(EngineRequest(request_id="other", inputs=inputs_of(PROMPTS[0], other)))
        core.step()
        core.load_adapter(own.ref).result()
        core.add(EngineRequest(request_id="own", inputs=inputs_of(PROMPTS[0], own)))
        for file in (tmp_path / "own").iterdir():
            file.unlink()
        core.load_adapter(third.ref).result()
        core.unload_adapter(own.ref.digest)
        outputs = []
        while core.has_work:
            outputs += core.step()
        tokens = [token for output in outputs if output.request_id == "own" for token in output.token_ids]
        assert [tokens] == merged_answers(base, [own], PROMPTS[:1])


def test_a_scheduler_that_plans_no_adapters_is_refused(saved: Callable[[str], Saved], tmp_path: Path):
    settings = with_lora(saved("llama")[1], tmp_path, scheduler={"scheduler_cls": "tests.own_code:NotDerived"})
    phases: list[str] = []
    with pytest.raises(PluginError, match="plans no adapters"):
        build_core(settings, phases.append)
    assert phases == ["libraries"]


def test_without_enable_lora_nothing_is_loaded(saved: Callable[[str], Saved], tmp_path: Path):
    base, folder = saved("llama")
    own = adapter(base, tmp_path / "own", 1)
    with contextlib.closing(build_core(resolved(folder, tmp_path))) as core:
        with pytest.raises(AdapterError, match=r"`lora\.enable_lora` is not set"):
            core.load_adapter(own.ref).result()
        with pytest.raises(InvalidRequest, match=r"`lora\.enable_lora` is not set"):
            core.add(EngineRequest(request_id="own", inputs=inputs_of(PROMPTS[0], own)))
        core.unload_adapter(own.ref.digest)
