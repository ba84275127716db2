"""Prompts of pooling requests: against the tokenizer's own encoding, and against transformers' truncation of pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from stoker.engine.api import InvalidRequest
from stoker.model.pooling import PoolHead, Pooling
from stoker.text.pool_prompts import PoolLimits, PromptMaker
from stoker.text.tokenizer import Tokenizer, Truncation

from ...tiny_tokenizer import write_tokenizer

ANIMALS = "the cat sat on a mat and dogs ran far away from it while birds sang"
LONG = ANIMALS + " query passage : yes no"
WORDS = LONG.split(" ")


def backend() -> tokenizers.Tokenizer:
    """Words, between the special tokens of BERT and with its types."""
    vocab = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    made = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return made


def maker(**pooling: object) -> PromptMaker:
    head = PoolHead(task="embed", width=4, includes_prompt=pooling.pop("includes_prompt", True))
    return PromptMaker(Tokenizer(backend()), Pooling(heads=(head,), **pooling))


def test_many_texts_are_encoded_as_each_alone():
    found = maker().texts(["the cat", LONG, "mat"], PoolLimits(64), params=["a", "b", "c"])
    assert [each.token_ids for each in found] == [backend().encode(text).ids for text in ("the cat", LONG, "mat")]
    assert {(each.first, each.second) for each in found} == {(0, None)}


def test_special_tokens_can_be_left_out():
    [found] = maker().texts(["the cat"], PoolLimits(64), params=["a"], add_special_tokens=False)
    assert found.token_ids == backend().encode("the cat", add_special_tokens=False).ids


def test_a_text_may_fill_the_context_and_not_more():
    made = maker()
    assert len(made.texts(["the cat sat"], PoolLimits(5), params=["input[0]"])[0].token_ids) == 5
    with pytest.raises(InvalidRequest, match=r"6 tokens, but .* 5 tokens$") as caught:
        made.texts(["the cat", "the cat sat on"], PoolLimits(5), params=["input[0]", "input[1]"])
    assert (caught.value.param, caught.value.code) == ("input[1]", "context_length_exceeded")


def test_a_text_of_megabytes_is_refused_before_it_is_encoded():
    with pytest.raises(InvalidRequest, match="at least"):
        maker().texts(["x" * 3_000_000], PoolLimits(5), params=["input[0]"])


def test_an_empty_text_is_refused_by_its_place():
    with pytest.raises(InvalidRequest, match=r"`input\[1\]` is an empty text"):
        maker().texts(["the", ""], PoolLimits(5), params=["input[0]", "input[1]"])


@pytest.mark.parametrize(("side", "kept"), [("right", "the cat"), ("left", "yes no")])
def test_a_long_text_is_cut_within_its_special_tokens(side, kept):
    limits = PoolLimits(64, Truncation(4, side))
    for text in (LONG, LONG + " " * 100_000 if side == "right" else " " * 100_000 + LONG):
        [found] = maker().texts([text], limits, params=["a"])
        assert found.token_ids == backend().encode(kept).ids


def test_tokens_of_the_prompt_are_counted_for_heads_that_leave_them_out():
    [found] = maker(includes_prompt=False).texts(["the cat"], PoolLimits(64), params=["a"], prefix="query: ")
    assert found.token_ids == backend().encode("query: the cat").ids
    assert found.first == 3  # [CLS] query :
    [found] = maker(includes_prompt=False).texts(["the cat"], PoolLimits(64), params=["a"])
    assert found.first == 0
    [found] = maker(includes_prompt=True).texts(["the cat"], PoolLimits(64), params=["a"], prefix="query: ")
    assert found.first == 0
    cut = PoolLimits(64, Truncation(5, "left"))
    [found] = maker(includes_prompt=False).texts([LONG], cut, params=["a"], prefix="query: ")
    assert found.first == 0  # the prompt was cut off


def test_a_cut_that_leaves_no_text_behind_the_prompt_is_refused():
    made = maker(includes_prompt=False)
    for num_tokens in (3, 4):
        limits = PoolLimits(64, Truncation(num_tokens, "right"))
        with pytest.raises(InvalidRequest, match="leaves no text") as caught:
            made.texts([LONG], limits, params=["input"], prefix="query: ")
        assert caught.value.param == "input"
    [found] = made.texts([LONG], PoolLimits(64, Truncation(5, "right")), params=["input"], prefix="query: ")
    assert (found.first, len(found.token_ids)) == (3, 5)


def test_the_case_of_a_prompt_is_lowered_with_the_text():
    [found] = maker(lowers_case=True).texts(["The CAT"], PoolLimits(64), params=["a"], prefix="QUERY: ")
    assert found.token_ids == backend().encode("query: the cat").ids


def test_a_query_that_is_compared_token_by_token_is_cut_to_the_length_of_the_model():
    made = maker(query_length=6, query_filler=0, query_marker="yes")
    long, short = made.queries([LONG, "the"], PoolLimits(64), params=["a", "b"])
    marked = backend().encode("yes the cat sat").ids
    assert long.token_ids == marked
    assert short.token_ids == [*backend().encode("yes the").ids, 0, 0]


@pytest.mark.parametrize("cut", [None, Truncation(12, "right")])
def test_a_query_of_many_pairs_is_counted_before_they_are_made(cut, monkeypatch):
    pairs, params = [(ANIMALS, "the cat")] * 50, [("query", f"documents[{index}]") for index in range(50)]
    assert len(maker().pairs(pairs, PoolLimits(64, cut), params=params)) == 50
    made = maker()
    monkeypatch.setattr(PromptMaker, "_post_processed", None)  # is not reached
    with pytest.raises(InvalidRequest, match="may have 500 in all") as caught:
        made.pairs(pairs, PoolLimits(64, cut, call=500), params=params)
    assert (caught.value.param, caught.value.code) == ("query", "too_many_tokens")


def test_documents_count_for_the_tokens_of_a_call():
    pairs, params = [("the", "the cat")] * 50, [("query", f"documents[{index}]") for index in range(50)]
    assert len(maker().pairs(pairs, PoolLimits(64, call=300), params=params)) == 50  # 6 tokens each
    with pytest.raises(InvalidRequest, match="300 tokens or more, and may have 299"):
        maker().pairs(pairs, PoolLimits(64, call=299), params=params)


def test_a_query_of_many_pairs_is_cut_once(monkeypatch):
    calls = []
    shortened = Tokenizer.shortened
    monkeypatch.setattr(Tokenizer, "shortened", lambda *args: calls.append(args[1]) or shortened(*args))
    limits = PoolLimits(64, query=2)
    found = maker().pairs([(ANIMALS, "mat")] * 50, limits, params=[("query", "d")] * 50)
    assert calls == [ANIMALS]
    assert [each.token_ids for each in found] == [backend().encode("the cat", "mat").ids] * 50


def test_pairs_with_one_query_are_cut_each_for_itself():
    limits = PoolLimits(64, Truncation(9, "right"))
    documents = ["mat", LONG, "the cat", LONG]
    found = maker().pairs([(ANIMALS, each) for each in documents], limits, params=[("q", "d")] * 4)
    for document, each in zip(documents, found, strict=True):
        [alone] = maker().pairs([(ANIMALS, document)], limits, params=[("q", "d")])
        assert each == alone


def test_case_is_lowered_where_the_model_says_so():
    [found] = maker(lowers_case=True).texts(["The CAT"], PoolLimits(64), params=["a"])
    assert found.token_ids == backend().encode("the cat").ids


def test_a_pair_has_the_types_of_its_second_text():
    found = maker().pairs([("the cat", "sat on a mat"), ("a", "b")], PoolLimits(64), params=[("q", "d")] * 2)
    theirs = backend().encode("the cat", "sat on a mat")
    assert found[0].token_ids == theirs.ids
    assert found[0].second == theirs.type_ids.index(1) == 4
    assert found[1].second == 3


def test_a_pair_without_types_has_a_second_text_too():
    made = backend()
    made.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    head = PoolHead(task="classify", width=1)
    [found] = PromptMaker(Tokenizer(made), Pooling(heads=(head,))).pairs(
        [("the", "cat")], PoolLimits(9), params=[("q", "d")]
    )
    assert found.token_ids == [2, 4, 3, 3, 5, 3]
    assert found.second == 4


@pytest.mark.parametrize("num_tokens", [5, 6, 9, 14])
@pytest.mark.parametrize("lengths", [(1, 18), (18, 1), (18, 17), (3, 4), (9, 2)])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_long_pair_is_cut_as_by_transformers(num_tokens, lengths, side):
    query, document = (" ".join(WORDS[:length]) for length in lengths)
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend(), truncation_side=side)
    wanted = theirs(query, document, truncation="longest_first", max_length=num_tokens)["input_ids"]
    limits = PoolLimits(64, Truncation(num_tokens, side))
    [found] = maker().pairs([(query, document)], limits, params=[("q", "d")])
    assert found.token_ids == wanted


def test_each_text_of_a_pair_has_its_own_limit():
    limits = PoolLimits(64, query=2, document=3)
    [found] = maker().pairs([(LONG, LONG)], limits, params=[("q", "d")])
    assert found.token_ids == backend().encode("the cat", "the cat sat").ids


def test_a_long_pair_is_refused_by_its_document():
    with pytest.raises(InvalidRequest, match="25 tokens") as caught:
        maker().pairs([("the", LONG)], PoolLimits(10), params=[("query", "documents[0]")])
    assert caught.value.param == "documents[0]"


def template_maker(folder: Path) -> PromptMaker:
    head = PoolHead(task="classify", width=1)
    pair = "<|im_start|>system\n{instruction}<|im_end|>\nquery: {query}\ndocument: {document}<|im_end|>\nanswer"
    pooling = Pooling(heads=(head,), pair=pair, instruction="is it?")
    return PromptMaker(Tokenizer.load(write_tokenizer(folder)), pooling)


def test_a_template_is_filled(tmp_path):
    made = template_maker(tmp_path)
    assert made.has_instruction
    wanted = Tokenizer.load(tmp_path).encode(
        "<|im_start|>system\nis it?<|im_end|>\nquery: a\ndocument: {query} b<|im_end|>\nanswer"
    )
    [found] = made.pairs([("a", "{query} b")], PoolLimits(100), params=[("q", "d")])
    assert (found.token_ids, found.second) == (wanted, None)
    [other] = made.pairs([("a", "b")], PoolLimits(100), params=[("q", "d")], instruction="how is it?")
    assert other.token_ids != found.token_ids


def test_a_control_token_in_a_text_is_text(tmp_path):
    made = template_maker(tmp_path)
    [found] = made.pairs([("a", "b<|im_end|>\n<|im_start|>")], PoolLimits(100), params=[("q", "d")])
    ids = Tokenizer.load(tmp_path).encode("<|im_start|><|im_end|>")
    assert [found.token_ids.count(each) for each in ids] == [1, 2]  # those of the template


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_document_is_cut_and_not_the_template(tmp_path, side):
    made = template_maker(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    document = " ".join(f"{number} dogs" for number in range(400))
    [found] = made.pairs([("a", document)], PoolLimits(200, Truncation(120, side)), params=[("q", "d")])
    assert 110 < len(found.token_ids) <= 120
    text = tokenizer.decode(found.token_ids, skip_special_tokens=False)
    assert text.endswith("<|im_end|>\nanswer")
    assert ("0 dogs 1 dogs" in text, "399 dogs" in text) == (side == "right", side == "left")
    with pytest.raises(InvalidRequest, match="leave no room"):
        made.pairs([("a", document)], PoolLimits(200, Truncation(9, side)), params=[("q", "d")])


def test_a_template_needs_both_texts():
    with pytest.raises(ValueError, match=r"needs \{query\} and \{document\}"):
        PromptMaker(Tokenizer(backend()), Pooling(heads=(), pair="{query}"))
