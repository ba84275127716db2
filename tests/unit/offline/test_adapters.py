"""LLM with adapters: one for each prompt, by folder or by name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.models.checkpoints import build
from tests.peft_adapters import write_adapter

from stoker import LLM, BeamSearchParams, LoRARequest, SamplingParams
from stoker.engine.api import InvalidRequest

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = {"prompt_token_ids": [5, 9, 31, 7]}
LAYERS = "all-linear"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its adapters `one` and `two`, and the models into which PEFT has merged each."""
    folder, model = tmp_path_factory.mktemp("adapters"), build("qwen3 untied")
    model.save_pretrained(folder / "model")
    for seed, name in enumerate(("one", "two")):
        merged = write_adapter(folder / name, model, seed=seed, is_merged=True, target_modules=LAYERS)
        assert merged is not None
        merged.save_pretrained(folder / f"merged-{name}")
    return folder


def make(model: Path, **options: object) -> LLM:
    small = {"dtype": "float32", "num_gpu_blocks_override": 64, "num_threads": 1, "skip_tokenizer_init": True}
    return LLM(str(model), **{**small, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    named = {"named": {"path": str(folder / "two")}}
    with make(folder / "model", enable_lora=True, max_loras=2, modules=named) as made:
        yield made


def tokens(llm: LLM, *requests: LoRARequest | None) -> list[list[int]]:
    results = llm.generate([PROMPT] * len(requests), GREEDY, lora_request=list(requests))
    assert [result.lora_request for result in results] == list(requests)
    return [result.outputs[0].token_ids for result in results]


def test_each_prompt_has_its_adapter_in_one_batch(llm: LLM, folder: Path) -> None:
    one, two = LoRARequest("one", 1, str(folder / "one")), LoRARequest("two", 2, lora_path=str(folder / "two"))
    found = tokens(llm, None, one, two, LoRARequest("named", 3), one)
    wanted = []
    for name in "model", "merged-one", "merged-two":
        with make(folder / name) as alone:
            wanted.append(tokens(alone, None)[0])
    assert found == [wanted[0], wanted[1], wanted[2], wanted[2], wanted[1]]
    (best,) = llm.beam_search([PROMPT], BeamSearchParams(width=1), GREEDY, lora_request=one)
    assert best.outputs[0].token_ids == wanted[1]
    assert (one.name, one.path, one.adapter_id) == ("one", str(folder / "one"), 1)


def test_a_folder_with_other_contents_is_another_adapter(llm: LLM, folder: Path, tmp_path: Path) -> None:
    """An engine that knows adapters by number answers with what it has read before."""
    where = tmp_path / "now"
    shutil.copytree(folder / "one", where)
    request = LoRARequest("now", 7, str(where))
    before = tokens(llm, request)
    shutil.rmtree(where)
    shutil.copytree(folder / "two", where)
    after = tokens(llm, request)
    assert [before, after] == [tokens(llm, LoRARequest(name, 1, str(folder / name))) for name in ("one", "two")]
    assert tokens(llm, LoRARequest("now", 7, str(where), load_inplace=True)) == after


def test_what_cannot_be_used_is_an_error_before_anything_runs(llm: LLM, folder: Path, tmp_path: Path) -> None:
    for request, message in (
        (LoRARequest("a", 1, str(tmp_path / "nowhere")), "no such directory"),
        (LoRARequest("a", 1), "lora_path is empty, and `lora.modules` has no adapter 'a'"),
        (LoRARequest("a", 1, str(folder / "model")), "holds no adapter_config.json"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            tokens(llm, None, request)
    with pytest.raises(InvalidRequest, match="1 adapters in lora_request for 2 prompts"):
        llm.generate([PROMPT] * 2, GREEDY, lora_request=[None])
    with pytest.raises(ValueError, match="lora_int_id is 0; it must be above 0"):
        LoRARequest("a", 0, "x")
    with make(folder / "model") as plain, pytest.raises(InvalidRequest, match="adapters are not enabled"):
        tokens(plain, LoRARequest("one", 1, str(folder / "one")))


def test_each_prompt_is_embedded_with_its_adapter(llm: LLM, folder: Path) -> None:
    one, two = (LoRARequest(name, 1, str(folder / name)) for name in ("one", "two"))
    found = [each.outputs.embedding for each in llm.embed([PROMPT] * 3, lora_request=[None, one, two])]
    for name, embedding in zip(("model", "merged-one", "merged-two"), found, strict=True):
        with make(folder / name) as alone:
            assert embedding == pytest.approx(alone.embed(PROMPT)[0].outputs.embedding, abs=1e-4)
    assert found[1] != pytest.approx(found[0], abs=1e-2)
