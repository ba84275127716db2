"""DraftSpec: a network that drafts tokens for a model: its own layers as a ModelSpec, and what it gets of the model.

- model: a language model of its own.
- mtp: the layer for multi-token prediction that a checkpoint brings beside its layers, arXiv:2412.19437, section 2.2.
- eagle: layers that were trained for a finished model, and go on from its last hidden states, arXiv:2401.15077.
- eagle3: a layer that was trained for a finished model, and reads the input of three of its layers, arXiv:2503.01840.
- dflash: layers that attend to what some layers of the model have computed, and draft a block of tokens that see each
  other in one pass, arXiv:2602.06036.

All but the first and the last begin with the embedding of a token and what the model has computed for the token before
it. The embedding is the model's, and so is the output layer of mtp and eagle. How checkpoints describe them: mtp.py,
trained_drafts.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from .record import Record
from .spec import ModelSpec
from .tensor import Tensor, linear_tensors
from .tensors import FINAL_NORM, OUTPUT, layer_tensors

DraftKind = Literal["model", "mtp", "eagle", "eagle3", "dflash"]
JOIN, EMBEDDING_SIDE, HIDDEN_SIDE, JOIN_NORM = "fc", "embedding_norm", "hidden_norm", "input_norm"
MASK_HIDDEN = "mask_hidden"  # what is read instead of the model's hidden states of a token that is not known
TOKEN_OFFSETS = "d2t"  # of the ids of an output layer of fewer tokens, to those of the model
REMEMBERED_TOKENS = 64  # of each sequence: what the model has computed of them
OUTER_TENSORS = (*(f"{name}.weight" for name in (JOIN, EMBEDDING_SIDE, HIDDEN_SIDE, JOIN_NORM, "lm_head")), MASK_HIDDEN)


class DraftSpec(Record):
    """
    spec: of its layers. The vocabulary of `eagle3` is that of its output layer, which may have fewer tokens.
    vocab_size: of the model.
    read_layers: of the model, whose inputs it reads side by side; empty: it reads what comes after the last one.
    feeds_normed: its output after its last norm is the hidden state of the next draft; False: before it.
    has_last_norm: False: the output layer reads what comes after its last layer.
    has_join_bias: of the product that joins the embedding and the hidden state.
    hidden_first: the order of the two; False: the embedding is first.
    norms_joined: what it joins is normed before, as one vector.
    translates: a language model with other tokens than the model's: those that both have are drafted.
    mask_token_id: stands for tokens that are not known, where all of a draft is computed in one step: P-EAGLE, PARD.
        None: one token after the other is drafted.
    most_drafts: that it makes in one pass; None: any number.
    has_own_output: whether it has an output layer; else it uses the model's.
    """

    kind: DraftKind
    spec: ModelSpec
    vocab_size: int
    read_layers: tuple[int, ...] = ()
    feeds_normed: bool = False
    has_last_norm: bool = True
    has_join_bias: bool = False
    hidden_first: bool = False
    norms_joined: bool = False
    translates: bool = False
    mask_token_id: int | None = None
    most_drafts: int | None = None
    has_own_output: bool = False

    @property
    def is_block(self) -> bool:
        """Whether the drafts of a step see each other. What it reads of the model is only attended to."""
        return self.kind == "dflash"

    @property
    def norms_sides(self) -> bool:
        """Whether the embedding and the hidden state are normed before they are joined."""
        return self.kind == "mtp"

    @property
    def num_joined(self) -> int:
        """How many vectors its first product joins."""
        return len(self.read_layers) or 2

    @property
    def reads_model(self) -> bool:
        """Whether it begins with what the model has computed."""
        return self.kind != "model"


def draft_tensors(draft: DraftSpec) -> Iterator[Tensor]:
    """The tensors of a network that reads the model, under the names by which the engine reads them."""
    spec, hidden = draft.spec, draft.spec.hidden_size
    for index, layer in enumerate(spec.layers):
        for tensor in layer_tensors(spec, layer):
            yield replace(tensor, name=f"model.layers.{index}.{tensor.name}")
    norms = (FINAL_NORM,) if draft.has_last_norm else ()
    sides = (EMBEDDING_SIDE, HIDDEN_SIDE) if draft.norms_sides else (HIDDEN_SIDE,) if draft.is_block else ()
    for name in (*norms, *sides):
        yield Tensor(f"{name}.weight", (hidden,))
    yield from linear_tensors(JOIN, hidden, draft.num_joined * hidden, draft.has_join_bias)
    if draft.has_own_output:
        yield Tensor(OUTPUT, (spec.vocab_size, hidden))
    if draft.norms_joined:
        yield Tensor(f"{JOIN_NORM}.weight", (draft.num_joined * hidden,))
    if draft.mask_token_id is not None and not draft.is_block:
        yield Tensor(MASK_HIDDEN, (1, draft.num_joined * hidden))
    if spec.vocab_size != draft.vocab_size:
        yield Tensor(TOKEN_OFFSETS, (spec.vocab_size,))


def draft_shapes(draft: DraftSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of `draft_tensors`, each expert's too."""
    return {
        tensor.name.replace("{}", str(copy)): tensor.shape
        for tensor in draft_tensors(draft)
        for copy in range(tensor.copies)
    }
