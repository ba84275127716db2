"""The index of attention to chosen blocks of tokens (QSA of Qwen4), as config.json writes it."""

from __future__ import annotations

from .config_json import ConfigJson, ModelConfigError
from .record import Record


class BlockIndex(Record):
    """Each query attends to some blocks of its context, and to the tokens after the last whole block.

    A block's key is the mean of the keys of its tokens. Its score is the sum over the heads of relu(query * key).
    """

    heads: int  # of queries
    dim: int
    block: int  # tokens
    count: int  # blocks to which a query attends at most

    @property
    def num_tokens(self) -> int:
        """A context of this many tokens is attended as a whole."""
        return self.count * self.block + self.block - 1


_KEYS = ("indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")


def read_block_index(config: ConfigJson, head_dim: int) -> BlockIndex | None:
    """Read the index; None if config.json has none. head_dim: of attention.

    Raises ModelConfigError for numbers that contradict each other.
    """
    if all(config.get(key) is None for key in _KEYS):
        return None
    heads, dim = config.count("indexer_n_heads"), config.count("indexer_head_dim")
    budget, block = config.count("indexer_budget"), config.count("indexer_compress_ratio")
    if config.count("indexer_kv_heads") != 1:
        raise ModelConfigError("`indexer_kv_heads` must be 1: all heads of the index share a key")
    if budget % block:
        raise ModelConfigError(f"`indexer_budget` is {budget}, no multiple of `indexer_compress_ratio`, {block}")
    if dim > head_dim:
        raise ModelConfigError(f"`indexer_head_dim` is {dim}; supported: at most `head_dim`, {head_dim}", "M304")
    return BlockIndex(heads=heads, dim=dim, block=block, count=budget // block)


def check_rotation(index: BlockIndex, rotary_dim: int) -> None:
    """rotary_dim: elements of a head that attention rotates, and so does the index. Raises ModelConfigError."""
    if rotary_dim > index.dim:
        raise ModelConfigError(
            f"`indexer_head_dim` is {index.dim}, less than the {rotary_dim} elements that are rotated"
        )
