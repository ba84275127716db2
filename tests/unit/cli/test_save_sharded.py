from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.checkpoints import build, save
from tests.models.gguf_files import write_gguf
from tests.unit.cli.test_app import run

from stoker import LLM, SamplingParams

WRITTEN = Path(__file__).parents[2] / "models" / "written"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(build("qwen3"), tmp_path_factory.mktemp("qwen3"))


def saved(capsys: pytest.CaptureFixture[str], source: Path, target: Path, *more: str) -> dict[str, object]:
    code, out, err = run(capsys, "save-sharded", str(source), "-o", str(target), "--output", "json", *more)
    assert (code, err) == (0, "")
    found: dict[str, object] = json.loads(out)
    return found


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor for file in sorted(folder.glob("model*.safetensors")) for name, tensor in load_file(file).items()
    }


def tokens(folder: Path, load_format: str) -> list[int]:
    arguments = {"skip_tokenizer_init": True, "max_model_len": 64, "load_format": load_format, "dtype": "float32"}
    with LLM(str(folder), **arguments) as llm:
        prompt = {"prompt_token_ids": [5, 6, 7, 8]}
        [found] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), use_tqdm=False)
    return list(found.outputs[0].token_ids)


def test_files_of_limited_size_with_equal_tensors_and_tokens(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "sharded"
    found = saved(capsys, folder, target, "--max-part-size", "100kB")
    files = sorted(target.glob("*.safetensors"))
    assert [file.name for file in files] == [f"model-rank-0-part-{n}.safetensors" for n in range(len(files))]
    assert found["num_files"] == len(files) > 1
    before, after = tensors(folder), tensors(target)
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert found["num_tensors"] == len(after)
    assert found["left_out"] == []
    sizes = [sum(tensor.nbytes for tensor in load_file(file).values()) for file in files]
    assert all(size <= 100_000 or len(load_file(file)) == 1 for size, file in zip(sizes, files, strict=True))
    assert (target / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert tokens(target, "sharded_state") == tokens(folder, "safetensors")


def test_codes_of_a_quantised_checkpoint_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = WRITTEN / "gptqmodel-gptq-4-act-order"
    saved(capsys, source, tmp_path / "new")
    before, after = tensors(source), tensors(tmp_path / "new")
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_from_torch_files_whose_tensors_are_transposed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "torch"
    source.mkdir()
    (source / "config.json").write_bytes((folder / "config.json").read_bytes())
    stored = tensors(folder)
    name = next(name for name in stored if name.endswith("q_proj.weight"))
    torch.save(stored | {name: stored[name].T.contiguous().T}, source / "pytorch_model.bin")
    saved(capsys, source, tmp_path / "new")
    after = tensors(tmp_path / "new")
    assert set(after) == set(stored)
    assert all(torch.equal(after[each], stored[each]) for each in stored)


def test_tensors_that_the_model_does_not_read_are_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_bytes((folder / "config.json").read_bytes())
    unread = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file(tensors(folder) | {unread: torch.ones(4)}, source / "model.safetensors")
    assert saved(capsys, source, tmp_path / "new")["left_out"] == [unread]
    assert unread not in tensors(tmp_path / "new")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--max-part-size", "0"), "must be more than 0"),
        (("--max-part-size", "5 apples"), "not a size such as"),
    ],
)
def test_sizes_that_are_none(
    words: tuple[str, ...], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _out, err = run(capsys, "save-sharded", str(folder), "-o", str(tmp_path / "new"), *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "new").exists()


def test_a_folder_with_files_is_not_written_to(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    code, _, err = run(capsys, "save-sharded", str(folder), "-o", str(tmp_path))
    assert code == 2
    assert "exists" in err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_sharded_state_is_replaced_if_that_is_asked_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new"
    saved(capsys, folder, target)
    (target / "left.txt").write_text("of the one before")
    code, _, err = run(capsys, "save-sharded", str(folder), "-o", str(target))
    assert code == 2
    assert f"{target}: exists; --force replaces the sharded state in it" in err
    saved(capsys, folder, target, "--force")
    assert not (target / "left.txt").exists()
    assert [each.name for each in tmp_path.iterdir()] == ["new"]


def test_a_cut_source_leaves_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_bytes((folder / "config.json").read_bytes())
    [file] = folder.glob("*.safetensors")
    (source / "model.safetensors").write_bytes(file.read_bytes()[:-1])
    code, _, err = run(capsys, "save-sharded", str(source), "-o", str(tmp_path / "new"))
    assert code != 0
    assert "model.safetensors" in err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["source"]


def test_gguf_is_refused_with_the_formats_that_are_read(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, _ = write_gguf(folder, tmp_path / "own")
    code, _, err = run(capsys, "save-sharded", str(source), "-o", str(tmp_path / "new"))
    assert code != 0
    assert "format gguf" in err
    assert "safetensors" in err
