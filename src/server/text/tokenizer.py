"""Tokenizer: text to token ids and back, read from a model folder's `tokenizer.json`.

Holds the vocabulary, the special tokens and the folder's chat templates. Incremental decoding is in detokenizer.py,
rendering of chats in renderer.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import tokenizers
from tokenizers import AddedToken

from ...config import ModelFilesError
from ...config.checkpoint.chat_templates import TemplateSource, templates_in
from ...config.checkpoint.model_files import read_json, read_json_if_any
from ...engine.api import InvalidRequest
from ...input_file import read_file
from .length import TextLimit
from .tekken import BOS, EOS, tekken_tokenizer

T = TypeVar("T")

# Shorter texts are encoded on the event loop (about 1 ms): passing them to a thread would cost more.
INLINE_CHARS = 4096
_SLOW_S = 0.05  # for a short text; see Tokenizer.inline_chars

_MAX_TOKENIZER_BYTES = 256 << 20  # the largest in use have 35 MB
_CUT_MARGIN = 64  # tokens next to a cut in a text may differ from those of the whole text

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE_STAGES = {"Replace", "ByteFallback", "Fuse", "Strip"}


@dataclass(frozen=True, slots=True)
class Truncation:
    """A prompt longer than `num_tokens` is cut at one side."""

    num_tokens: int  # at least 1
    side: Literal["left", "right"] = "left"

    def of(self, token_ids: list[int]) -> list[int]:
        return token_ids[: self.num_tokens] if self.side == "right" else token_ids[-self.num_tokens :]


class TokenizerError(Exception):
    """The folder has no usable tokenizer. The message contains the file."""


class Tokenizer:
    """One vocabulary. Encoding is thread-safe. Use `encode_async` for long texts: it does not block the event loop.

    inline_chars: texts of at most this length may be encoded on the event loop. 0 after a short text took long: the
    patterns of some vocabularies need exponential time for some texts.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        config: dict[str, Any] | None = None,
        chat_templates: dict[str, TemplateSource] | None = None,
    ) -> None:
        """
        backend: modified: truncation and padding are disabled.
        config: the content of tokenizer_config.json.
        chat_templates: by name; a single one is named `default`.
        """
        self.backend = backend
        self.config = config or {}
        self.chat_templates = chat_templates or {}
        # Some published files contain the truncation and padding of their training, which would change prompts.
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens = _special_tokens(self.config)
        _add_missing_tokens(backend, self.config, self.special_tokens)
        self.special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.pieces = _piece_kind(backend)
        # In a byte-level vocabulary each character stands for one byte.
        byte_count = len if self.pieces == "byte_level" else lambda token: len(token.encode("utf-8", "replace"))
        self.max_token_bytes = max(map(byte_count, vocab), default=1)
        self.inline_chars = INLINE_CHARS
        # Unicode normalisation, such as NFC, may compose up to three bytes into one.
        self._max_composed = 1 if backend.normalizer is None else 3
        self._bytes: dict[int, bytes] = {}
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def load(cls, path: str | Path, mode: str = "auto") -> Tokenizer:
        """Read a model folder. Raises TokenizerError if it has no usable tokenizer.

        mode: `auto` reads tokenizer.json, or tekken.json, or converts older files if there is none; `mistral` reads
        tekken.json; `hf` loads the folder with transformers; `slow` ignores tokenizer.json.
        """
        folder = Path(path)
        config = _read_json(folder / "tokenizer_config.json")
        templates = _read_templates(folder, config)
        file, tekken = folder / "tokenizer.json", folder / "tekken.json"
        if mode == "mistral" or (mode == "auto" and not os.path.lexists(file) and os.path.lexists(tekken)):
            return cls(_read_tekken(tekken), {"bos_token": BOS, "eos_token": EOS, **config}, templates)
        if mode == "slow":
            with _without(folder, file.name) as older:
                return cls(_convert_with_transformers(older, shown=folder), config, templates)
        if mode == "hf" or not os.path.lexists(file):
            return cls(_convert_with_transformers(folder), config, templates)
        return cls(_read_tokenizer(file), config, templates)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. `add_special_tokens` adds those that tokenizer.json defines, usually a BOS token.

        The flags add_bos_token and add_eos_token of tokenizer_config.json are for older formats. With a tokenizer.json
        they have no effect, as in transformers 5. Raises InvalidRequest for a text that the library cannot encode.
        """
        return self._encoding(text, add_special_tokens=add_special_tokens).ids

    def encode_cut(self, text: str, cut: Truncation, *, add_special_tokens: bool = True) -> list[int]:
        """As `encode`, but of a longer text only the tokens that `cut` leaves, special tokens included."""
        # A text of megabytes is shortened first: tokens far from the kept ones do not change these.
        room = (cut.num_tokens + _CUT_MARGIN) * self.max_token_bytes * self._max_composed
        encoding = self._encoding(text[:room] if cut.side == "right" else text[-room:], add_special_tokens=False)
        num_special = self.backend.num_special_tokens_to_add(False) if add_special_tokens else 0
        encoding.truncate(max(0, cut.num_tokens - num_special), direction=cut.side)
        ids: list[int] = self.backend.post_process(encoding, None, add_special_tokens).ids
        return ids[: cut.num_tokens]

    def _encoding(self, text: str, *, add_special_tokens: bool) -> tokenizers.Encoding:
        """Raises InvalidRequest for a text that the library cannot encode."""
        began = time.perf_counter()
        try:
            return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        except BaseException as error:
            # Not an Exception: a panic of the library, here at the limit on steps of a pattern.
            if type(error).__name__ != "PanicException":
                raise
            raise InvalidRequest("the patterns of this model's tokenizer cannot process this text") from None
        finally:
            if len(text) <= self.inline_chars and time.perf_counter() - began > _SLOW_S:
                self.inline_chars = 0

    async def encode_async(
        self,
        text: str,
        max_tokens: int,
        *,
        param: str,
        add_special_tokens: bool = True,
        cut: Truncation | None = None,
    ) -> list[int]:
        """`TextLimit.check`, then `encode`, or `encode_cut`; a long text in a thread (the library releases the GIL)."""

        def work() -> list[int]:
            if cut is not None:
                return self.encode_cut(text, cut, add_special_tokens=add_special_tokens)
            self.text_limit(max_tokens).check(text, param=param)
            return self.encode(text, add_special_tokens=add_special_tokens)

        return work() if len(text) <= self.inline_chars else await self.run(work)

    def word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The token ids of each word, as it is at the beginning of a text and after a space."""
        spellings = [prefix + word.lstrip() for word in words for prefix in ("", " ")]
        ids = [tuple(self.encode(spelling, add_special_tokens=False)) for spelling in spellings]
        return tuple(dict.fromkeys(each for each in ids if each))

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work()` on the tokenizer's threads."""
        if self._threads is None:
            workers = max(2, min(4, os.cpu_count() or 2))
            self._threads = ThreadPoolExecutor(workers, thread_name_prefix="tokenizer")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def text_limit(self, max_tokens: int) -> TextLimit:
        """For texts that must fit into this number of tokens."""
        return TextLimit(max_tokens, self.max_token_bytes * self._max_composed)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence. Ids without a token (padding rows of a model) are ignored."""
        known = [token_id for token_id in token_ids if token_id < self.vocab_size]
        # As a batch of one: `decode` holds the GIL, a second for some million ids.
        return self.backend.decode_batch([known], skip_special_tokens=skip_special_tokens)[0]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of this token within a text; they may be a part of a character."""
        piece = self._bytes.get(token_id)
        if piece is None:
            token = self.backend.id_to_token(token_id)
            piece = b"" if token is None else self._to_bytes(token_id, token)
            self._bytes[token_id] = piece
        return piece

    def token_text(self, token_id: int) -> str:
        """The token's text; U+FFFD for a part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _to_bytes(self, token_id: int, token: str) -> bytes:
        if self.pieces == "byte_level":
            # As in the library's ByteLevel decoder: a token with any other character is literal text.
            if all(character in _BYTE_OF_CHARACTER for character in token):
                return bytes(_BYTE_OF_CHARACTER[character] for character in token)
            return token.encode("utf-8", "replace")
        if self.pieces == "sentencepiece":
            match = _BYTE_FALLBACK.fullmatch(token)
            return bytes([int(match[1], 16)]) if match else token.replace("\u2581", " ").encode("utf-8", "replace")
        return self.backend.decode([token_id], skip_special_tokens=False).encode("utf-8", "replace")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's byte alphabet: printable bytes map to themselves, the others to characters from U+0100."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(moved)}


_BYTE_OF_CHARACTER = _byte_of_character()


def _piece_kind(backend: tokenizers.Tokenizer) -> str:
    """How tokens become text: `byte_level`, `sentencepiece` (in both, each token is a byte string), or `other`."""
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


def _content(token: Any) -> str | None:
    """A token of tokenizer_config.json: a string, or an object with properties."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str | list[str]]:
    """Special tokens under the names that chat templates use."""
    named: dict[str, str | list[str]] = {}
    for name in _NAMED_TOKENS:
        content = _content(config.get(name))
        if content is not None:
            named[name] = content
    extra = config.get("extra_special_tokens", config.get("additional_special_tokens"))
    if isinstance(extra, dict):  # name -> token: the form of multimodal models
        named |= {name: content for name, token in extra.items() if (content := _content(token)) is not None}
    elif isinstance(extra, list):
        named["additional_special_tokens"] = [content for token in extra if (content := _content(token)) is not None]
    return named


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, config: dict[str, Any], special: dict[str, str | list[str]]
) -> None:
    """Add the tokens of tokenizer_config.json that tokenizer.json lacks, in the order of their ids."""
    for token_id, token in sorted(_listed_tokens(config), key=lambda item: item[0]):
        content = _content(token)
        if content is None or backend.token_to_id(content) is not None:
            continue
        flags = {name: bool(token.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        backend.add_tokens([AddedToken(content, **flags)])
        if backend.token_to_id(content) != token_id:
            raise TokenizerError(
                f"tokenizer_config.json gives {content!r} the id {token_id}, "
                f"but after tokenizer.json the next id is {backend.token_to_id(content)}"
            )
    names = [name for value in special.values() for name in ([value] if isinstance(value, str) else value)]
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [name for name in names if name not in known]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])


def _listed_tokens(config: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Ids and properties in `added_tokens_decoder`."""
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise TokenizerError("tokenizer_config.json: `added_tokens_decoder` must map ids to tokens")
    for token_id, token in listed.items():
        if not (token_id.isascii() and token_id.isdecimal() and len(token_id) < 10 and isinstance(token, dict)):
            problem = f"`added_tokens_decoder` must map ids to tokens, not {token_id[:20]!r}"
            raise TokenizerError(f"tokenizer_config.json: {problem}")
        yield int(token_id), token


def _read_tekken(file: Path) -> tokenizers.Tokenizer:
    alphabet = {byte: character for character, byte in _BYTE_OF_CHARACTER.items()}
    try:
        return tekken_tokenizer(read_json(file, _MAX_TOKENIZER_BYTES), alphabet)
    except ModelFilesError as error:
        raise TokenizerError(str(error)) from None
    except Exception as error:  # one of many types: of the file's content, or of the library
        cause = f"no `{error.args[0]}`" if isinstance(error, KeyError) else error
        raise TokenizerError(f"{file}: not a tekken vocabulary: {cause}") from None


def _read_tokenizer(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(read_file(file, _MAX_TOKENIZER_BYTES))
    except OSError as error:
        raise TokenizerError(f"{file}: cannot be read: {error.strerror}") from None
    except BaseException as error:  # bare Exception for any error in the file; a panic of Rust is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TokenizerError(f"{file}: not a tokenizer file: {error}") from None


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return read_json_if_any(file)
    except ModelFilesError as error:
        raise TokenizerError(str(error)) from None


def _read_templates(folder: Path, config: dict[str, Any]) -> dict[str, TemplateSource]:
    try:
        return templates_in(folder, config)
    except ModelFilesError as error:
        raise TokenizerError(str(error)) from None


@contextlib.contextmanager
def _without(folder: Path, name: str) -> Iterator[Path]:
    """The folder without one file: a temporary folder with links to the others."""
    with tempfile.TemporaryDirectory(prefix="stoker-tokenizer-") as links:
        for path in folder.iterdir():
            if path.is_file() and path.name != name:
                (Path(links) / path.name).symlink_to(path.resolve())
        yield Path(links)


def _convert_with_transformers(folder: Path, shown: Path | None = None) -> tokenizers.Tokenizer:
    """Load an older format (tokenizer.model, vocab.json and merges.txt), or the folder as it is, with transformers.

    shown: the folder to show in messages, if it is another one.
    """
    shown = shown or folder
    try:
        # Imported here: only such folders need transformers, which takes seconds to import.
        transformers = importlib.import_module("transformers")
        converted = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # one of many types, all of which mean that there is no tokenizer
        cause = str(error).strip().splitlines()
        has_json = (shown / "tokenizer.json").is_file()
        found = "" if has_json else "no tokenizer.json, and "
        raise TokenizerError(
            f"{shown}: {found}transformers finds no{'' if has_json else ' other'} tokenizer: "
            f"{cause[0] if cause else type(error).__name__}"
        ) from None
    backend = getattr(converted, "backend_tokenizer", None)
    if not isinstance(backend, tokenizers.Tokenizer):
        raise TokenizerError(f"{shown}: its tokenizer cannot be converted to a tokenizer.json")
    return backend
