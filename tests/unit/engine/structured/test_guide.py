"""What may follow in a sequence: reasoning, its end, and the grammar of the answer from the exact token after it."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import stoker
from stoker.engine.api import Constraint, InvalidRequest, Reasoning, SamplingParams
from stoker.engine.structured.backend import GrammarError
from stoker.engine.structured.grammars import MAX_KEPT, Grammars
from stoker.engine.structured.guidance import Guidance
from stoker.engine.structured.guide import Guide
from stoker.engine.structured.guide_table import GuideTable

EOS = 0
VOCABULARY = tokenizers.Tokenizer.from_file(str(Path(stoker.__file__).parent / "builtin" / "tiny" / "tokenizer.json"))
SIZE = VOCABULARY.get_vocab_size() + 5  # of the model: five ids have no token
DIGITS = Constraint("start: /[0-9]{2}/")
THINKING = Reasoning(end="</think>")


@functools.cache
def grammars() -> Grammars:
    return Grammars(lambda: Guidance(VOCABULARY, SIZE, (EOS,)), SIZE, (EOS,))


def ids(text: str) -> list[int]:
    found: list[int] = VOCABULARY.encode(text, add_special_tokens=False).ids
    return found


def guide_of(text: str = "", **sampling: object) -> Guide:
    return grammars().guide(SamplingParams(**sampling), ids(text))  # type: ignore[arg-type]


def allowed(guide: Guide) -> set[int] | None:
    """None: everything."""
    if guide.mask is None:
        return None
    bits = np.unpackbits(guide.mask.view(np.uint8), count=SIZE, bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def follow(guide: Guide, token_ids: list[int]) -> Guide:
    guide.take(token_ids)
    grammars().update([guide])
    return guide


def test_a_grammar_allows_its_tokens_and_no_id_without_a_token():
    guide = guide_of(constraint=DIGITS)
    assert {VOCABULARY.decode([token_id]).strip("0123456789") for token_id in allowed(guide) or ()} == {""}
    assert allowed(follow(guide, ids("4"))) == {ids(digit)[0] for digit in "0123456789"}
    assert not guide.is_finished
    follow(guide, ids("2"))
    assert guide.is_finished
    assert guide.error is None
    assert allowed(guide) is None, "a step that was planned before the end may sample anything"


def test_a_token_that_the_grammar_does_not_allow_is_an_error():
    guide = follow(guide_of(constraint=DIGITS), ids("x"))
    assert guide.error is not None
    assert guide.mask is None


def test_a_constraint_begins_at_the_token_after_the_reasoning():
    guide = guide_of(constraint=DIGITS, reasoning=THINKING)
    everything_but_the_end = set(range(SIZE)) - {EOS}
    assert allowed(guide) == everything_but_the_end
    assert allowed(follow(guide, ids("Is it 7?"))) == everything_but_the_end
    assert allowed(follow(guide, ids("</think>"))) == allowed(guide_of(constraint=DIGITS))


def test_the_end_of_the_reasoning_may_be_spelled_with_other_tokens():
    pieces = [token_id for piece in ("</", "th", "ink", ">") for token_id in ids(piece)]
    assert len(pieces) > 1
    guide = follow(guide_of("Hm", constraint=DIGITS, reasoning=THINKING), pieces)
    assert allowed(guide) == allowed(guide_of(constraint=DIGITS))


def test_a_budget_forces_the_end_of_the_reasoning_with_and_without_a_constraint():
    end = ids("</think>")
    assert len(end) == 1
    for constraint in (None, DIGITS):
        guide = guide_of(constraint=constraint, reasoning=Reasoning(end="</think>", budget=2))
        assert allowed(follow(guide, ids("7")[:1])) != set(end)
        assert allowed(follow(guide, ids("8")[:1])) == set(end)
        after = allowed(follow(guide, end))
        assert after == (None if constraint is None else allowed(guide_of(constraint=DIGITS)))


def test_an_end_of_several_tokens_is_forced_one_after_another():
    end = ids("and so.")
    guide = guide_of(reasoning=Reasoning(end="and so.", budget=0))
    for token_id in end:
        assert allowed(guide) == {token_id}
        follow(guide, [token_id])
    assert allowed(guide) is None


def test_a_model_may_open_the_reasoning_itself_with_its_first_token():
    reasoning = Reasoning(end="</think>", is_open=False, start="<think>")
    (start,) = ids("<think>")
    digits = allowed(guide_of(constraint=DIGITS)) or set()
    guide = guide_of(constraint=DIGITS, reasoning=reasoning)
    assert allowed(guide) == digits | {start}
    assert allowed(follow(guide, [start])) == set(range(SIZE)) - {EOS}
    assert allowed(follow(guide, ids("</think>"))) == digits
    assert start not in (allowed(follow(guide_of(constraint=DIGITS, reasoning=reasoning), ids("4"))) or set())


@pytest.mark.parametrize("length", range(9))
def test_after_a_preemption_the_state_is_that_of_the_tokens(length: int):
    sampling = SamplingParams(constraint=DIGITS, reasoning=Reasoning(end="</think>", budget=4))
    token_ids = [*ids("ab 7")[:4], *ids("</think>"), *ids("12")][:length]
    guide = grammars().guide(sampling, [])
    for token_id in token_ids:
        follow(guide, [token_id])
    resumed = grammars().guide(sampling, token_ids)
    assert (allowed(resumed), resumed.is_finished) == (allowed(guide), guide.is_finished)


@pytest.mark.parametrize("token_ids", [[1, 2, 3], [65, 66], [700, 701, 702]])
def test_tokens_that_a_grammar_names_by_their_ids_are_forced(token_ids: list[int]):
    """The run was tried and taken back, and what was taken back was the length of their texts."""
    grammar = "start: " + " ".join(f"<[{token_id}]>" for token_id in token_ids)
    guide = guide_of(constraint=Constraint(grammar))
    for token_id in token_ids:
        grammars().update([guide])
        assert allowed(guide) == {token_id}
        guide.take([token_id])
    assert guide.error is None
    assert guide.is_finished


def test_draft_tokens_are_validated_without_a_change():
    matcher = Guidance(VOCABULARY, SIZE, (EOS,)).compile("start: /[0-9]{4}/")
    assert matcher.validate(ids("12x")) == 2
    matcher.consume(ids("1234"))
    assert matcher.is_finished
    forced = Guidance(VOCABULARY, SIZE, (EOS,)).compile('start: "forced text" /[0-9]/')
    assert VOCABULARY.decode(forced.forced_tokens()).startswith("forced")


def test_a_grammar_that_cannot_be_compiled_ends_its_sequence_only():
    guide = guide_of(constraint=Constraint("start: <|unknown|>"))
    assert guide.error is not None
    assert "unknown special token" in guide.error


def test_grammars_are_kept_up_to_a_limit():
    few = Grammars(lambda: Guidance(VOCABULARY, SIZE, (EOS,)), SIZE, (EOS,))
    for number in range(MAX_KEPT + 9):
        few.prepare(SamplingParams(constraint=Constraint(f'start: "{number}"')))
    assert len(few._kept) == MAX_KEPT


def test_without_a_backend_requests_with_constraints_are_refused():
    def load() -> Guidance:
        raise GrammarError("no vocabulary")

    absent = Grammars(load, SIZE, (EOS,))
    absent.wait_loaded()
    assert absent.prepare(SamplingParams()) is None
    with pytest.raises(InvalidRequest, match="no vocabulary"):
        absent.prepare(SamplingParams(constraint=DIGITS))


def test_masks_of_several_sequences_are_computed_together_and_one_that_failed_ends_alone():
    guides = [guide_of(constraint=DIGITS), guide_of(), guide_of(constraint=DIGITS), guide_of(constraint=DIGITS)]
    guides.append(guide_of(constraint=DIGITS, reasoning=THINKING))
    for guide, text in zip(guides, ["4", "x", "x", "", "Is"], strict=True):
        guide.take(ids(text))
    matcher = guides[3].asked
    assert matcher is not None
    with pytest.raises(GrammarError):
        matcher.consume(ids("x"))  # as if the library had failed after the sequence was asked
    grammars().update(guides)
    digits = {ids(digit)[0] for digit in "0123456789"}
    assert allowed(guides[0]) == digits
    assert allowed(guides[1]) is None
    assert [guide.error is not None for guide in guides] == [False, False, True, True, False]
    assert allowed(guides[4]) == set(range(SIZE)) - {EOS}


def test_a_panic_of_the_library_ends_the_sequences_with_grammars_and_no_others(monkeypatch: pytest.MonkeyPatch):
    """It was raised in the engine's step: every request ended."""

    class Panic(BaseException):
        pass

    def panic(*arguments: object) -> None:
        raise Panic

    own = Grammars(lambda: Guidance(VOCABULARY, SIZE, (EOS,)), SIZE, (EOS,))
    table = GuideTable(own, 3)
    table.admit(0, SamplingParams(constraint=DIGITS), [])
    table.admit(1, SamplingParams(reasoning=THINKING), [])
    held = table.held([0, 1])
    assert [each.guide.result().error for each in held] == [None, None]
    monkeypatch.setattr(Guidance, "fill", panic)
    table.take(held, [ids("4")[0], ids("x")[0]])
    assert [each.guide.result().error is None for each in table.held([0, 1])] == [False, True]
    monkeypatch.setattr(Guidance, "compile", panic)
    table.admit(2, SamplingParams(constraint=Constraint("start: /b/")), [])
    assert table.held([2])[0].guide.result().error is not None


