"""Embeddings of n-grams, which some layers add to the residual streams (PLE of Qwen4), as config.json writes them.

An n-gram is a token and the n - 1 tokens before it. For each length from 2 on, several hashes of the ids choose a row
of a table each; the rows together are the embedding of the token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .config_json import ConfigJson, ModelConfigError, shown
from .record import Record

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_SEED_STEP = 10007  # between the seeds of two layers
_MAX_TABLES = 1024  # of all layers
_MAX_FILES = 4096  # tensors of a table
_MAX_TAPS = 64  # from the first token of the convolution to the last


class NGrams(Record):
    size: int  # tokens of the longest n-gram
    width: int  # elements of the embedding of a token
    conv_width: int  # of the convolution of what is added; its taps are `size` tokens apart
    channels: int  # of the convolution: the elements of all streams
    end_id: int  # a token that ends a text: no n-gram reaches over it
    table_sizes: tuple[int, ...]  # rows of the table of each hash
    num_rows: int  # of all tables together, with padding
    num_files: int  # tensors of the checkpoint that hold the rows
    multipliers: tuple[int, ...]  # of the token ids in the hashes, by distance

    @property
    def row_width(self) -> int:
        """Elements of a row."""
        return self.width // len(self.table_sizes)

    @property
    def rows_of_files(self) -> tuple[int, ...]:
        """Rows in each tensor of the checkpoint: equally many in all, except the last ones."""
        most = -(-self.num_rows // self.num_files)
        return tuple(min(most, self.num_rows - first) for first in range(0, self.num_rows, most))

    @property
    def kept(self) -> tuple[int, int]:
        """Shape of the last inputs of the convolution."""
        return (self.conv_width - 1) * self.size, self.channels

    @property
    def activations(self) -> int:
        return self.width + 5 * self.channels


def read_ngrams(config: ConfigJson, channels: int, num_layers: int) -> list[NGrams | None]:
    """What each layer adds. channels: elements of all streams. Raises ModelConfigError."""
    given = config.get("ple_layer_ids")
    if given is None:
        given = []
    is_listed = isinstance(given, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in given)
    if not is_listed or not all(1 <= number <= num_layers for number in given):
        raise ModelConfigError(f"`ple_layer_ids` is {shown(given)}; it must list layers from 1 to {num_layers}")
    found: list[NGrams | None] = [None] * num_layers
    if not given:
        return found
    numbers = sorted(set(given))
    size, heads = config.count("ngram_size"), config.count("heads_per_ngram")
    width = config.count("ple_embed_dim", config.count("hidden_size"))
    num_tables = (size - 1) * heads
    if (num_files := config.count("split_ngram_parts")) > _MAX_FILES:
        raise ModelConfigError(f"`split_ngram_parts` is {num_files}; allowed: up to {_MAX_FILES}")
    if not 2 <= size <= 16 or num_tables * len(numbers) > _MAX_TABLES:
        raise ModelConfigError(
            f"`ngram_size` {size} with `heads_per_ngram` {heads}; allowed: up to 16, {_MAX_TABLES} tables"
        )
    if width % num_tables:
        raise ModelConfigError(f"`ple_embed_dim` is {width}, no multiple of the number of tables, {num_tables}")
    base, seed = config.count("ngram_vocab_size_base"), config.optional_int("seed") or 0
    conv_width = config.count("ple_conv_kernel_size")
    if not 1 < (conv_width - 1) * size + 1 <= _MAX_TAPS:
        raise ModelConfigError(
            f"`ple_conv_kernel_size` is {conv_width}; its taps must reach over 2 to {_MAX_TAPS} tokens"
        )
    multiple, end_id = config.count("make_ngram_vocab_size_divisible_by"), _end_id(config)
    sizes = _primes(base)
    for order, number in enumerate(numbers):
        table_sizes = tuple(next(sizes) for _ in range(num_tables))
        found[number - 1] = NGrams(
            size=size,
            width=width,
            conv_width=conv_width,
            channels=channels,
            end_id=end_id,
            table_sizes=table_sizes,
            num_rows=-(-sum(table_sizes) // multiple) * multiple,
            num_files=num_files,
            multipliers=tuple(_multipliers(config.count("vocab_size"), size, seed + _SEED_STEP * order)),
        )
    return found


def _end_id(config: ConfigJson) -> int:
    given = config.get("eos_token_id")
    first = given[0] if isinstance(given, list) and given else given
    if isinstance(first, bool) or not isinstance(first, int):
        raise ModelConfigError("`eos_token_id` must be set: n-grams do not reach over the end of a text")
    return first


def _multipliers(vocab_size: int, count: int, seed: int) -> Iterator[int]:
    """Odd numbers, whose products with token ids fit in 63 bits."""
    most = max(1, ((1 << 63) - 1) // vocab_size // 2)
    for index in range(count):
        yield 2 * (_mixed((seed + _GAMMA * (index + 1)) & _MASK) % most) + 1


def _mixed(value: int) -> int:
    """The splitmix64 generator: Steele, Lea and Flood, doi:10.1145/2660193.2660195."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _primes(first: int) -> Iterator[int]:
    """Primes from `first` on."""
    number = first
    while True:
        if number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1)):
            yield number
        number += 1
