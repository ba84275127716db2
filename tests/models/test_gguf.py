"""GGUF files: the same model as the dequantised weights in safetensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.slow_cases import slow, slow_but

from stoker.config import ModelFilesError
from stoker.config.checkpoint.gguf import read_gguf
from stoker.config.plan.headers import read_stored_gguf

from .checkpoints import YARN, build, reference_logits, save
from .conftest import Saved
from .engine import Engine, resolved
from .gguf_files import write_gguf
from .test_logits import TOKENS, our_logits

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12]]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {  # and what differs from checkpoints.py
    **{family: {} for family in ("llama with biases", "qwen2 tied", "qwen3", "qwen3_moe", "gemma2", "gemma3", "phi3")},
    "granite": {},
    "llama": {"rope_parameters": LLAMA3},
    "qwen3 untied": {"rope_parameters": YARN},
    "phi3 longrope": {},
    "mistral": {"sliding_window": None},  # llama.cpp knows no window in this family
}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
TYPES += ["BF16", "F16"]


@pytest.mark.effect("load.load_format")
@pytest.mark.parametrize("family", slow_but(FAMILIES, "llama", "gemma3", "qwen3_moe"))
def test_a_file_is_the_same_model(family: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    model = build(family, **FAMILIES[family])
    source = save(model, tmp_path / "theirs")
    file, _ = write_gguf(source, tmp_path / "own")
    assert (our_logits(file.parent, tmp_path) - reference_logits(model, TOKENS)).abs().max() < 1e-4
    by_folder = resolved(file.parent, tmp_path, load={"load_format": "gguf"})
    assert (by_folder.model.config_format, by_folder.load.load_format) == ("gguf", "gguf")
    assert by_folder.model_files.weight_files == ("model.gguf",)
    assert Engine(by_folder).generate(PROMPTS) == Engine(resolved(source, tmp_path)).generate(PROMPTS)


@pytest.mark.effect("load.load_format")
@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        ("Q4_K", "llama"),
        *(slow(each, "llama") for each in TYPES if each != "Q4_K"),
        *(slow(each, "qwen3_moe") for each in ("Q8_0", "Q6_K", "MXFP4", "BF16")),
    ],
)
def test_a_type_is_the_same_as_its_dequantised_weights(dtype: str, family: str, tmp_path: Path) -> None:
    own = WIDE | ({"moe_intermediate_size": 256} if "moe" in family else {})
    source = save(build(family, **own), tmp_path / "theirs")
    file, plain = write_gguf(source, tmp_path / "own", dtype)
    theirs, ours = resolved(plain, tmp_path), resolved(file, tmp_path)
    assert (our_logits(file.parent, tmp_path) - our_logits(plain, tmp_path)).abs().max() < 1e-4
    engine = Engine(ours)
    assert engine.generate(PROMPTS) == Engine(theirs).generate(PROMPTS)
    assert engine.runner.info().weights_bytes == ours.memory.weights_bytes


def test_a_model_in_several_files(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    _, source = saved("qwen3")
    first, plain = write_gguf(source, tmp_path / "own", "Q8_0", max_tensors=7)
    assert first.name == "model-00001-of-00004.gguf"
    settings = resolved(first, tmp_path)
    assert len(settings.model_files.weight_files) == 4
    stored = read_stored_gguf(first)
    assert (stored.num_files, stored.parts["ffn_down"], stored.parts["token_embd"]) == (4, {"Q8_0": 2}, {"Q8_0": 1})
    assert stored.bytes_in("float32") == 4 * settings.model_files.num_parameters
    torch.testing.assert_close(our_logits(first.parent, tmp_path), our_logits(plain, tmp_path), rtol=0, atol=1e-4)


@pytest.mark.effect("model.quantization")
def test_weights_are_quantised_again_and_the_method_may_be_named(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    source = saved("qwen3")[1]
    file, plain = write_gguf(source, tmp_path / "own", "Q8_0")
    answers = [
        Engine(resolved(folder, tmp_path, model={"quantization": method})).generate(PROMPTS)
        for folder, method in ((file, "int8"), (plain, "int8"), (file, "gguf"), (plain, None))
    ]
    assert (answers[0], answers[2]) == (answers[1], answers[3])
    with pytest.raises(ModelFilesError, match=r"describes no quantised checkpoint, and `model\.quantization` is gguf"):
        resolved(source, tmp_path, model={"quantization": "gguf"})


def test_a_scale_that_is_no_number_is_refused(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    file, _ = write_gguf(saved("qwen3")[1], tmp_path / "own", "Q8_0")
    offset = read_gguf(file).tensors["blk.1.ffn_up.weight"].offset
    content = bytearray(file.read_bytes())
    content[offset : offset + 2] = b"\xff\x7f"  # of the first block, in float16
    file.write_bytes(content)
    with pytest.raises(ModelFilesError, match=r"model\.gguf: tensor `.*1\.mlp\.up_proj\.weight` has NaN or infinite"):
        Engine(resolved(file, tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": "bert"}, "`general.architecture` is 'bert'; GGUF files of llama, granite, qwen2"),
        ({"attention.clamp_kqv": 8.0}, "`qwen3.attention.clamp_kqv`: unknown, so this build cannot compute"),
        ({"attention.head_count": 3}, "3 attention heads cannot share 2"),
        (
            {"rope.scaling.type": "longrope"},
            "`rope.scaling.type` is 'longrope' and the files have no `rope_factors_long",
        ),
        ({"feed_forward_length": 95}, r"`model.layers.0.mlp.gate_proj.weight` has shape \[96, 64\], the header says"),
        ({"block_count": 3}, "`model.layers.2.input_layernorm.weight`"),
    ],
)
def test_a_header_that_this_build_cannot_compute_is_refused(
    changes: dict[str, object], said: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    file, _ = write_gguf(saved("qwen3")[1], tmp_path / "own", **changes)
    with pytest.raises(ModelFilesError, match=said):
        resolved(file, tmp_path)


def test_other_options_about_the_format_are_refused(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    file, _ = write_gguf(saved("qwen3")[1], tmp_path / "own")
    for sections, said in (
        ({"load": {"load_format": "safetensors"}}, "`load.load_format: safetensors` does not read"),
        ({"model": {"config_format": "hf"}}, "`model.config_format: hf` has no effect"),
        ({"model": {"quantization": "gptq"}}, "`model.quantization` is gptq; leave it out"),
        ({"model": {"hf_config_path": str(tmp_path)}}, "`model.hf_config_path` has no effect"),
        ({"model": {"model_impl": "transformers"}}, "which `model.model_impl: native` runs"),
    ):
        with pytest.raises(ModelFilesError, match=said):
            resolved(file, tmp_path, **sections)
