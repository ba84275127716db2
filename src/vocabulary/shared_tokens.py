"""SharedTokens: which tokens two vocabularies have in common, for a draft model with another one than the model's.

Tokens are the same if they stand for the same bytes, and special tokens if they have the same name. Sequences are
translated token by token, so that each has as many tokens in both vocabularies: the draft model gets the longest end of
a token's bytes that is a token of its own. That is another text only for the tokens that it does not have, and a draft
is a guess.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers

from ..config import ModelFilesError
from .files import TokenizerError, add_missing_tokens, read_vocabulary
from .pieces import piece_bytes, piece_kind

_LEAST_SHARE = 0.1  # of the draft model's tokens that the model must have
_Name = tuple[bool, bytes]  # whether a token is special, and its bytes


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """
    translated: for each id of the model, the id that the draft model gets.
    model_ids, draft_ids: ids of the tokens that both have, by the model's id.
    is_identity: each token of the model has the same id in both, so that only further rows differ, as of paddings.
    """

    translated: npt.NDArray[np.int64]
    model_ids: npt.NDArray[np.int64]
    draft_ids: npt.NDArray[np.int64]
    is_identity: bool


@functools.lru_cache(maxsize=1)
def shared_tokens(model: Path, mode: str, vocab_size: int, draft: Path, draft_vocab_size: int) -> SharedTokens:
    """Compare the vocabularies of two folders. The result is kept: it is needed before and after weights load.

    Args:
        mode: as for `read_vocabulary`, of the model's.
        vocab_size, draft_vocab_size: numbers of rows of the output layers; further tokens do not count.

    Raises ModelFilesError for a vocabulary that cannot be read, or if the two have hardly any token in common.
    """
    names, draft_names = _names(model, mode, vocab_size), _names(draft, "auto", draft_vocab_size)
    own, other = _first_ids(names), _first_ids(draft_names)
    pairs = sorted((own[name], other[name]) for name in own.keys() & other.keys())
    if len(pairs) < _LEAST_SHARE * len(other):
        raise _error(f"{draft}: {len(pairs)} of its {len(other)} tokens are tokens of the model, too few for drafts")
    translated = np.zeros(vocab_size, np.int64)
    for token_id, name in names.items():
        found = other.get(name)
        translated[token_id] = _of_end(name[1], other) if found is None else found
    model_ids, draft_ids = (np.array(ids, np.int64) for ids in zip(*pairs, strict=True))
    is_identity = pairs == [(token_id, token_id) for token_id in names]
    return SharedTokens(translated, model_ids, draft_ids, is_identity)


def _names(folder: Path, mode: str, vocab_size: int) -> dict[int, _Name]:
    """The tokens of a folder, by their ids in ascending order."""
    try:
        backend, config = read_vocabulary(folder, mode)
        add_missing_tokens(backend, config)
    except TokenizerError as error:
        raise _error(str(error)) from None
    return _names_in(backend, vocab_size)


def _names_in(backend: tokenizers.Tokenizer, vocab_size: int) -> dict[int, _Name]:
    kind = piece_kind(backend)
    special = {token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special}
    names: dict[int, _Name] = {}
    for token, token_id in sorted(backend.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1]):
        if token_id < vocab_size:
            is_special = token_id in special
            text = token.encode("utf-8", "replace") if is_special else piece_bytes(backend, kind, token_id, token)
            names[token_id] = is_special, text
    return names


def _first_ids(names: dict[int, _Name]) -> dict[_Name, int]:
    """The lowest id of each token: several may stand for the same bytes."""
    return {name: token_id for token_id, name in reversed(names.items())}


def _of_end(text: bytes, ids: dict[_Name, int]) -> int:
    """The token, of those that are not special, with the longest end of a text; 0 if there is none."""
    ends = (ids.get((False, text[start:])) for start in range(len(text)))
    return next((found for found in ends if found is not None), 0)


def _error(message: str) -> ModelFilesError:
    error = ModelFilesError(message, code="M307")
    error.option = "speculative.model"
    return error
