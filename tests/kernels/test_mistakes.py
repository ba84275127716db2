"""Small mistakes, planted into the kernels one at a time: the tests beside this one must notice each."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("triton")
from triton.runtime.errors import InterpreterError

from stoker.engine.kernels import gpu
from stoker.engine.kernels.gpu import kernels

from . import (
    test_attention,
    test_attention_plan,
    test_draw,
    test_elementwise,
    test_linear,
    test_linear_few,
    test_sample,
    test_sample_logprobs,
    test_step,
)

Check = Callable[[torch.device], None]
SMALL = torch.float32


def decode(device: torch.device) -> None:
    for name in ("plain", "window, softcap and sinks", "slopes", "scaled"):
        test_attention.test_decode(device, name, 5)
    test_attention.test_a_workspace_serves_one_step_after_another(device)


def prefill(device: torch.device) -> None:
    for name in ("plain", "window, softcap and sinks", "slopes", "scaled"):
        test_attention.test_prefill(device, name, 5)


def shared(device: torch.device) -> None:
    test_attention.test_each_kernel_leaves_the_rows_of_the_other(device)


def window(device: torch.device) -> None:
    for attend in (test_attention.decoded, test_attention.prefilled):
        test_attention.test_what_lies_before_the_window_is_not_looked_at(device, attend, 16)


def wide_groups(device: torch.device) -> None:
    test_attention.test_prefill_of_other_shapes(device, SMALL, 14, 2, 16, 32)


def plan(device: torch.device) -> None:
    test_attention_plan.test_layers_share_a_plan_and_each_window_has_its_own(device)


def norm(device: torch.device) -> None:
    test_elementwise.test_add_rms_norm(device, torch.float16, 3, 100, True)


def layer_norm(device: torch.device) -> None:
    test_elementwise.test_add_layer_norm(device, SMALL, 3, 100, True)


def gelu(device: torch.device) -> None:
    for is_tanh in (False, True):
        test_elementwise.test_gelu_and_mul(device, SMALL, 3, 1100, is_tanh)


def rope(device: torch.device) -> None:
    test_elementwise.test_rope_and_store(device, SMALL, True, 2, 2, 80, 32, 32)
    test_elementwise.test_rope_and_store_in_fp8_cuts_off_what_is_too_large(device)
    test_elementwise.test_a_token_without_a_slot_is_written_nowhere(device)


def draw(device: torch.device) -> None:
    test_draw.test_noise_is_that_of_the_reference(device)
    for min_p in (None, 0.05):
        test_draw.test_tokens_are_those_of_the_reference(device, 24, 1000, SMALL, min_p)
    test_draw.test_equal_logits_give_the_first_token_greedily(device)
    test_draw.test_a_row_without_numbers_gives_no_token(device)


def linear(device: torch.device) -> None:
    test_linear_few.test_it_is_the_ops_one_after_the_other(device, SMALL, 5, 70, 600, True, True, True, True)


def around(device: torch.device) -> None:
    for op in ("norm_linear", "norm_gate_up"):
        for tokens in (3, test_linear.MAX_TOKENS + 1):
            test_linear.test_it_is_the_ops_one_after_the_other(device, SMALL, op, tokens, True)
        test_linear.test_it_is_the_ops_one_after_the_other(device, torch.float16, op, 3, True)


def few_tokens(device: torch.device) -> None:
    test_sample.test_tokens_are_those_of_the_hosts_sampler(device, 36, 7, 64, 64)


def lean(device: torch.device) -> None:
    test_sample.test_a_lean_step_draws_what_a_full_one_does(device)


def cuts(device: torch.device) -> None:
    test_sample.test_cuts_are_felt_where_logits_are_flat(device)


def ties(device: torch.device) -> None:
    test_sample.test_of_equal_logits_the_first_are_kept(device)


def no_numbers(device: torch.device) -> None:
    test_sample.test_rows_without_numbers_give_no_token(device)


def tiny_temperature(device: torch.device) -> None:
    test_sample.test_extreme_temperatures(device, 2e-5)


def candidates(device: torch.device) -> None:
    test_sample.test_few_tokens_come_into_question(device)


def begun(device: torch.device) -> None:
    for step in test_step.STEPS:
        test_step.test_tables_become_tensors(step, 1, device)


def ended(device: torch.device) -> None:
    test_step.test_drawn_tokens_are_kept_and_counted(130, device)


def logprobs(device: torch.device) -> None:
    test_sample_logprobs.test_logprobs(device, SMALL, 9001, True)
    test_sample_logprobs.test_softmax_mass_and_counts(device, SMALL, 3)


MISTAKES: list[tuple[str, Check, str, str]] = [
    ("decode_attention", window, "skipped = tl.maximum(length - window, 0) // TILE", "skipped = 0"),
    ("decode_attention", decode, "is_seen = positions < length", "is_seen = positions <= length"),
    ("decode_attention", decode, "(positions >= length - window)", "(positions > length - window)"),
    ("decode_attention", shared, "stops - starts == 1", "stops - starts >= 0"),
    ("decode_attention", decode, "tl.store(ticket, 0)", "tl.store(ticket, 1)"),
    ("decode_attention", decode, "tl.where(begins_here, 0, 1)", "tl.where(begins_here, 1, 0)"),
    ("decode_attention", decode, "their_total * tl.exp2(their_most - base)", "their_total"),
    ("decode_attention", decode, "sums / total[:, None] * v_scale", "sums / total[:, None]"),
    ("decode_attention", decode, "scale * k_scale, softcap", "scale, softcap"),
    ("prefill_attention", prefill, "is_seen = distances <= 0", "is_seen = distances < 0"),
    ("prefill_attention", prefill, "(distances > -window)", "(distances >= -window)"),
    ("prefill_attention", prefill, "(position + 1) // TILE, edge", "(position + TILE) // TILE, edge"),
    ("prefill_attention", window, "is_there & (positions >= first_key)", "is_there"),
    ("prefill_attention", wide_groups, "(lanes < TOKENS * GROUP) & ", ""),
    ("prefill_attention", prefill, "tl.maximum(seen - window, 0), TILE)", "tl.maximum(seen - window - TILE, 0), TILE)"),
    ("prefill_attention", prefill, "counts > 1", "counts > 2"),
    ("prefill_attention", prefill, "kv_head * GROUP + lanes % GROUP", "kv_head * GROUP + lanes % GROUP * 0"),
    ("decode_attention", plan, '("decode", variant.window, tile)', '("decode", tile)'),
    ("prefill_attention", plan, '("prefill", tokens)', '("decode", None, tile_of(head_dim, q.element_size()))'),
    ("add_rms_norm", norm, " + eps", ""),
    ("add_rms_norm", norm, "tl.sum(value * value, 0) / width", "tl.sum(value * value, 0) / BLOCK"),
    ("add_layer_norm", layer_norm, " + eps", ""),
    ("add_layer_norm", layer_norm, "tl.where(is_there, value - mean, 0.0)", "value - mean"),
    ("add_layer_norm", layer_norm, "tl.sum(value, 0) / width", "tl.sum(value, 0) / BLOCK"),
    ("add_layer_norm", layer_norm, "result += tl.load(bias", "result -= tl.load(bias"),
    ("gelu_and_mul", gelu, "stride + width + columns", "stride + columns"),
    ("gelu_and_mul", gelu, "(1 + 0.044715", "(1 + 0.04"),
    ("gelu_and_mul", gelu, "tl.erf(gate * 0.7071067811865476)", "tl.erf(gate)"),
    ("rope_and_store", rope, "-sin, sin)", "sin, sin)"),
    ("rope_and_store", rope, "tl.load(q_norm + partners", "tl.load(q_norm + lanes"),
    ("rope_and_store", rope, "tl.load(k_norm + partners", "tl.load(k_norm + lanes"),
    ("rope_and_store", rope, "+ slot % BLOCK_SIZE)", "+ slot % (BLOCK_SIZE - 1))"),
    ("rope_and_store", rope, "mask=lanes < ROTARY_DIM, other=1.0", "mask=is_there, other=1.0"),
    ("rope_and_store", rope, "tl.where(numbers > _FP8_MOST, _FP8_MOST,", "tl.where(numbers > 1e9, _FP8_MOST,"),
    ("rope_and_store", rope, "numbers < -_FP8_MOST, -_FP8_MOST,", "numbers < -_FP8_MOST, _FP8_MOST,"),
    ("rope_and_store", rope, "_as_kept(value, v_cache)", "value.to(v_cache.dtype.element_ty)"),
    ("draw", draw, "bits >> 15", "bits >> 16"),
    ("draw", draw, "signed >> 16", "signed >> 17"),
    ("draw", draw, "uniform * (1.0 / 2 ", "uniform * (1.0 / 3 "),
    ("draw", draw, "uniform < 0.0625", "uniform < 0.5"),
    ("draw", draw, "tl.where(scores == best, ids, LAST_ID)", "tl.where(scores >= best - 1, ids, LAST_ID)"),
    ("draw", lean, "logarithms(tops, top, temperature) + scores", "tops + scores"),
    ("draw", draw, "token, -1)", "token, 0)"),
    ("draw", few_tokens, "_splitmix(seed) ^", "seed ^"),
    ("draw", tiny_temperature, 'tl.where(top > float("-inf"), top, 0.0)', "0.0"),
    ("sample_row", cuts, "is_ranked | ((temperature > 0) & (min_p > 0))", "is_ranked"),
    ("sample_row", no_numbers, "values == values", "values < 1e30"),
    ("sample_row", few_tokens, "counts & 0x7FFF", "counts"),
    ("sample_row", few_tokens, "counts != 0", "generated != 0"),
    ("sample_row", few_tokens, "tl.where(values > 0, values /", "tl.where(values < 0, values /"),
    ("sample_row", ties, "tl.where(values == 0, 0.0, values)", "values"),
    ("sample_row", cuts, "(ids ^ LAST_ID)", "ids"),
    ("sample_ranked", cuts, "0) * GROUP", "0)"),
    ("sample_ranked", candidates, "high - low > 256", "high - low > 1 << 26"),
    ("sample_ranked", cuts, "is_listed, count, vocab_size)", "is_listed, count, count)"),
    ("sample_ranked", cuts, "least + 1 < above", "above - least > 1"),
    ("sample_ranked", few_tokens, "is_enough = num_from >= top_k", "is_enough = num_from > top_k"),
    ("sample_ranked", cuts, "is_open = top_p < 1", "is_open = top_p < 0"),
    ("sample_ranked", cuts, "(before >= top_p", "(before < top_p"),
    ("sample", cuts, "is_candidate.to(tl.int32), 0) - 1", "is_candidate.to(tl.int32), 0) * 0"),
    ("sample", cuts, "values >= tl.load(work.lowests + row)", "values >= -1e30"),
    ("sample", cuts, "tl.store(work.counts + row, 0)", "pass"),
    ("sample", few_tokens, "tl.store(ticket, 0)", "pass"),
    ("sample", few_tokens, "elif tile == 0:", "elif tile < 0:"),
    ("sample_logprobs", logprobs, "values > tl.load(bounds + row)", "values >= tl.load(bounds + row)"),
    ("sample_logprobs", logprobs, "values >= tl.load(limits + row)", "values <= tl.load(limits + row)"),
    ("sample_logprobs", logprobs, "mask=is_there, other=0.0) * weights", "mask=is_there, other=0.0)"),
    ("linear_few", linear, "squares / depth", "squares"),
    ("linear_few", linear, "+ eps", ""),
    ("linear_few", linear, "bias + width + outputs", "bias + outputs"),
    ("linear_few", linear, "ups *= scale", "pass"),
    ("linear_few", linear, "sums = sums * tl.sigmoid(sums) * ups", "sums = sums * ups"),
    ("linear", around, "eps=eps, residual=residual)", "eps=eps)"),
    ("linear", around, "eps=eps, residual=residual, is_gated", "eps=eps, is_gated"),
    ("linear", around, "return linear_gpu(normed, packed), total", "return linear_gpu(normed, packed), x"),
    ("linear", around, "is_gated=True)[0], total", "is_gated=True)[0], normed"),
    ("linear", around, "(normed, packed)), total", "(x, packed)), total"),
    ("prepare_step", begun, "<= tokens, further, rows)", "< tokens, further, rows)"),
    ("prepare_step", begun, "num_computed + program) + count, 0)", "num_computed + program), 0)"),
    ("prepare_step", begun, "tl.where(is_real, place, -1)", "place"),
    ("prepare_step", begun, "end - 1, -1)", "end - 1, 0)"),
    ("prepare_step", begun, "tokens - start", "tokens"),
    ("finish_step", ended, "(slot >= 0) & (sampled != 0)", "(slot >= 0)"),
    ("finish_step", ended, "(count & MOST) < MOST", "count < MOST"),
    ("finish_step", ended, "other=0), 0)", "other=0), 1)"),
]
NAMES = {  # what the tests know a module's contents by
    "decode_attention": [(test_attention, "gpu", None), (kernels, "decode_attention", "decode_attention")],
    "prefill_attention": [
        (test_attention, "prefill_attention", "prefill_attention"),
        (kernels, "prefill_attention", "prefill_attention"),
    ],
    "add_rms_norm": [(test_elementwise, "add_rms_norm_gpu", "add_rms_norm_gpu")],
    "add_layer_norm": [(test_elementwise, "add_layer_norm_gpu", "add_layer_norm_gpu")],
    "gelu_and_mul": [(test_elementwise, "gelu_and_mul_gpu", "gelu_and_mul_gpu")],
    "rope_and_store": [(test_elementwise, "rope_and_store_gpu", "rope_and_store_gpu")],
    "linear": [(kernels, name, name) for name in ("norm_linear_gpu", "norm_gate_up_gpu")],
    "draw": [
        (test_draw, "draw_gpu", "draw_gpu"),
        (test_draw, "exponential_noise", "exponential_noise"),
        (test_sample, "sample", "sample"),
    ],
    "sample_row": [(test_sample, "sample", "sample")],
    "sample_ranked": [(test_sample, "sample", "sample")],
    "sample": [(test_sample, "sample", "sample")],
    "sample_logprobs": [(test_sample_logprobs, "gpu", None)],
    "linear_few": [(test_linear_few, "gpu", None)],
    "prepare_step": [(test_step, "prepare_step", "prepare_step")],
    "finish_step": [(test_step, "finish_step", "finish_step")],
}


THROUGH = {  # who brings a module's functions into kernels, lowest first
    "draw": ("sample_row", "sample_ranked", "sample", "sample_ops"),
    "sample_row": ("sample_ranked", "sample"),
    "sample_ranked": ("sample",),
}


def planted(name: str, old: str, new: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    """The module with the mistake, after those that use it."""
    source = (Path(gpu.__file__).parent / f"{name}.py").read_text()
    assert old in source, f"{name}.py has no `{old}` any more"
    modules = [loaded(name, source.replace(old, new), folder)]
    for user in THROUGH.get(name, ()):
        monkeypatch.setitem(sys.modules, f"{gpu.__name__}.{name}", modules[0])
        name = user
        modules.insert(0, loaded(name, (Path(gpu.__file__).parent / f"{name}.py").read_text(), folder))
    return modules


def loaded(name: str, source: str, folder: Path) -> ModuleType:
    file = folder / f"{name}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(f"{gpu.__name__}.planted_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "check", "old", "new"), MISTAKES, ids=[f"{each[0]}: {each[2]}" for each in MISTAKES])
def test_a_mistake_is_noticed(name, check, old, new, device, tmp_path, monkeypatch):
    modules = planted(name, old, new, tmp_path, monkeypatch)
    for tests, known_as, attribute in NAMES[name]:
        found = [module if attribute is None else getattr(module, attribute, None) for module in modules]
        monkeypatch.setattr(tests, known_as, next(each for each in found if each is not None))
    with pytest.raises((AssertionError, InterpreterError)):
        check(device)
