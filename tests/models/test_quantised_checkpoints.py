"""Quantised checkpoints: each method is read as what it represents."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.slow_cases import slow_but

from stoker.config import ModelFilesError
from stoker.config.checkpoint.layout import read_weight_files
from stoker.config.checkpoint.match import tensors_of
from stoker.config.cpu_kernels import keeps_twelve_bits
from stoker.engine.runner.weights import Checkpoint
from stoker.model.read import read_config

from .checkpoints import build, save
from .conftest import Saved
from .engine import MACHINE, Engine, resolved
from .quantised import METHODS, Method, write, write_deepseek_v4, write_gpt_oss, write_plain

PROMPTS = [[5, 6, 7, 8, 9], [11, 3, 90]]


def opened(folder: Path) -> Checkpoint:
    spec, _ = read_config(json.loads((folder / "config.json").read_text()))
    return Checkpoint(folder, tensors_of(folder, read_weight_files(folder).tensors, spec))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.quick_cases(9)
def test_tensors_are_read_as_what_they_represent(name: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    values = write(saved("qwen3")[1], tmp_path, METHODS[name])
    checkpoint = opened(tmp_path)
    for tensor, stored in checkpoint.tensors.items():
        into = torch.empty(stored.shape)
        checkpoint.read(tensor, into)
        torch.testing.assert_close(into, values[tensor], rtol=3e-7, atol=1e-12)
        codes = checkpoint.grouped(tensor, torch.bfloat16)
        assert (codes is None) == (stored.packed is None or bool(stored.shape[1] % stored.packed.block[1]))
        if codes is not None:  # the table of bitsandbytes is rounded to bfloat16
            error = 2**-8 if "nf4" in name else 3e-7
            torch.testing.assert_close(codes.numbers(), values[tensor], rtol=error, atol=1e-12)


def tokens(folder: Path, place: Path, **model: Any) -> list[list[int]]:
    return Engine(resolved(folder, place, model=model)).generate(PROMPTS)


@pytest.mark.effect("model.quantization")
@pytest.mark.parametrize("name", slow_but(METHODS, "gptq", "awq"))
def test_answers_are_those_of_the_dequantised_checkpoint(
    name: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    source, method = saved("qwen3")[1], METHODS[name]
    values = write(source, tmp_path / "quantised", method)
    plain = write_plain(source, tmp_path / "plain", values)
    settings = resolved(tmp_path / "quantised", tmp_path, model={"quantization": method.config["quant_method"]})
    engine = Engine(settings)
    assert engine.generate(PROMPTS) == tokens(plain, tmp_path)
    assert engine.runner.info().weights_bytes == settings.memory.weights_bytes


@pytest.mark.parametrize("name", slow_but(METHODS, "gptq", "fp8 blocks"))
def test_dummy_weights_hold_what_the_files_would(name: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """A scale of each output or of each element's block is as large in both: bytes differ in types of scales only."""
    write(saved("qwen3")[1], tmp_path / "quantised", METHODS[name])
    files = resolved(tmp_path / "quantised", tmp_path)
    dummy = resolved(tmp_path / "quantised", tmp_path, load={"load_format": "dummy"})
    engine = Engine(dummy)
    assert engine.runner.info().weights_bytes == dummy.memory.weights_bytes
    assert dummy.memory.weights_bytes == pytest.approx(files.memory.weights_bytes, rel=0.1)
    assert [each.method for each in dummy.model_files.stored_as] == [
        each.method for each in files.model_files.stored_as
    ]
    assert all(len(answer) == len(engine.generate(PROMPTS)[0]) for answer in engine.generate(PROMPTS))


