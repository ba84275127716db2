"""Vocabularies of model folders, for the API process and for the engine."""

from .files import BYTE_OF_CHARACTER, TokenizerError, add_missing_tokens, read_vocabulary, special_tokens

__all__ = ["BYTE_OF_CHARACTER", "TokenizerError", "add_missing_tokens", "read_vocabulary", "special_tokens"]
