"""Encodes a prompt with breaks: no control token is read across one. user_text.py makes them."""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Sequence

import tokenizers

from .user_text import ControlTokens


class BreakingEncoder:
    """Encodes prompts that have breaks.

    It shares the model of the tokenizer and has other control tokens: their texts are secret, and replace in a prompt
    the control tokens that the template wrote. All else is text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, control: ControlTokens) -> None:
        self._control = control
        self.backend = tokenizers.Tokenizer(backend.model)
        if backend.normalizer is not None:
            self.backend.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self.backend.pre_tokenizer = backend.pre_tokenizer
        secret = secrets.token_hex(16)
        added = backend.get_added_tokens_decoder()
        controls = {token.content: token_id for token_id, token in added.items() if token.content in control.texts}
        self._control_ids = frozenset(controls.values())
        self._secrets = {text: f"<{secret} {token_id}>" for text, token_id in controls.items()}
        for _, token in sorted(added.items()):
            other = tokenizers.AddedToken(
                self._secrets.get(token.content, token.content),
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized and token.content not in self._secrets,
                special=token.special and token.content not in self._secrets,
            )
            (self.backend.add_special_tokens if other.special else self.backend.add_tokens)([other])
        self._ids = {
            self.backend.token_to_id(self._secrets.get(token.content, token.content)): token_id
            for token_id, token in added.items()
        }

    def text_to_encode(self, text: str, breaks: Sequence[int]) -> str:
        """The prompt with secret texts in place of the control tokens that the template wrote."""
        pieces: list[str] = []
        position = start = 0
        while (found := self._control.pattern.search(text, start)) is not None:
            begin, end = found.span()
            start = begin + 1
            index = bisect_right(breaks, begin)
            if index < len(breaks) and breaks[index] < end:
                continue
            pieces += text[position:begin], self._secrets[found[0]]
            position = start = end
        return "".join([*pieces, text[position:]])

    def ids(self, encoded: Sequence[int]) -> list[int]:
        """The ids of the tokenizer for those that its model and these added tokens give."""
        ids: list[int] = []
        for each in encoded:
            if each in self._ids:
                ids.append(self._ids[each])
            elif each in self._control_ids:  # the model itself finds the token in plain text
                for character in self.backend.id_to_token(each) or "":
                    ids += self._ids_of(character)
            else:
                ids.append(each)
        return ids

    def _ids_of(self, character: str) -> list[int]:
        """Token ids of one character, without the space that a vocabulary puts before each text."""
        own = self.backend.token_to_id(character)
        pieces = [f"<0x{byte:02X}>" for byte in character.encode()] if own is None else [character]
        found = [token_id for piece in pieces if (token_id := self.backend.token_to_id(piece)) is not None]
        if len(found) < len(pieces):
            found = self.backend.encode(character, add_special_tokens=False).ids
        return [self._ids.get(each, each) for each in found]
