"""Reads the vocabulary of a model folder: tokenizer.json, tekken.json, or an older format; or a GGUF file's.

The API process encodes and decodes with it; the engine needs its tokens for grammars.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from ..config import ModelFilesError
from ..config.checkpoint.gguf import read_gguf
from ..config.checkpoint.model_files import is_gguf, read_json, read_json_if_any
from ..config.checkpoint.special_tokens import content_of, special_tokens
from ..input_file import read_file
from ..temporary_folder import temporary_folder
from .gguf import gguf_tokenizer
from .tekken import BOS, EOS, tekken_tokenizer

_MAX_TOKENIZER_BYTES = 256 << 20  # the largest in use have 35 MB


class TokenizerError(Exception):
    """The folder has no usable tokenizer. The message contains the file."""


def read_vocabulary(folder: Path, mode: str = "auto") -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer of a model folder, and the content of tokenizer_config.json, whose tokens it may lack.

    folder: or a GGUF file, which has both in its header.
    mode: `auto` reads tokenizer.json, or tekken.json, or converts older files if there is none; `mistral` reads
    tekken.json; `hf` loads the folder with transformers; `slow` ignores tokenizer.json.

    Raises TokenizerError if there is no usable tokenizer.
    """
    if is_gguf(folder):
        return _read_gguf(folder)
    config = _read_json(folder / "tokenizer_config.json")
    file, tekken = folder / "tokenizer.json", folder / "tekken.json"
    if mode == "mistral" or (mode == "auto" and not os.path.lexists(file) and os.path.lexists(tekken)):
        return _read_tekken(tekken), {"bos_token": BOS, "eos_token": EOS, **config}
    if mode == "slow":
        with _without(folder, file.name) as older:
            return _convert_with_transformers(older, shown=folder), config
    if mode == "hf" or not os.path.lexists(file):
        return _convert_with_transformers(folder), config
    return _read_tokenizer(file), config


def _byte_of_character() -> dict[str, int]:
    """GPT-2's byte alphabet: printable bytes map to themselves, the others to characters from U+0100."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(moved)}


BYTE_OF_CHARACTER = _byte_of_character()


def add_missing_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Add the tokens of tokenizer_config.json that tokenizer.json lacks, in the order of their ids.

    Raises TokenizerError for ids that they cannot get.
    """
    for token_id, token in sorted(_listed_tokens(config), key=lambda item: item[0]):
        content = content_of(token)
        if content is None or backend.token_to_id(content) is not None:
            continue
        flags = {name: bool(token.get(name)) for name in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        backend.add_tokens([AddedToken(content, **flags)])
        if backend.token_to_id(content) != token_id:
            raise TokenizerError(
                f"tokenizer_config.json gives {content!r} the id {token_id}, "
                f"but after tokenizer.json the next id is {backend.token_to_id(content)}"
            )
    names = [
        name for value in special_tokens(config).values() for name in ([value] if isinstance(value, str) else value)
    ]
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
    alphabet = {byte: character for character, byte in BYTE_OF_CHARACTER.items()}
    try:
        return tekken_tokenizer(read_json(file, _MAX_TOKENIZER_BYTES), alphabet)
    except ModelFilesError as error:
        raise TokenizerError(str(error)) from None
    except Exception as error:  # one of many types: of the file's content, or of the library
        cause = f"no `{error.args[0]}`" if isinstance(error, KeyError) else error
        raise TokenizerError(f"{file}: not a tekken vocabulary: {cause}") from None


def _read_gguf(file: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    try:
        return gguf_tokenizer(read_gguf(file))
    except ModelFilesError as error:
        raise TokenizerError(str(error)) from None
    except BaseException as error:  # one of many types: of the header's values, or of the library, a panic of Rust too
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        cause = f"no `{error.args[0]}`" if isinstance(error, KeyError) else error
        raise TokenizerError(f"{file}: its vocabulary cannot be used: {cause}") from None


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


@contextlib.contextmanager
def _without(folder: Path, name: str) -> Iterator[Path]:
    """The folder without one file: a temporary folder with links to the others."""
    with temporary_folder("stoker-tokenizer-") as links:
        for path in folder.iterdir():
            if path.is_file() and path.name != name:
                (links / path.name).symlink_to(path.resolve())
        yield links


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
