"""Vocabularies of model folders, for the API process and for the engine."""

from ..config.checkpoint.special_tokens import special_tokens
from .files import TokenizerError, add_missing_tokens, read_vocabulary
from .pieces import piece_bytes, piece_kind
from .shared_tokens import SharedTokens, shared_tokens

__all__ = [
    "SharedTokens",
    "TokenizerError",
    "add_missing_tokens",
    "piece_bytes",
    "piece_kind",
    "read_vocabulary",
    "shared_tokens",
    "special_tokens",
]
