"""The bytes that tokens of a vocabulary stand for within a text."""

from __future__ import annotations

import json
import re
from typing import Literal

import tokenizers

from .files import BYTE_OF_CHARACTER

PieceKind = Literal["byte_level", "sentencepiece", "other"]  # in the first two each token is a byte string

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE_STAGES = {"Replace", "ByteFallback", "Fuse", "Strip"}


def piece_kind(backend: tokenizers.Tokenizer) -> PieceKind:
    """How the tokens of a vocabulary become text."""
    if backend.decoder is None:
        return "other"
    stages = json.loads(backend.decoder.__getstate__())
    stages = stages["decoders"] if stages["type"] == "Sequence" else [stages]
    kinds = [stage["type"] for stage in stages]
    if kinds == ["ByteLevel"]:
        return "byte_level"
    replaces_only_spaces = all(
        stage["pattern"] == {"String": "\u2581"} and stage["content"] == " "
        for stage in stages
        if stage["type"] == "Replace"
    )
    if "ByteFallback" in kinds and "Fuse" in kinds and set(kinds) <= _SENTENCEPIECE_STAGES and replaces_only_spaces:
        return "sentencepiece"
    return "other"


def piece_bytes(backend: tokenizers.Tokenizer, kind: PieceKind, token_id: int, token: str) -> bytes:
    """The bytes of a token within a text; they may be a part of a character. kind: of `piece_kind`."""
    if kind == "byte_level":
        # As in the library's ByteLevel decoder: a token with any other character is literal text.
        if all(character in BYTE_OF_CHARACTER for character in token):
            return bytes(BYTE_OF_CHARACTER[character] for character in token)
        return token.encode("utf-8", "replace")
    if kind == "sentencepiece":
        match = _BYTE_FALLBACK.fullmatch(token)
        return bytes([int(match[1], 16)]) if match else token.replace("\u2581", " ").encode("utf-8", "replace")
    return backend.decode([token_id], skip_special_tokens=False).encode("utf-8", "replace")
