"""Vocabularies of model folders, for the API process and for the engine."""

from ..config.checkpoint.special_tokens import special_tokens
from .files import BYTE_OF_CHARACTER, TokenizerError, add_missing_tokens, read_vocabulary

__all__ = ["BYTE_OF_CHARACTER", "TokenizerError", "add_missing_tokens", "read_vocabulary", "special_tokens"]
