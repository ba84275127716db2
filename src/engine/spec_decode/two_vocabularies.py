"""The tokens that a model and its draft model have in common, where their vocabularies differ."""

from __future__ import annotations

from pathlib import Path

from ...config import Resolved
from ...vocabulary import SharedTokens, shared_tokens


def shared_tokens_of(resolved: Resolved) -> SharedTokens | None:
    """The tokens that the model and a draft model of another vocabulary have in common; None without one.

    Raises ModelFilesError for vocabularies that cannot be read, or that have hardly any in common.
    """
    files = resolved.model_files.draft
    if files is None or not files.draft.translates:
        return None
    model, own = resolved.model, resolved.model_spec.vocab_size
    return shared_tokens(
        Path(model.tokenizer), model.tokenizer_mode, own, Path(files.path), files.draft.spec.vocab_size
    )
