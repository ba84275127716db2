"""Networks that draft: what each drafts is what torch computes of its weights, and no token changes by it."""

from __future__ import annotations

import copy
import json
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.drafters import AnyDrafter
from tests.slow_cases import slow
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedModel

from stoker.config import Resolved
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.core.settings import DraftSettings
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.runner.model_drafts import ModelDrafts

from .checkpoints import build, save
from .conftest import Saved
from .draft_checkpoints import (
    MASK,
    MtpLayer,
    add_mtp,
    dflash_drafts,
    eagle3_chain,
    eagle_chain,
    eagle_weights,
    load_mtp,
    mtp_by_name,
    mtp_chain,
    peagle_drafts,
    save_dflash,
    save_eagle,
    save_eagle3,
    save_peagle,
)
from .engine import Engine, resolved
from .test_drafts import SAMPLINGS, assert_same, count_logprobs, samplings
from .test_generation import FEW_BLOCKS, ONE_GROUP, make_prompts

ALONE = {"enable_prefix_caching": False}


class AlwaysDrafts(AnyDrafter):
    is_in_runner = True


def drafting(settings: Resolved, count: int = 4) -> Engine:
    """The engine of a deployment with a network, which drafts this number of tokens in every step."""
    engine = Engine(settings)
    with_drafts = DraftSettings(drafter=AlwaysDrafts(count))
    engine.scheduler = Scheduler(scheduler_settings(settings, drafting=with_drafts))
    return engine


def counted(engine: Engine) -> tuple[int, int]:
    """Drafts so far, and how many were accepted."""
    found = engine.scheduler.stats().drafts
    assert found is not None
    return found.tokens, sum(found.accepted)


def assert_no_token_changes(
    folder: Path,
    place: Path,
    speculative: dict[str, Any],
    sampling: Sequence[SamplingParams] = tuple(samplings()),
    **sections: dict[str, Any],
) -> tuple[int, int]:
    """Prompts are computed in chunks, beside answers, with shared prefixes. Returns what was counted."""
    prompts = make_prompts(len(sampling))
    expected = Engine(resolved(folder, place, scheduler=ONE_GROUP, **sections)).outputs(prompts, list(sampling))
    engine = drafting(resolved(folder, place, scheduler=ONE_GROUP, speculative=speculative, **sections))
    assert_same(engine.outputs(prompts, list(sampling)), expected)
    assert_same(engine.outputs(prompts, list(sampling)), expected)
    assert engine.scheduler.stats().prefix_hits > 0
    return counted(engine)


@pytest.mark.effect("speculative.model")
@pytest.mark.parametrize("cache", [{}, FEW_BLOCKS], ids=["", "preempted"])
@pytest.mark.parametrize("family", ["llama", slow("gemma3"), slow("deepseek_v3"), slow("qwen3_moe"), slow("gpt_oss")])
def test_a_model_that_drafts_for_itself_is_right(
    family: str, cache: dict[str, int], saved: Callable[[str], Saved], tmp_path: Path
):
    """All drafts are accepted, sampled ones too. Penalties, biases and forbidden tokens are not drafted."""
    _, folder = saved(family)
    own, changed = {"method": "draft_model", "model": str(folder)}, (3, 4, 5)
    plain = [each for index, each in enumerate(samplings()) if index % len(SAMPLINGS) not in changed]
    tokens, accepted = assert_no_token_changes(folder, tmp_path, own, plain, cache=cache)
    assert accepted == tokens > 50
    assert_no_token_changes(folder, tmp_path, own, cache=cache)


def test_a_model_of_other_weights_drafts_and_changes_nothing(saved: Callable[[str], Saved], tmp_path: Path):
    _, folder = saved("llama")
    other = save(build("qwen3"), tmp_path / "other")
    tokens, accepted = assert_no_token_changes(folder, tmp_path, {"model": str(other)})
    assert 0 < accepted < 0.5 * tokens


