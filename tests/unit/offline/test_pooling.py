"""LLM.embed, encode, classify, reward and score, on tiny random checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.pooling_checkpoints import build
from tests.tiny_checkpoint import write_checkpoint
from tests.tiny_tokenizer import write_tokenizer

from stoker import LLM, PoolingParams, SamplingParams
from stoker.engine.api import InvalidRequest

TEXTS = ["Hello, world!", "The answer is 42, and", "日本語", "x"]
SIZES = {
    "vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 64,
}  # fmt: skip


def make(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), **{"dtype": "float32", "max_num_seqs": 4, "num_threads": 1, **options})


def save(folder: Path, architecture: str, **settings: Any) -> tuple[Any, Path]:
    model = build(architecture, "bert", **SIZES, **settings)
    model.save_pretrained(folder)
    write_tokenizer(folder, template=None)
    return model, folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_checkpoint(tmp_path_factory.mktemp("decoder"))
    with make(folder, num_gpu_blocks_override=64, hf_overrides={"is_matryoshka": True}) as made:
        yield made


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    return save(tmp_path_factory.mktemp("reranker"), "BertForSequenceClassification", num_labels=1)


def norm(values: Any) -> float:
    return float(np.linalg.norm(np.array(values)))


def test_a_decoder_embeds_and_generates(decoder: LLM):
    together = decoder.embed(TEXTS)
    assert [each.request_id for each in together] == sorted((each.request_id for each in together), key=int)
    for text, each in zip(TEXTS, together, strict=True):
        ids = decoder.get_tokenizer().encode(text)
        assert each.prompt_token_ids == ids
        assert norm(each.outputs.embedding) == pytest.approx(1, abs=1e-6)
        assert each.outputs.hidden_size == len(each.outputs.embedding)
        for same in (text, ids, {"prompt": text}, {"prompt_token_ids": ids}):
            assert decoder.embed(same)[0].outputs.embedding == pytest.approx(each.outputs.embedding, abs=1e-5)
    assert len(decoder.generate(TEXTS[0], SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids) == 3


def test_raw_results_and_fewer_dimensions(decoder: LLM):
    raw = decoder.encode(TEXTS, PoolingParams(use_activation=False))[0].outputs.data
    assert norm(raw) != pytest.approx(1, abs=1e-3)
    short = decoder.embed(TEXTS, pooling_params=PoolingParams(dimensions=5))[0].outputs.embedding
    assert short == pytest.approx((raw[:5] / norm(raw[:5])).tolist(), abs=1e-5)
    assert decoder.encode(TEXTS[0], pooling_task="embed")[0].finished


def test_long_prompts_are_cut_only_if_that_is_asked_for(decoder: LLM):
    ids, context = list(range(5, 25)), decoder.info.max_model_len
    cut = decoder.embed([ids], pooling_params=PoolingParams(truncate_prompt_tokens=8))[0]
    assert cut.prompt_token_ids == ids[:8]
    left = decoder.embed([ids], pooling_params=PoolingParams(truncate_prompt_tokens=8, truncation_side="left"))[0]
    assert left.prompt_token_ids == ids[-8:]
    assert len(decoder.embed([[5] * context])[0].prompt_token_ids) == context
    long = [5] * (context + 1)
    assert (
        len(decoder.embed([long], pooling_params=PoolingParams(truncate_prompt_tokens=-1))[0].prompt_token_ids)
        == context
    )
    with pytest.raises(InvalidRequest, match=f"has {context + 1} tokens"):
        decoder.embed([long])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.classify("a"), "does not have the task 'classify': its tasks are embed"),
        (lambda llm: llm.encode("a", pooling_task="sparse"), "does not have the task 'sparse'"),
        (lambda llm: llm.encode("a", PoolingParams(task="embed"), pooling_task="sparse"), "params have 'embed'"),
        (lambda llm: llm.embed("a", pooling_params=PoolingParams(dimensions=10_000)), "10000"),
        (lambda llm: llm.embed("a", pooling_params=PoolingParams(truncate_prompt_tokens=0)), "-1 or above 0"),
        (
            lambda llm: llm.embed("a", pooling_params=PoolingParams(truncate_prompt_tokens=10**6)),
            "but truncate_prompt_tokens is 1000000",
        ),
        (lambda llm: llm.embed(""), "empty"),
        (lambda llm: llm.embed([[]]), "no tokens"),
        (lambda llm: llm.embed([[10**6]]), "outside the vocabulary"),
        (lambda llm: llm.score(["a", "b"], ["c"]), "2 queries for 1 documents"),
        (lambda llm: llm.score("a", "b", pooling_params=PoolingParams(use_activation=False)), "comparisons of vectors"),
        (lambda llm: llm.score("a", "b", chat_template="{{ x }}"), "have no chat template"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(call: Any, words: str, decoder: LLM):
    with pytest.raises(InvalidRequest, match=words):
        call(decoder)


def test_scores_of_an_embedding_model_are_cosines(decoder: LLM):
    query, *others = (np.array(each.outputs.embedding) for each in decoder.embed(TEXTS))
    found = decoder.score(TEXTS[0], TEXTS[1:])
    assert [each.outputs.score for each in found] == pytest.approx([float(query @ each) for each in others], abs=1e-5)
    pairs = decoder.score(TEXTS[:2], TEXTS[2:])
    assert pairs[0].outputs.score == pytest.approx(found[1].outputs.score, abs=1e-5)


def test_a_reranker_reads_both_texts(reranker: tuple[Any, Path]):
    theirs, folder = reranker
    with make(folder) as llm:
        found = llm.score(TEXTS[0], TEXTS[1:])
        for text, each in zip(TEXTS[1:], found, strict=True):
            first, second = (llm.get_tokenizer().encode(part) for part in (TEXTS[0], text))
            assert each.prompt_token_ids == first + second
            types = torch.tensor([[0] * len(first) + [1] * len(second)])
            with torch.inference_mode():
                expected = theirs(torch.tensor([first + second]), token_type_ids=types).logits.sigmoid().item()
            assert each.outputs.score == pytest.approx(expected, abs=1e-5)
        with pytest.raises(InvalidRequest, match="generates no tokens; its tasks are `classify`"):
            llm.generate("a")
        raw = llm.score(TEXTS[0], TEXTS[1], pooling_params=PoolingParams(use_activation=False))[0].outputs.score
        assert 1 / (1 + np.exp(-raw)) == pytest.approx(found[0].outputs.score, abs=1e-5)


def test_scores_are_shifted_and_scaled_as_pooler_config_says(reranker: tuple[Any, Path]):
    raw = PoolingParams(use_activation=False)
    with make(reranker[1]) as llm:
        expected = llm.score(TEXTS[0], TEXTS[1:], pooling_params=raw)
    with make(reranker[1], pooler_config={"logit_mean": 0.5, "logit_sigma": 2}) as llm:
        found = llm.score(TEXTS[0], TEXTS[1:], pooling_params=raw)
    for mine, its in zip(found, expected, strict=True):
        assert mine.outputs.score == pytest.approx((its.outputs.score - 0.5) / 2, abs=1e-5)


def test_a_classifier_has_a_share_for_each_label(tmp_path: Path):
    theirs, folder = save(tmp_path / "model", "BertForSequenceClassification", num_labels=3)
    with make(folder) as llm:
        for text, each, reward in zip(TEXTS, llm.classify(TEXTS), llm.reward(TEXTS), strict=True):
            with torch.inference_mode():
                expected = theirs(torch.tensor([llm.get_tokenizer().encode(text)])).logits.softmax(-1)[0].tolist()
            assert each.outputs.probs == pytest.approx(expected, abs=1e-5)
            assert each.outputs.num_classes == 3
            assert reward.outputs.data.tolist() == pytest.approx(expected, abs=1e-5)


def test_labels_of_tokens(tmp_path: Path):
    _, folder = save(tmp_path / "model", "BertForTokenClassification", num_labels=2)
    with make(folder) as llm:
        found = llm.reward(TEXTS)
        assert [each.outputs.data.shape for each in found] == [(len(each.prompt_token_ids), 2) for each in found]
        assert np.concatenate([each.outputs.data for each in found]).sum(1) == pytest.approx(1, abs=1e-5)
        (every,) = llm.encode([[5, 300, 6, 300]])
    with make(folder, pooler_config={"step_tag_id": 300}) as llm:
        (steps,) = llm.encode([[5, 300, 6, 300]])
        assert steps.outputs.data == pytest.approx(every.outputs.data[[1, 3]], abs=1e-6)


def test_several_tasks_must_be_named(tmp_path: Path):
    _, folder = save(tmp_path / "model", "BertModel")
    with make(folder) as llm:
        with pytest.raises(InvalidRequest, match="name one of the model's tasks in pooling_task: embed, token_embed"):
            llm.encode(TEXTS)
        assert llm.encode(TEXTS, pooling_task="token_embed")[0].outputs.data.shape[1] == 32
        assert llm.encode(TEXTS, PoolingParams(task="embed"))[0].outputs.data.shape == (32,)
        assert llm.info.kv_cache_bytes == 0


def test_texts_need_a_tokenizer(tmp_path: Path):
    _, folder = save(tmp_path / "model", "BertModel")
    with make(folder, skip_tokenizer_init=True) as llm:
        assert llm.embed([[5, 6]])[0].outputs.hidden_size == 32
        with pytest.raises(InvalidRequest, match="give token ids"):
            llm.embed("a")


def test_a_model_that_only_generates(tmp_path: Path):
    folder = write_checkpoint(tmp_path)
    with make(folder, runner="generate") as llm, pytest.raises(InvalidRequest, match="only generates tokens"):
        llm.embed("a")


def test_the_size_of_embeddings_is_an_option(tmp_path: Path):
    folder = write_checkpoint(tmp_path)
    with make(folder, hf_overrides={"is_matryoshka": True}, pooler_config={"dimensions": 7}) as llm:
        assert llm.embed("a")[0].outputs.hidden_size == 7
        assert llm.embed("a", pooling_params=PoolingParams(dimensions=9))[0].outputs.hidden_size == 9
