from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.models.checkpoints import build, save
from tests.unit.cli.test_app import run

from stoker.config import load_deployment, read_model_files
from stoker.config.checkpoint.layout import read_tensors
from stoker.config.checkpoint.match import tensors_of
from stoker.convert import target as written
from stoker.convert.encoders import encoder
from stoker.convert.quantised import convert, plan_conversion
from stoker.convert.safetensors_file import dtype_name
from stoker.engine.runner.weights import Checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(build("qwen3"), tmp_path_factory.mktemp("qwen3"))


def opened(folder: Path) -> Checkpoint:
    """As the engine reads it."""
    files = read_model_files(load_deployment([], arguments={"model": str(folder), "skip_tokenizer_init": True}))
    return Checkpoint(folder, tensors_of(folder, read_tensors(folder, files.weight_files), files.spec))


def values(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    into = torch.empty(checkpoint.tensors[name].shape)
    checkpoint.read(name, into)
    return into


def by_hand(parts: dict[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    """What the tensors of a layer represent, from the text of the format."""
    scales = parts["weight_scale"].float().repeat_interleave(shape[1] // parts["weight_scale"].shape[1], 1)
    if "weight" in parts:
        return parts["weight"].float() * scales
    octets = parts["weight_packed"].numpy().view(np.uint8)
    codes = np.stack((octets & 15, octets >> 4), -1).reshape(shape).astype(np.float32) - 8
    return torch.from_numpy(codes) * scales


@pytest.mark.parametrize(("method", "bound"), [("int4", 0.16), ("int8", 0.011), ("fp8", 0.04)])
def test_the_engine_reads_what_the_format_represents(
    method: str, bound: float, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "model"
    code, out, err = run(capsys, "quantize", str(folder), "--to", method, "-o", str(target), "--output", "json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["bytes_after"] < found["bytes_before"]
    stored, before, after = load_file(target / "model.safetensors"), opened(folder), opened(target)
    assert found["num_quantised"] == 14 == sum(each.packed is not None for each in after.tensors.values())
    for name, tensor in after.tensors.items():
        original, read = values(before, name), values(after, name)
        if tensor.packed is None:
            assert torch.equal(read, original), name
            continue
        layer = name.removesuffix("weight")
        parts = {each.removeprefix(layer): part for each, part in stored.items() if each.startswith(layer)}
        torch.testing.assert_close(read, by_hand(parts, tensor.shape), rtol=1e-6, atol=0)
        assert float((read - original).norm() / original.norm()) < bound, name
    # what others need to read it
    config = json.loads((target / "config.json").read_text())
    assert config.pop("quantization_config")["ignore"] == ["lm_head", "model.embed_tokens"]
    assert config == json.loads((folder / "config.json").read_text())
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["model"]


def test_declared_parts_are_those_that_are_made() -> None:
    matrix = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    matrix[0], matrix[1, :32] = 0, 1e-9  # a scale of such a group would be 0 in float16
    for method, group in (("int4", 32), ("int8", None), ("fp8", None)):
        made = encoder(method, group, torch.float16)  # type: ignore[arg-type]
        parts = made.parts(matrix)
        assert {end: (part.dtype, tuple(part.shape)) for end, part in parts.items()} == made.layout((6, 64)), method
        assert all(dtype_name(part.dtype) for part in parts.values())
        read = by_hand(parts, (6, 64))
        assert read.isfinite().all(), method
        assert not read[0].any(), method


def test_a_scale_of_int4_has_the_least_error() -> None:
    """An outlier may be clipped, if all other elements gain more by it."""
    matrix = torch.randn(64, 128, generator=torch.Generator().manual_seed(2))
    plain = matrix.abs().amax(1, keepdim=True) / 7
    error = ((matrix / plain).round().clamp(-8, 7) * plain - matrix).square().sum(1)
    own = (by_hand(encoder("int4", 128, torch.float32).parts(matrix), (64, 128)) - matrix).square().sum(1)
    assert (own <= error * (1 + 1e-6)).all()
    assert float(own.sum() / error.sum()) < 0.85


@pytest.mark.parametrize(("family", "num_quantised"), [("phi3", 8), ("qwen3_moe", None)])
def test_fused_matrices_are_quantised_and_routers_are_not(
    family: str, num_quantised: int | None, tmp_path: Path
) -> None:
    source, target = save(build(family), tmp_path / "source"), tmp_path / "target"
    files = read_model_files(load_deployment([], arguments={"model": str(source), "skip_tokenizer_init": True}))
    conversion = plan_conversion(files, "int8")
    assert not any("embed" in name or "norm" in name or ".mlp.gate." in name for name in conversion.quantised)
    assert num_quantised in (None, len(conversion.quantised))
    convert(conversion, target, lambda _: None)
    before, after = opened(source), opened(target)
    for name in after.tensors:
        original = values(before, name)
        half_step = float(original.abs().max()) / 254  # of the largest scale
        torch.testing.assert_close(values(after, name), original, rtol=0, atol=1.01 * half_step)


def test_an_interrupted_run_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    files = read_model_files(load_deployment([], arguments={"model": str(folder), "skip_tokenizer_init": True}))

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(plan_conversion(files, "int4"), tmp_path / "model", interrupt)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_quantised_is_refused_before_anything_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: Path, target: Path, *more: str) -> tuple[int, str]:
        code, out, err = run(capsys, "quantize", str(source), "--to", "int8", "-o", str(target), *more)
        assert out == ""
        return code, err

    done, new = tmp_path / "done", tmp_path / "new"
    assert run(capsys, "quantize", str(folder), "--to", "int8", "-o", str(done))[0] == 0
    code, err = refused(done, new)
    assert (code, "already quantised (compressed-tensors)" in err) == (3, True), err
    code, err = refused(folder, done)
    assert (code, "exists; name a folder" in err) == (2, True), err
    code, err = refused(folder, new, "--perplexity", str(tmp_path / "none"))
    assert (code, "cannot be read as text" in err) == (2, True), err
    usage: Callable[[Path], object] = lambda _: type("Usage", (), {"free": 10})  # noqa: E731
    monkeypatch.setattr(written.shutil, "disk_usage", usage)
    code, err = refused(folder, new)
    assert (code, "10 are free" in err) == (4, True), err
    assert not new.exists()


@pytest.mark.slow
def test_the_perplexity_before_and_after_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("What does `--max-num-seqs` do? It limits the number of sequences that run together. " * 20)
    words = ("quantize", "builtin:tiny", "--to", "int8", "-o", str(tmp_path / "model"), "--perplexity", str(text))
    code, out, _ = run(capsys, *words, "--output", "json")
    measured = json.loads(out)["perplexity"]
    assert code == 0
    assert measured["num_tokens"] > 100
    assert measured["after"] == pytest.approx(measured["before"], rel=0.1)