def test_no_log_probabilities_of_drafts_are_computed(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A draft was sampled with all that its request asks for. A client sees log-probabilities of valid tokens only."""
    folder, prompts = saved("llama")[1], make_prompts(3)
    engine = drafting(resolved(folder, tmp_path, speculative={"method": "draft_model", "model": str(folder)}))
    rows = count_logprobs(monkeypatch)
    engine.outputs(prompts, SamplingParams(seed=3, max_tokens=20, ignore_eos=True, logprobs=2))
    assert counted(engine)[1] > 20
    assert sum(rows) == 3 * 20


MODEL_TOKENS = [*string.ascii_letters, *string.digits, *(first + second for first in "abcde" for second in "fghijkl")]
DRAFT_TOKENS = [*(first + second for first in "abcde" for second in "hijklmn"), *string.digits, *string.ascii_letters]


def write_vocabulary(folder: Path, tokens: Sequence[str]) -> None:
    """The first tokens of a model, in this order."""
    vocabulary = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    vocabulary.decoder = decoders.ByteLevel()
    vocabulary.save(str(folder / "tokenizer.json"))


def test_a_draft_model_with_further_rows_is_right(saved: Callable[[str], Saved], tmp_path: Path):
    """It is the model itself with more rows, which are padding."""
    model, _ = saved("llama")
    folder, other = save(model, tmp_path / "model"), copy.deepcopy(model)
    for layer in (other.model.embed_tokens, other.lm_head):
        layer.weight = torch.nn.Parameter(torch.cat([layer.weight, 0.1 * layer.weight[:7]]))
    other.config.vocab_size = 97 + 7
    draft = save(other, tmp_path / "draft")
    for each in (folder, draft):
        write_vocabulary(each, MODEL_TOKENS)
    own = {"method": "draft_model", "model": str(draft), "use_heterogeneous_vocab": True}
    settings = resolved(folder, tmp_path, speculative=own, model={"skip_tokenizer_init": False})
    engine = drafting(settings)
    drafts = engine.runner.drafts
    assert drafts is not None
    assert drafts._network.is_capturable
    greedy = SamplingParams(temperature=0, max_tokens=12)
    assert_same(
        engine.outputs(make_prompts(4), greedy), Engine(resolved(folder, tmp_path)).outputs(make_prompts(4), greedy)
    )
    tokens, accepted = counted(engine)
    assert accepted == tokens > 20


@pytest.mark.effect("speculative.use_heterogeneous_vocab")
def test_a_draft_model_with_the_same_tokens_in_another_order_is_right(saved: Callable[[str], Saved], tmp_path: Path):
    """It is the model itself, whose rows of the embedding and of the output layer are in another order."""
    model, _ = saved("llama")
    order = torch.randperm(97, generator=torch.Generator().manual_seed(3))
    folder, tokens = save(model, tmp_path / "model"), [chr(0x100 + index) for index in range(97)]
    other = copy.deepcopy(model)
    for weight in (other.model.embed_tokens.weight, other.lm_head.weight):
        weight.data = weight.data[order]
    draft = save(other, tmp_path / "draft")
    write_vocabulary(folder, tokens)
    write_vocabulary(draft, [tokens[index] for index in order.tolist()])
    own = {"method": "draft_model", "model": str(draft), "use_heterogeneous_vocab": True}
    plain = [each for index, each in enumerate(samplings()) if index % len(SAMPLINGS) not in (3, 4, 5)]
    drafts, accepted = assert_no_token_changes(folder, tmp_path, own, plain, model={"skip_tokenizer_init": False})
    assert accepted == drafts > 50


def test_a_draft_model_with_other_tokens_drafts_what_both_have(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """For `af` and `ag`, which it does not have, it gets `f` and `g`; it does not draft `am`, which the model lacks."""
    model, _ = saved("llama")
    folder, other = save(model, tmp_path / "model"), build("qwen3", vocab_size=99)
    draft = save(other, tmp_path / "draft")
    write_vocabulary(folder, MODEL_TOKENS)
    write_vocabulary(draft, DRAFT_TOKENS)
    own = {"method": "draft_model", "model": str(draft), "use_heterogeneous_vocab": True}
    has_vocabulary = {"skip_tokenizer_init": False}
    engine = drafting(resolved(folder, tmp_path, speculative=own, cache=ALONE, model=has_vocabulary), 3)
    recorded, greedy = Drafted(engine.runner.drafts, monkeypatch), SamplingParams(temperature=0, max_tokens=12)
    found = engine.outputs(make_prompts(6), greedy)
    assert_same(found, Engine(resolved(folder, tmp_path)).outputs(make_prompts(6), greedy))
    ids = {token: index for index, token in enumerate(DRAFT_TOKENS)}
    translated = [ids.get(token, ids[token[-1]]) for token in MODEL_TOKENS]
    common = [index for index, token in enumerate(MODEL_TOKENS) if token in ids]
    assert len(common) == 87
    assert len(recorded.chains) >= 10
    with torch.no_grad():
        for known, chain in recorded.chains:
            expected = list(known)
            for _ in chain:
                logits = other(torch.tensor([[translated[index] for index in expected]])).logits[0, -1]
                best = int(logits[[translated[index] for index in common]].argmax())
                expected.append(common[best])
            assert chain == expected[len(known) :]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A model with as many layers as EAGLE-3 reads, and one before them."""
    model = build("llama", num_hidden_layers=4)
    return model, save(model, tmp_path_factory.mktemp("llama") / "model")


@pytest.mark.parametrize("cache", [{}, FEW_BLOCKS], ids=["", "preempted"])
@pytest.mark.parametrize("is_eager", [False, slow(True)], ids=["", "torch"])
def test_eagle3_changes_nothing(llama: Saved, cache: dict[str, int], is_eager: bool, tmp_path: Path):
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    tokens, _ = assert_no_token_changes(llama[1], tmp_path, own, cache=cache, model={"enforce_eager": is_eager})
    assert tokens > 50


class Drafted:
    """Records what a network drafts."""

    def __init__(self, drafts: ModelDrafts | None, monkeypatch: pytest.MonkeyPatch) -> None:
        assert drafts is not None
        self.chains: list[tuple[list[int], list[int]]] = []  # known tokens, and drafts after them
        own, table = drafts._draft, drafts._slots

        def draft(slots: Any, counts: Any) -> None:
            own(slots, counts)
            for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
                length = int(table.num_tokens[slot])
                known = table.token_ids[slot, : length + count].tolist()
                if slot not in drafts.undrafted:
                    self.chains.append((known[:length], known[length:]))

        monkeypatch.setattr(drafts, "_draft", draft)


@pytest.mark.parametrize("max_tokens", [8, 11, 64], ids=["chunks of single tokens", "chunks", "whole prompts"])
def test_eagle3_drafts_what_torch_computes(
    llama: Saved, max_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Several requests at a time, whose drafts are sometimes accepted: a token of theirs is one that it drafts.

    Without shared prefixes: what the layer keeps of the last token of one depends on the token after it.
    """
    model, folder = llama
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    scheduler = {"max_num_batched_tokens": max_tokens, "max_num_seqs": 6}
    engine = drafting(resolved(folder, tmp_path, scheduler=scheduler, speculative=own, cache=ALONE), 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    engine.outputs(make_prompts(6), SamplingParams(temperature=0, max_tokens=12))
    assert len(recorded.chains) >= 10
    assert {len(chain) for _, chain in recorded.chains} >= {1, 2}
    for known, chain in recorded.chains:
        assert chain == eagle3_chain(model, known, len(chain))


@pytest.mark.parametrize("flags", [{"norm_before_fc": True}, {"norm_output": True}], ids=" ".join)
def test_eagle3_with_further_norms(
    flags: dict[str, bool], llama: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, folder = llama
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3", **flags))}
    engine = drafting(resolved(folder, tmp_path, speculative=own, cache=ALONE), 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    engine.outputs(make_prompts(6), SamplingParams(temperature=0, max_tokens=12))
    assert len(recorded.chains) >= 10
    for known, chain in recorded.chains:
        assert chain == eagle3_chain(model, known, len(chain), **flags)


@pytest.mark.parametrize("cache", [{}, FEW_BLOCKS], ids=["", "preempted"])
def test_eagle_changes_nothing(llama: Saved, cache: dict[str, int], tmp_path: Path):
    own = {"method": "eagle", "model": str(save_eagle(tmp_path / "eagle"))}
    tokens, _ = assert_no_token_changes(llama[1], tmp_path, own, cache=cache)
    assert tokens > 50


@pytest.mark.parametrize(
    "form",
    [{}, {"num_layers": 1, "has_bias": True}, {"num_layers": 1, "speculators": True}],
    ids=["two layers", "with a bias", "of speculators"],
)
def test_eagle_drafts_what_torch_computes(
    form: dict[str, Any], llama: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without a method the files say what they hold."""
    model, folder = llama
    own = {"model": str(save_eagle(tmp_path / "eagle", **form))}
    scheduler = {"max_num_batched_tokens": 11, "max_num_seqs": 6}
    settings = resolved(folder, tmp_path, scheduler=scheduler, speculative=own, cache=ALONE)
    assert settings.speculative.method == "eagle"
    engine = drafting(settings, 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    engine.outputs(make_prompts(6), SamplingParams(temperature=0, max_tokens=12))
    assert len(recorded.chains) >= 10
    weights = eagle_weights(form.get("num_layers", 2), has_bias=form.get("has_bias", False))
    for known, chain in recorded.chains:
        assert chain == eagle_chain(model, weights, known, len(chain))


@pytest.mark.parametrize("max_tokens", [8, 64], ids=["chunks", "whole prompts"])
@pytest.mark.parametrize("form", ["of its authors", "of speculators"])
def test_peagle_drafts_what_torch_computes(
    form: str, max_tokens: int, llama: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, folder = llama
    own = {"model": str(save_peagle(tmp_path / "peagle", speculators=form == "of speculators"))}
    scheduler = {"max_num_batched_tokens": max_tokens, "max_num_seqs": 6}
    engine = drafting(resolved(folder, tmp_path, scheduler=scheduler, speculative=own, cache=ALONE), 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    engine.outputs(make_prompts(6), SamplingParams(temperature=0, max_tokens=12))
    assert {len(chain) for _, chain in recorded.chains} >= {1, 2}
    for known, chain in recorded.chains:
        assert chain == peagle_drafts(model, known, len(chain))


@pytest.mark.parametrize("cache", [{}, FEW_BLOCKS], ids=["", "preempted"])
def test_peagle_changes_nothing(llama: Saved, cache: dict[str, int], tmp_path: Path):
    own = {"method": "eagle3", "model": str(save_peagle(tmp_path / "peagle"))}
    tokens, _ = assert_no_token_changes(llama[1], tmp_path, own, cache=cache)
    assert tokens > 50


@pytest.mark.effect("speculative.parallel_drafting")
@pytest.mark.parametrize("at_once", ["auto", False])
def test_a_draft_model_with_a_mask_drafts_in_one_pass(
    at_once: str | bool, saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first draft is the same as one after the other; each further one follows masks, not drafts."""
    _, folder = saved("llama")
    other = build("qwen3")
    draft = save(other, tmp_path / "draft")
    values = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(values | {"pard_token": MASK}))
    own = {"model": str(draft), "parallel_drafting": at_once}
    engine = drafting(resolved(folder, tmp_path, speculative=own), 3)
    recorded, greedy = Drafted(engine.runner.drafts, monkeypatch), SamplingParams(temperature=0, max_tokens=10)
    found = engine.outputs(make_prompts(5), greedy)
    assert_same(found, Engine(resolved(folder, tmp_path)).outputs(make_prompts(5), greedy))
    assert max(len(chain) for _, chain in recorded.chains) == 3
    for known, chain in recorded.chains:
        masks = [MASK] * (len(chain) - 1) if at_once == "auto" else chain[:-1]
        with torch.no_grad():
            logits = other(torch.tensor([[*known, *masks]])).logits[0, -len(chain) :]
        assert chain == logits.argmax(1).tolist()


@pytest.mark.parametrize("max_tokens", [8, 64], ids=["chunks", "whole prompts"])
@pytest.mark.parametrize("has_output", [False, True], ids=["of its authors", "of speculators"])
def test_dflash_drafts_what_torch_computes(
    has_output: bool, max_tokens: int, llama: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model, folder = llama
    own = {"model": str(save_dflash(tmp_path / "dflash", speculators=has_output))}
    scheduler = {"max_num_batched_tokens": max_tokens, "max_num_seqs": 6}
    engine = drafting(resolved(folder, tmp_path, scheduler=scheduler, speculative=own, cache=ALONE), 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    engine.outputs(make_prompts(6), SamplingParams(temperature=0, max_tokens=12))
    assert {len(chain) for _, chain in recorded.chains} >= {1, 2}
    for known, chain in recorded.chains:
        assert [chain] * 2 == list(dflash_drafts(model, known, len(chain), has_output=has_output))


@pytest.mark.parametrize("cache", [{}, FEW_BLOCKS], ids=["", "preempted"])
def test_dflash_changes_nothing(llama: Saved, cache: dict[str, int], tmp_path: Path):
    own = {"method": "dflash", "model": str(save_dflash(tmp_path / "dflash"))}
    tokens, _ = assert_no_token_changes(llama[1], tmp_path, own, cache=cache)
    assert tokens > 50


FULL = {"mtp_layer_types": ["full_attention"], "mtp_mlp_layer_types": ["sparse"]}
WINDOW = {"mtp_layer_types": ["sliding_attention"], "mtp_mlp_layer_types": ["sparse"]}
MTP_FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {},
    "glm4_moe": {},
    "glm4_moe_lite": FULL,
    "deepseek_v32": FULL,
    "glm_moe_dsa": FULL | {"indexer_types": ["full"]},
    "qwen3_next": FULL,
    "qwen3_5": FULL,
    "qwen3_5_moe": FULL,
    "mellum": WINDOW,
}
STATES_THEN_FULL = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
BUILT = dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), STATES_THEN_FULL)  # the library copies the last layer
NORMED = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "mellum")
SLOW = [family if family in ("deepseek_v3", "qwen3_next") else slow(family) for family in MTP_FAMILIES]


@pytest.mark.parametrize("family", SLOW)
def test_mtp_changes_nothing(family: str, tmp_path: Path):
    folder = add_mtp(save(build(family), tmp_path / "model"))
    tokens, _ = assert_no_token_changes(folder, tmp_path, {"method": "mtp"})
    assert tokens > 50


@pytest.mark.parametrize("family", SLOW)
def test_mtp_drafts_what_the_layer_of_transformers_computes(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = build(family, **BUILT.get(family, {}))
    folder = add_mtp(save(model, tmp_path / "model"))
    engine = drafting(resolved(folder, tmp_path, speculative={"method": "mtp"}, cache=ALONE), 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    engine.outputs(make_prompts(5), SamplingParams(temperature=0, max_tokens=8))
    assert len(recorded.chains) > 10
    mtp = load_mtp(model, folder, **MTP_FAMILIES[family])
    for known, chain in recorded.chains:
        assert chain == mtp_chain(model, mtp, known, len(chain), feeds_normed=family in NORMED)


def test_the_first_of_several_layers_for_mtp_drafts_all_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = build("deepseek_v3")
    folder = add_mtp(save(model, tmp_path / "model"), num_layers=2)
    engine = drafting(resolved(folder, tmp_path, speculative={"method": "mtp"}, cache=ALONE), 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    engine.outputs(make_prompts(3), SamplingParams(temperature=0, max_tokens=8))
    assert len(recorded.chains) > 5
    mtp = load_mtp(model, folder)
    for known, chain in recorded.chains:
        assert chain == mtp_chain(model, mtp, known, len(chain), feeds_normed=False)


def mimo(tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    """MiMo is Qwen2 with a layer for drafts."""
    model = build("qwen2", use_sliding_window=False)
    folder = save(model, tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    values |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "head_dim": 16}
    (folder / "config.json").write_text(json.dumps(values))
    return model, add_mtp(folder)


def ernie(tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    model = build("ernie4_5_moe", tie_word_embeddings=False)
    return model, add_mtp(save(model, tmp_path / "model"))


def nemotron_h(tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    model = build("nemotron_h")
    return model, add_mtp(save(model, tmp_path / "model"))


def mimo_layer(model: PreTrainedModel, folder: Path) -> MtpLayer:
    of_file = {"embedding": "token_layernorm", "hidden": "hidden_layernorm", "join": "input_proj"}
    names = {part: f"model.mtp_layers.0.{name}" for part, name in (of_file | {"last": "final_layernorm"}).items()}
    return mtp_by_name(model, folder, names, {"model.mtp_layers.0.": model.model.layers[0]}, hidden_first=True)


def ernie_layer(model: PreTrainedModel, folder: Path) -> MtpLayer:
    """Its layer has no experts, as the model's first, and no last norm."""
    parts = {"embedding": "mtp_emb_norm", "hidden": "mtp_hidden_norm", "join": "mtp_linear_proj"}
    names = {part: f"model.{name}.0" for part, name in parts.items()} | {"last": ""}
    return mtp_by_name(model, folder, names, {"model.mtp_block.0.": model.model.layers[0]}, hidden_first=False)


def nemotron_h_layer(model: PreTrainedModel, folder: Path) -> MtpLayer:
    """Attention and experts are a layer each."""
    parts = {"embedding": "0.enorm", "hidden": "0.hnorm", "join": "0.eh_proj", "last": "1.final_layernorm"}
    names = {part: f"mtp.layers.{name}" for part, name in parts.items()}
    layers = {"mtp.layers.0.": model.model.layers[2], "mtp.layers.1.": model.model.layers[1]}
    return mtp_by_name(model, folder, names, layers, hidden_first=False)


@pytest.mark.parametrize(
    ("saved_model", "layer"), [(mimo, mimo_layer), (ernie, ernie_layer), (nemotron_h, nemotron_h_layer)]
)
def test_mtp_of_other_forms_drafts_what_torch_computes(
    saved_model: Callable[[Path], tuple[PreTrainedModel, Path]],
    layer: Callable[[PreTrainedModel, Path], MtpLayer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    model, folder = saved_model(tmp_path)
    settings = resolved(folder, tmp_path, speculative={"method": "mtp"}, cache=ALONE)
    engine = drafting(settings, 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    found = engine.outputs(make_prompts(5), SamplingParams(temperature=0, max_tokens=8))
    assert_same(
        found, Engine(resolved(folder, tmp_path)).outputs(make_prompts(5), SamplingParams(temperature=0, max_tokens=8))
    )
    assert len(recorded.chains) > 10
    mtp = layer(model, folder)
    for known, chain in recorded.chains:
        assert chain == mtp_chain(model, mtp, known, len(chain), feeds_normed=saved_model is not ernie)


@pytest.mark.parametrize("method", ["draft", "keep"])
def test_a_network_that_fails_is_switched_off_and_no_request_is_lost(
    method: str, llama: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    prompts = make_prompts(len(samplings()))
    expected = Engine(resolved(llama[1], tmp_path, scheduler=ONE_GROUP)).outputs(prompts, samplings())
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    engine = drafting(resolved(llama[1], tmp_path, scheduler=ONE_GROUP, speculative=own))

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("no more")

    monkeypatch.setattr(engine.runner.drafts, f"_{method}", fail)
    assert_same(engine.outputs(prompts, samplings()), expected)
    assert len([record for record in caplog.records if "switched off" in record.message]) == 1
    tokens, _ = counted(engine)
    assert_same(engine.outputs(prompts, samplings()), expected)
    assert counted(engine)[0] == tokens


def test_what_a_sequence_lacks_is_computed_late(llama: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Drafts begin when the answer is longer than what is remembered of it."""
    model, folder = llama
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    settings = resolved(folder, tmp_path, speculative=own, model={"max_model_len": 128})
    engine = drafting(settings, 3)
    drafter = engine.scheduler.settings.drafting.drafter  # type: ignore[union-attr]
    monkeypatch.setattr(
        drafter, "counts", lambda slots, room: np.where(engine.scheduler.stats().num_steps > 95, room, 0)
    )
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    engine.outputs(make_prompts(1), replace(SamplingParams(temperature=0), max_tokens=110, min_tokens=110))
    assert recorded.chains
    for known, chain in recorded.chains:
        assert len(known) > 80
        assert chain == eagle3_chain(model, known, len(chain))


def chains_are_right(model: PreTrainedModel, chains: list[tuple[list[int], list[int]]]) -> list[bool]:
    return [chain == eagle3_chain(model, known, len(chain)) for known, chain in chains]


def test_a_prompt_that_goes_on_after_what_another_has_computed(
    llama: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two long prompts are computed at the same time, and differ in their last token. The network's keys of blocks that
    both have were written again, from what was never remembered, and others found them later."""
    model, folder = llama
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    sections = {"scheduler": {"max_num_batched_tokens": 24}, "model": {"max_model_len": 128}}
    engine = drafting(resolved(folder, tmp_path, speculative=own, **sections), 3)
    recorded = Drafted(engine.runner.drafts, monkeypatch)
    common = [3 + (7 * place) % 90 for place in range(90)]
    engine.outputs([[*common, 5], [*common, 6]], SamplingParams(temperature=0, max_tokens=10))
    right = chains_are_right(model, recorded.chains)
    # What the layer keeps of the last common token depends on the token after it: the second one may drift by that.
    assert len(right) > 4
    assert sum(right) >= 0.7 * len(right)


def test_the_next_turn_has_drafts_too(llama: Saved, tmp_path: Path):
    """The end of an answer, which the network had not computed, was forgotten, and so was the rest of the prefix."""
    _, folder = llama
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    engine = drafting(resolved(folder, tmp_path, speculative=own, model={"max_model_len": 128}), 3)
    asked, greedy = list(range(5, 25)), SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    drafter = engine.scheduler.settings.drafting.drafter  # type: ignore[union-attr]
    drafter.max_tokens = 0  # nothing is drafted in the first turn
    (first,) = engine.outputs([asked], greedy)
    drafter.max_tokens = 3
    drafts = engine.runner.drafts
    assert drafts is not None
    (second,) = engine.outputs([[*asked, *first.token_ids, 30, 31]], greedy)
    assert second.num_cached_tokens >= 32
    assert not drafts.undrafted
    assert counted(engine)[0] > 10


def test_a_prefix_that_the_network_cannot_compute_ends_its_drafts(llama: Saved, tmp_path: Path):
    """What the model has computed of it is not known any more. Tokens that were no guesses were verified to the end."""
    _, folder = llama
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    engine = drafting(resolved(folder, tmp_path, speculative=own, model={"max_model_len": 128}), 3)
    asked, greedy = list(range(5, 35)), SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    (first,) = engine.outputs([asked], greedy)
    drafts = engine.runner.drafts
    assert drafts is not None
    drafts._has_keys[:] = False
    before, _ = counted(engine)
    (second,) = engine.outputs([asked], greedy)
    assert second.num_cached_tokens > 0
    assert second.token_ids == first.token_ids
    assert counted(engine)[0] - before <= 3  # of one step


def test_a_request_that_is_aborted_in_its_prompt(llama: Saved, tmp_path: Path):
    """Only what the model has computed is remembered of it."""
    _, folder = llama
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    engine = drafting(resolved(folder, tmp_path, speculative=own, model={"max_model_len": 128}), 3)
    expected = engine.generate(make_prompts(3))
    drafts = engine.runner.drafts
    assert drafts is not None
    prompt = [3 + place % 90 for place in range(100)]
    engine.scheduler.add(EngineRequest(request_id="long", inputs=RequestInputs(prompt, SamplingParams())))
    for _ in range(2):
        plan = engine.scheduler.schedule()
        assert plan is not None
        list(engine.scheduler.finish_step(plan, engine.runner.execute(plan)))
    engine.scheduler.abort("long")
    (slot,) = plan.slots.tolist()
    assert drafts._num_done[slot] == plan.num_computed[0] + plan.num_tokens[0] < len(prompt)
    assert engine.generate(make_prompts(3)) == expected
    assert not drafts.error


def test_what_a_draft_model_lacks_is_computed_in_parts(llama: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Six prompts at a time were computed in one pass of the network."""
    _, folder = llama
    sections = {"scheduler": {"max_num_batched_tokens": 24}, "model": {"max_model_len": 128}}
    own = {"method": "draft_model", "model": str(folder)}
    engine = drafting(resolved(folder, tmp_path, speculative=own, **sections), 3)
    drafts = engine.runner.drafts
    assert drafts is not None
    computed: list[int] = []
    forward = drafts._network.forward

    def counted_forward(steps: Any, *rest: Any) -> Any:
        computed.append(steps[0].num_tokens)
        return forward(steps, *rest)

    monkeypatch.setattr(drafts._network, "forward", counted_forward)
    prompts = [[3 + (place * (index + 3)) % 90 for place in range(80)] for index in range(3)]
    found = engine.outputs(prompts, SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    assert max(computed) <= 3 * 64
    assert [len(output.token_ids) for output in found] == [30] * 3
    tokens, accepted = counted(engine)
    assert accepted > 0.5 * tokens


def test_replaced_weights_forget_what_was_captured(llama: Saved, tmp_path: Path):
    """The graphs of the network read the model's embedding, which is another tensor then."""
    _, folder = llama
    own = {"method": "eagle3", "model": str(save_eagle3(tmp_path / "eagle3"))}
    engine = drafting(resolved(folder, tmp_path, speculative=own), 3)
    expected = engine.generate(make_prompts(3))
    drafts = engine.runner.drafts
    assert drafts is not None
    assert drafts._steps._graphs
    engine.runner._between_steps(lambda: None)
    assert not drafts._steps._graphs
    assert engine.generate(make_prompts(3)) == expected


def test_the_layer_of_builtin_tiny_knows_what_it_says(tmp_path: Path):
    """Most drafts of answers that the model was trained on are accepted, and no token changes."""
    tokenizer = Tokenizer.from_file(str(files("stoker") / "builtin" / "tiny" / "tokenizer.json"))
    options = ("max_num_seqs", "block_size", "enable_prefix_caching", "seed")
    asked = "<|im_start|>user\nWhat does {} mean?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    prompts = [tokenizer.encode(asked.format(option), add_special_tokens=False).ids for option in options]
    model = {"max_model_len": 256}
    greedy = SamplingParams(temperature=0, max_tokens=40, stop_token_ids=(2,))
    tiny = Path("builtin:tiny")
    expected = Engine(resolved(tiny, tmp_path, model=model)).outputs(prompts, greedy)
    own = {"model": "builtin:tiny-eagle3"}
    engine = drafting(resolved(tiny, tmp_path, model=model, speculative=own, scheduler={"max_num_batched_tokens": 64}))
    assert_same(engine.outputs(prompts, greedy), expected)
    tokens, accepted = counted(engine)
    assert accepted > 0.6 * tokens > 30