FORCED = Constraint(r'''start: "{\"name\": \"" /[a-z]{1,3}/ "\", \"number\": " /[0-9]/ "} }"''')


def test_the_tokens_of_a_text_without_a_choice_are_forced():
    guide = guide_of(constraint=FORCED)
    run = list(guide.forced)
    assert VOCABULARY.decode(run) == '{"name": "'
    assert allowed(guide) == {run[0]}, "also where the same text could begin with another token"
    assert allowed(follow(guide, run[:1])) == {run[1]}
    follow(guide, run[1:])
    assert not guide.forced
    assert {VOCABULARY.decode([token_id])[:1] for token_id in allowed(guide) or ()} <= set("abcdefghijklmnopqrstuvwxyz")


def test_the_token_that_completes_a_text_is_not_forced():
    guide = guide_of('{"name": "a", "number": 7', constraint=FORCED)
    assert not guide.is_finished
    run = list(guide.forced)
    assert not follow(guide, run).is_finished
    (last,) = allowed(guide) or ()
    assert VOCABULARY.decode([*run, last]) == "} }"
    assert follow(guide, [last]).is_finished


def test_nothing_is_forced_where_another_rule_may_forbid_it():
    for sampling in ({"logit_bias": {5: -1.0}}, {"min_tokens": 3}, {"logprobs": 0}, {"bad_word_ids": ((5, 6),)}):
        assert not guide_of(constraint=FORCED, **sampling).forced


def test_the_end_of_a_reasoning_whose_budget_is_used_up_is_forced():
    thinking = Reasoning(end="</think>", budget=1, forced_end="Enough.</think>")
    guide = follow(guide_of(reasoning=thinking, constraint=DIGITS), ids("a"))
    assert VOCABULARY.decode(guide.forced) == "Enough.</think>"
    assert allowed(follow(guide, list(guide.forced))) == allowed(guide_of(constraint=DIGITS))
