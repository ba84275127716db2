"""`engine quantize --to gguf:...`: the file is the same model, for this engine's own reader."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.models.checkpoints import WITH_ENCODERS, build, build_with_encoders, save
from tests.models.test_logits import our_logits
from tests.slow_cases import slow_but
from tests.tiny_tokenizer import TEXTS, write_tokenizer
from tests.unit.cli.test_app import run
from tests.unit.cli.test_quantize import opened, values

from stoker.config import load_deployment, read_model_files
from stoker.config.checkpoint.chat_templates import templates_in
from stoker.config.checkpoint.gguf import read_gguf
from stoker.convert import gguf_file, target
from stoker.model.gguf_header import llama3_divisors
from stoker.model.mixers import RopeSpec
from stoker.text.tokenizer import Tokenizer

NUM_TOKENS = 512
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
GEMMA_ROPE = {
    "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
    "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3},
    "llama with biases": {},
    "mistral": {"sliding_window": None},
    "qwen2 tied": {},
    "qwen3": {},
    "qwen3 untied": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "gemma3": {"query_pre_attn_scalar": 16, "rope_parameters": GEMMA_ROPE},
}


def made(family: str, folder: Path, **changes: Any) -> Path:
    source = save(build(family, vocab_size=NUM_TOKENS, **changes), folder)
    write_tokenizer(folder)
    return source


def quantized(capsys: pytest.CaptureFixture[str], source: Path, kind: str, target: Path) -> dict[str, Any]:
    code, out, err = run(capsys, "quantize", str(source), "--to", f"gguf:{kind}", "-o", str(target), "--output", "json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("family", slow_but(FAMILIES, "llama", "gemma3"))
def test_the_file_is_the_same_model(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = made(family, tmp_path / "source", **FAMILIES[family]), tmp_path / "new" / "model.gguf"
    found = quantized(capsys, source, "f16", target)
    assert found["bytes_after"] < found["bytes_before"] == pytest.approx(2 * found["bytes_after"], rel=0.05)
    assert [each.name for each in target.parent.iterdir()] == ["model.gguf"]
    ours = our_logits(target.parent, tmp_path)
    assert (ours - our_logits(source, tmp_path)).abs().max() < 0.03 * ours.std()
    ids, written = Tokenizer.load(source), Tokenizer.load(target)
    for text in TEXTS:
        assert written.encode(text) == ids.encode(text)
    assert written.special_ids == ids.special_ids
    assert templates_in(target)["default"].text == templates_in(source)["default"].text
    before, after = (read_model_files(load_deployment([], arguments={"model": str(each)})) for each in (source, target))
    assert set(before.eos_token_ids) <= set(after.eos_token_ids)
    assert (after.max_context, after.window) == (before.max_context, before.window)


@pytest.mark.slow
def test_of_a_model_that_reads_images_the_language_model_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WITH_ENCODERS["gemma3"]["text_config"] | {"vocab_size": NUM_TOKENS} | FAMILIES["gemma3"]
    monkeypatch.setitem(WITH_ENCODERS["gemma3"], "text_config", text)
    source, target = save(build_with_encoders("gemma3"), tmp_path / "source"), tmp_path / "new" / "model.gguf"
    write_tokenizer(source)
    quantized(capsys, source, "f16", target)
    ours = our_logits(target.parent, tmp_path)
    assert (ours - our_logits(source, tmp_path)).abs().max() < 0.03 * ours.std()


@pytest.mark.slow
def test_the_perplexity_of_the_file_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("What does `--max-num-seqs` do? It limits the number of sequences that run together. " * 20)
    words = (
        "--to",
        "gguf:q8_0",
        "--pre-tokenizer",
        "qwen2",
        "-o",
        str(tmp_path / "model.gguf"),
        "--perplexity",
        str(text),
    )
    code, out, _ = run(capsys, "quantize", "builtin:tiny", *words, "--output", "json")
    measured = json.loads(out)["perplexity"]
    assert code == 0
    assert measured["num_tokens"] > 100
    assert measured["after"] == pytest.approx(measured["before"], rel=0.02)


@pytest.mark.slow
def test_the_mixture_is_that_of_llama_cpp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = {"hidden_size": 256, "intermediate_size": 288, "num_hidden_layers": 9}
    source, target = made("qwen3 untied", tmp_path / "source", **wide), tmp_path / "model.gguf"
    found = quantized(capsys, source, "q4_k_m", target)
    types = {name: tensor.dtype for name, tensor in read_gguf(target).tensors.items() if len(tensor.shape) > 1}
    assert (types["token_embd.weight"], types["output.weight"]) == ("Q4_K", "Q6_K")
    more = [layer for layer in range(9) if types[f"blk.{layer}.attn_v.weight"] == "Q6_K"]
    assert more == [0, 3, 6, 7, 8]
    assert {types[f"blk.{layer}.attn_k.weight"] for layer in range(9)} == {"Q4_K"}
    # rows that are no multiple of 256: of the output of heads of 8 elements, and of the MLP's width
    assert types["blk.1.attn_output.weight"] == "Q5_0"
    assert [types[f"blk.{layer}.ffn_down.weight"] for layer in (0, 1)] == ["Q8_0", "Q5_0"]
    assert found["num_matrices"] == {kind: list(types.values()).count(kind) for kind in types.values()}
    before, after = opened(source), opened(target.parent)
    for name, tensor in before.tensors.items():
        original = values(before, name)
        bound = {"Q4_K": 0.08, "Q5_0": 0.05, "Q6_K": 0.025, "Q8_0": 0.01}.get(after.tensors[name].dtype, 0.0)
        assert (bound > 0) == (len(tensor.shape) > 1)
        assert float((values(after, name) - original).norm() / original.norm()) <= bound, name


def test_divisors_of_llama3() -> None:
    """Pairs that turn often keep their speed; those that turn less than once are slowed down by the whole factor."""
    rope = RopeSpec(
        theta=1e4, kind="llama3", factor=4, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=16
    )
    found = llama3_divisors(rope, 8)
    turns = 16 / (2 * math.pi)
    assert found == pytest.approx([1 / ((turns - 1) / 3 + (1 - (turns - 1) / 3) / 4), 4, 4, 4])


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("phi3", {}, "Phi3ForCausalLM: not written as GGUF; supported: LlamaForCausalLM, "),
        ("mistral", {}, "a GGUF file cannot describe this model: `layers` would change from window=6 to window=None"),
        ("qwen2", {}, "a GGUF file cannot describe this model: `layers` would change from window="),
        ("gemma3", {"rope_parameters": GEMMA_ROPE}, "would change from scale=0.333333 to scale=None"),
        (
            "qwen3",
            {"rope_parameters": {**LLAMA3, "rope_type": "yarn"}},
            "rope type `yarn` is not written as GGUF; supported: default, linear, llama3",
        ),
    ],
)
def test_a_model_that_a_file_cannot_describe_is_refused(
    family: str, changes: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = made(family, tmp_path / "source", **changes), tmp_path / "new" / "model.gguf"
    code, out, err = run(capsys, "quantize", str(source), "--to", "gguf:q8_0", "-o", str(target))
    assert (code, out) == (3, "")
    assert said in err
    assert not target.parent.exists()


def test_what_cannot_be_written_is_refused_before_anything_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, new = made("qwen3", tmp_path / "source"), tmp_path / "new.gguf"

    def refused(model: object, target: Path, *more: str, to: str = "gguf:q8_0") -> tuple[int, str]:
        code, out, err = run(capsys, "quantize", str(model), "--to", to, "-o", str(target), *more)
        assert out == ""
        return code, err

    done = tmp_path / "done.gguf"
    quantized(capsys, source, "q8_0", done)
    code, err = refused(source, done)
    assert (code, "exists; name a file that does not" in err) == (2, True), err
    code, err = refused(source, tmp_path / "folder")
    assert (code, "the name of a GGUF file ends in .gguf" in err) == (2, True), err
    code, err = refused(done, new)
    assert (code, "a GGUF file; start from the original checkpoint" in err) == (3, True), err
    code, err = refused(source, new, "--pre-tokenizer", "bert")
    assert (code, "--pre-tokenizer bert: unknown; one of llama-bpe, " in err) == (2, True), err
    code, err = refused(source, new, "--pre-tokenizer", "qwen2", to="int8")
    assert (code, "--pre-tokenizer is for GGUF files" in err) == (2, True), err
    code, err = refused("builtin:tiny", new)
    assert (code, "cuts text by a pattern that llama.cpp has no name for" in err) == (3, True), err
    usage: Callable[[Path], object] = lambda _: type("Usage", (), {"free": 10})  # noqa: E731
    monkeypatch.setattr(target.shutil, "disk_usage", usage)
    code, err = refused(source, new)
    assert (code, "10 are free" in err) == (4, True), err
    assert not new.exists()


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    files = read_model_files(load_deployment([], arguments={"model": str(made("qwen3", tmp_path / "source"))}))

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gguf_file.convert_gguf(gguf_file.plan_gguf(files, "q4_k_m"), tmp_path / "model.gguf", interrupt)
    assert [each.name for each in tmp_path.iterdir()] == ["source"]
