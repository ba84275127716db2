"""Pooling: what a model makes of a whole text: vectors, scores of labels, or a vector for each token.

A head of this kind takes the hidden states of a prompt, after the final norm. Its layers before the pool are applied to
each token and those after it to what is pooled. `dimensions` and activations are not the head's: the caller applies
them to its outputs, in float32 (`stoker.pooled`).

Source: sentence-transformers 6 (modules.json and the configurations beside it) and transformers 5.
"""

from __future__ import annotations

from typing import Literal

from .record import Record

# What is made of a text: a vector; scores of labels, or one score; a vector of each token; scores of each token;
# weights of the tokens of the vocabulary, of which most are zero
PoolTask = Literal["embed", "classify", "token_embed", "token_classify", "sparse"]
# Which tokens a result is made of: the first; the last; the mean of all; their sum over the square root of their
# number; the mean with weights 1, 2, ...; the largest of each element
PoolMode = Literal["cls", "last", "mean", "mean_sqrt", "weighted_mean", "max"]
# Applied to the outputs of a layer of a head; log1p_relu: log(1 + max(0, x)), of SPLADE
DenseActivation = Literal["none", "tanh", "relu", "silu", "gelu", "gelu_tanh", "sigmoid", "log1p_relu"]
# Applied to outputs by the caller: vectors get length 1; of all labels; of each label
PoolActivation = Literal["none", "normalize", "softmax", "sigmoid", "relu"]
OUTPUT_LAYER = "lm_head"
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


class PoolNorm(Record):
    """Layer norm of a head. name: its tensors are `name.weight` and `name.bias`."""

    name: str
    eps: float
    has_bias: bool


class PoolDense(Record):
    """A linear layer of a head, and what comes after it.

    name: its tensors are `name.weight` and `name.bias`, under the names of the description's tensors. `OUTPUT_LAYER` is
        the model's output layer, whose products are computed in the model's dtype.
    rows: of the output layer, as (row, row that is subtracted from it, if one is); None: all of them as they are. So
        the two rows that say yes and no make a score.
    adds_input: its input is added to what the activation returns.
    file: has its tensors, relative to the model's folder; None: the model's own files have them.
    """

    name: str
    inputs: int
    outputs: int
    has_bias: bool = True
    activation: DenseActivation = "none"
    adds_input: bool = False
    norm: PoolNorm | None = None  # after the activation
    rows: tuple[tuple[int, int | None], ...] | None = None
    file: str | None = None


class PoolHead(Record):
    """One result that a model makes of a prompt.

    modes: several are side by side in a vector; none of a head that has a result for each token.
    before, after: layers before and after the pool.
    skips_first, skips_last: tokens at the ends of a text whose results the caller leaves out.
    """

    task: PoolTask
    modes: tuple[PoolMode, ...] = ("last",)
    before: tuple[PoolDense, ...] = ()
    after: tuple[PoolDense, ...] = ()
    activation: PoolActivation = "none"
    includes_prompt: bool = True  # False: tokens of an instruction before the text are not pooled
    width: int  # elements of an output
    skips_first: int = 0
    skips_last: int = 0
    dimensions: tuple[int, ...] = ()  # to which a vector may be cut (Matryoshka), ascending; empty with `any_dimension`
    any_dimension: bool = False  # it may be cut to any number of elements

    @property
    def needs_all(self) -> bool:
        """Whether a prompt must be computed in one step: not only its last token is needed."""
        return self.modes != ("last",)

    @property
    def needs_first(self) -> bool:
        """Whether only the hidden state of the first token is needed: the last layer computes no other then."""
        return self.modes == ("cls",) and not self.before


class Pooling(Record):
    """The heads of a model that make no tokens, and what their callers must know.

    named_prompts: names, and texts that are written before a text.
    pair: how two texts become one prompt: `tokenizer` by its post-processor, or a template with {query} and
        {document}, and perhaps {instruction}, which is encoded without further special tokens.
    """

    heads: tuple[PoolHead, ...]
    labels: tuple[str, ...] = ()  # of `classify` and `token_classify`
    named_prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str | None = None
    similarity: Similarity = "cosine"
    max_length: int | None = None  # tokens; a longer text is cut where the model's own files say so
    lowers_case: bool = False
    pair: str = "tokenizer"
    instruction: str = ""  # in place of {instruction} in the template, unless a request has another one
    logit_mean: float = 0.0  # is subtracted from scores before their activation
    logit_sigma: float = 1.0  # then divides them
    default_dimensions: int | None = None  # of embeddings of requests that name none; None: they are not cut
    token_types: int = 0  # of a second text; 0: the model has none
    step_token: int | None = None  # the results of a process reward model are those of these tokens
    query_marker: str | None = None  # late interaction (ColBERT)
    document_marker: str | None = None
    query_length: int | None = None  # tokens up to which a query is filled
    query_filler: int | None = None  # the token with which it is filled
    skipped_tokens: tuple[int, ...] = ()  # of a document: their vectors are not compared

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by name that are written before a text."""
        return dict(self.named_prompts)

    @property
    def layers(self) -> tuple[PoolDense, ...]:
        """Layers of all heads with tensors of their own, each once."""
        every = (layer for head in self.heads for layer in (*head.before, *head.after))
        return tuple({layer.name: layer for layer in every if layer.name != OUTPUT_LAYER}.values())

    @property
    def reads_output(self) -> bool:
        """Whether a head has the model's output layer."""
        return any(layer.name == OUTPUT_LAYER for head in self.heads for layer in (*head.before, *head.after))

    def head(self, task: str) -> PoolHead | None:
        return next((head for head in self.heads if head.task == task), None)