def test_the_method_may_be_in_a_file_of_its_own_and_can_be_replaced(
    saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """quantize_config.json of old GPTQ checkpoints; float16 becomes bfloat16 on a CPU; int8 quantises again."""
    folder, method = tmp_path / "quantised", METHODS["gptq"]
    write(saved("qwen3")[1], folder, method)
    config = json.loads((folder / "config.json").read_text())
    written = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    (folder / "quantize_config.json").write_text(json.dumps({key: written[key] for key in ("bits", "group_size")}))
    settings = resolved(folder, tmp_path, model={"dtype": "auto"})
    assert settings.model.dtype == "bfloat16"
    assert [(each.method, each.num_matrices) for each in settings.model_files.stored_as] == [(method.shown, 14)]
    smaller = resolved(folder, tmp_path, model={"quantization": "int8"})
    assert Engine(smaller).runner.info().weights_bytes == pytest.approx(smaller.memory.weights_bytes, rel=0.01)


def test_codes_that_are_read_in_vain_do_not_let_a_file_go(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """A reader of whole files keeps one until its last tensor: another part of a layer may have no codes."""
    write(saved("qwen3")[1], tmp_path, METHODS["gptq"])
    tensors, twice = opened(tmp_path).tensors, f"{Q_PROJ}.weight"
    eager = Checkpoint(tmp_path, tensors, is_eager=True)
    for name in [twice] * len(tensors):
        assert eager.grouped(name, torch.float32) is not None
        (tmp_path / "model.safetensors").unlink(missing_ok=True)
        eager.read(name, torch.empty(tensors[name].shape))
    for name in tensors:
        if name != twice:
            eager.read(name, torch.empty(tensors[name].shape))


@pytest.mark.parametrize(("stored", "dtype"), [("float16", "auto"), ("bfloat16", "float32")])
def test_levels_that_are_rounded_to_bfloat16_are_kept_in_models_of_it(
    stored: str, dtype: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    """bitsandbytes' NF4: the usual float16 checkpoints become bfloat16. The plan knows it from the headers."""
    folder = tmp_path / "quantised"
    write(saved("qwen3")[1], folder, METHODS["nf4"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": stored}))
    _changed(folder, lambda tensors: tensors.update({name: _to(stored, name, each) for name, each in tensors.items()}))
    machine = MACHINE.model_copy(update={"keeps_twelve_bits": keeps_twelve_bits()})
    settings = resolved(folder, tmp_path, machine, model={"dtype": dtype})
    assert Engine(settings).runner.info().weights_bytes == pytest.approx(settings.memory.weights_bytes, rel=0.01)
    dense = settings.model_files.weights_bytes(settings.model.dtype)
    assert (settings.memory.weights_bytes < dense * 0.6) == (settings.model.dtype == "bfloat16")


def _to(dtype: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Tensors that are not quantised in another dtype."""
    is_plain = name.endswith(("norm.weight", "_tokens.weight", "lm_head.weight"))
    return tensor.to(getattr(torch, dtype)) if is_plain else tensor


@pytest.mark.slow
def test_rows_of_a_fused_matrix_are_taken_apart(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    source = saved("phi3")[1]
    values = write(source, tmp_path / "quantised", METHODS["gptq"])
    plain = write_plain(source, tmp_path / "plain", values)
    assert tokens(tmp_path / "quantised", tmp_path) == tokens(plain, tmp_path)


def test_experts_of_gpt_oss_are_read_as_what_they_represent(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    source = saved("gpt_oss")[1]
    values = write_gpt_oss(source, tmp_path / "quantised")
    quantised, plain = opened(tmp_path / "quantised"), opened(write_plain(source, tmp_path / "plain", values))
    assert sum(stored.packed is not None for stored in quantised.tensors.values()) > 0
    for tensor, stored in quantised.tensors.items():
        found, expected = torch.empty(stored.shape), torch.empty(stored.shape)
        quantised.read(tensor, found)
        plain.read(tensor, expected)
        assert torch.equal(found, expected), tensor


def test_files_of_deepseek_v4_have_experts_in_fp4_and_others_in_fp8(
    saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    source, folder = saved("deepseek_v4")[1], tmp_path / "fp8"
    values = write_deepseek_v4(source, folder)
    checkpoint = opened(folder)
    kinds = {stored.packed.method.kind for stored in checkpoint.tensors.values() if stored.packed is not None}
    assert kinds == {"fp8", "mxfp4"}
    plain = write_plain(source, tmp_path / "plain", values)
    assert tokens(folder, tmp_path) == tokens(plain, tmp_path)


@pytest.mark.parametrize("method", slow_but(["gpt_oss", *METHODS], "gpt_oss", "gptq ordered"))
def test_experts_stay_in_their_codes(method: str, tmp_path: Path) -> None:
    """Of a width that is not padded; the plan counts the codes."""
    is_gpt_oss = method == "gpt_oss"
    width = {"intermediate_size" if is_gpt_oss else "moe_intermediate_size": 64}
    source = save(build("gpt_oss" if is_gpt_oss else "qwen3_moe", **width), tmp_path / "source")
    folder = tmp_path / "quantised"
    values = write_gpt_oss(source, folder) if is_gpt_oss else write(source, folder, METHODS[method])
    plain, settings = write_plain(source, tmp_path / "plain", values), resolved(folder, tmp_path)
    assert any(each.are_of_experts for each in settings.model_files.own_codes)
    engine = Engine(settings)
    assert engine.generate(PROMPTS) == tokens(plain, tmp_path)
    assert engine.runner.info().weights_bytes == settings.memory.weights_bytes


def _changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("method", "end", "change", "message"),
    [
        ("gptq", "qzeros", None, f"tensor `{Q_PROJ}.qzeros` is not in any of its weight files; gptq 4-bit"),
        ("gptq", "qweight", lambda t: t.float(), "dtype F32; gptq 4-bit in groups of 32 needs I32"),
        ("gptq", "scales", lambda t: t[:1].clone(), "has shape [1, 64]; gptq 4-bit in groups of 32 needs [2, 64]"),
        ("gptq", "g_idx", lambda t: t[1:].clone(), "has shape [63]"),
        ("awq", "scales", lambda t: t.int(), "dtype I32"),
        ("packed", "weight_scale", lambda t: t[:, :1].clone(), "has shape [64, 1]; [64, 64] needs [64, 2]"),
        ("fp8 blocks", "weight_scale_inv", lambda t: t[:1].clone(), "has shape [1, 1]; [64, 64] needs [2, 1]"),
        ("nf4", "weight.absmax", lambda t: t[1:].clone(), "has shape [63]; bitsandbytes 4-bit needs [64]"),
        ("nf4", "weight.quant_state.bitsandbytes__nf4", lambda t: t[1:].clone(), "is not a JSON object"),
        ("bnb int8", "weight_format", lambda t: t + 1, "names another order of elements"),
    ],
)
def test_wrong_parts_are_refused_by_name_before_anything_is_read(
    method: str, end: str, change: Any, message: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    write(saved("qwen3")[1], tmp_path, METHODS[method])

    def changed(tensors: dict[str, torch.Tensor]) -> None:
        part = tensors.pop(f"{Q_PROJ}.{end}")
        if change is not None:
            tensors[f"{Q_PROJ}.{end}"] = change(part)

    _changed(tmp_path, changed)
    with pytest.raises(ModelFilesError) as error:
        opened(tmp_path)
    assert message in str(error.value)
    assert f"{Q_PROJ}.{end}" in str(error.value)


@pytest.mark.parametrize(
    ("method", "end", "value", "message"),
    [
        ("gptq", "scales", float("nan"), f"tensor `{Q_PROJ}.scales` has NaN or infinite elements"),
        ("packed", "weight_scale", float("inf"), f"tensor `{Q_PROJ}.weight_scale` has NaN or infinite elements"),
        ("fp8", "weight", float("nan"), f"tensor `{Q_PROJ}.weight` has NaN or infinite elements"),
        ("gptq", "g_idx", 2, f"the order of inputs of `{Q_PROJ}` has groups from 2 to 2; there are 2"),
        ("gptq", "g_idx", -1, f"the order of inputs of `{Q_PROJ}` has groups from -1 to -1; there are 2"),
    ],
)
def test_wrong_values_are_refused_by_name(
    method: str, end: str, value: float, message: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    write(saved("qwen3")[1], tmp_path, METHODS[method])
    name = f"{Q_PROJ}.{end}"
    _changed(tmp_path, lambda tensors: tensors.update({name: torch.full_like(tensors[name], value)}))
    with pytest.raises(ModelFilesError) as error:
        opened(tmp_path).read(f"{Q_PROJ}.weight", torch.empty(64, 64))
    assert message in str(error.value)


def test_exceptions_are_honoured(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    """Layers that the config names as not quantised must not be."""
    config = {**METHODS["awq"].config, "modules_to_not_convert": ["layers.0.self_attn"]}
    write(saved("qwen3")[1], tmp_path, Method(config, METHODS["awq"].write))
    with pytest.raises(ModelFilesError, match=r"_proj\.qweight` is quantised, but .* says that .* is not"):
        opened(tmp_path)
