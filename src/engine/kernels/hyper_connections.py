"""Hyper-connections: a block reads a weighted sum of several residual streams, and its output is added to all of them.

Source: arXiv:2409.19606; streams that are mixed: arXiv:2512.24880.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer


@dataclass(frozen=True, slots=True)
class Connection:
    """What the weights of a connection are computed from.

    Its rows are those of n weights of the sum, n weights of the output, and n * n elements of the matrix that mixes n
    streams. Without a matrix they end before it, and those of a sum that nothing follows before the weights of the
    output.
    """

    matrix: torch.Tensor  # [rows, n * H] float32
    base: torch.Tensor  # [rows] float32
    scale: torch.Tensor  # [at most 3] float32: of the sum, of the output, and of the matrix
    num_streams: int
    norm_eps: float
    eps: float
    output_scale: float = 2.0
    output_eps: float = 0.0
    iterations: int = 0

    @property
    def num_gains(self) -> int:
        """Numbers of a token that `read_streams` returns for `write_streams`."""
        return len(self.base) - self.num_streams


class ReadStreams(Protocol):
    def __call__(self, streams: torch.Tensor, connection: Connection, /) -> tuple[torch.Tensor, torch.Tensor]: ...


class WriteStreams(Protocol):
    def __call__(
        self,
        added: torch.Tensor,
        num_streams: int,
        streams: torch.Tensor | None = None,
        gains: torch.Tensor | None = None,
        /,
    ) -> torch.Tensor: ...


def read_streams_reference(streams: torch.Tensor, connection: Connection) -> tuple[torch.Tensor, torch.Tensor]:
    """The input of a block, and the weights with which its output will be added.

    All follow from x = connection.matrix @ streams / rms(streams) * scale + base:

        weights of the sum       sigmoid(x) + eps
        weights of the output    output_scale * sigmoid(x) + output_eps
        matrix                   softmax(x) of each row + eps; then its columns, and `iterations` - 1 times its rows and
                                 its columns, are divided by their sum + eps

    Args:
        streams: [T, n * H], each token's streams one after the other.
    Returns:
        ([T, H] in streams' dtype, [T, rows - n] float32). Arithmetic in float32.
    """
    count = connection.num_streams
    wide = streams.float()
    x = wide @ connection.matrix.t() * torch.rsqrt(wide.square().mean(-1, keepdim=True) + connection.norm_eps)
    parts = (torch.arange(len(connection.base), device=x.device) // count).clamp(max=2)
    x = x * connection.scale[parts] + connection.base
    weights = torch.sigmoid(x[:, :count]) + connection.eps
    total = (weights.unsqueeze(2) * wide.view(len(wide), count, wide.shape[1] // count)).sum(1).to(streams.dtype)
    gains = x[:, count:].contiguous()
    gains[:, :count] = connection.output_scale * torch.sigmoid(gains[:, :count]) + connection.output_eps
    if gains.shape[1] > count:
        gains[:, count:] = _balanced(gains[:, count:].reshape(-1, count, count), connection).flatten(1)
    return total, gains


def _balanced(logits: torch.Tensor, connection: Connection) -> torch.Tensor:
    """Matrices whose rows and columns add up to nearly 1. logits: [T, n, n]."""
    matrix = logits.softmax(-1) + connection.eps
    matrix = matrix / (matrix.sum(-2, keepdim=True) + connection.eps)
    for _ in range(connection.iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + connection.eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + connection.eps)
    return matrix


def write_streams_reference(
    added: torch.Tensor, num_streams: int, streams: torch.Tensor | None = None, gains: torch.Tensor | None = None
) -> torch.Tensor:
    """Adds a block's output to the streams, which are mixed before: sum(matrix[j, i] * streams[j]) + weight[i] * added.

    Args:
        added: [T, H].
        streams, gains: as read_streams takes and returns them; None before the first layer, where each stream gets what
            is added.
    Returns:
        [T, n * H] in the dtype of added, rounded once.
    """
    if streams is None or gains is None:
        return added.repeat(1, num_streams)
    before = streams.float().view(len(streams), num_streams, added.shape[1])
    if gains.shape[1] > num_streams:
        before = gains[:, num_streams:].reshape(-1, num_streams, num_streams).transpose(1, 2) @ before
    return (before + gains[:, :num_streams, None] * added.float().unsqueeze(1)).flatten(1).to(added.dtype)


def check_streams(
    added: torch.Tensor, num_streams: int, streams: torch.Tensor | None, gains: torch.Tensor | None
) -> None:
    """Raises ValueError if the arguments of `write_streams` do not fit together."""
    if streams is None or gains is None:
        return
    if streams.shape != (len(added), num_streams * added.shape[1]) or len(gains) != len(added):
        raise ValueError(
            f"{num_streams} streams of {tuple(streams.shape)}, to which {tuple(added.shape)} is added with gains of "
            f"{tuple(gains.shape)}"
        )


def read_streams_cpu(library: CpuLibrary, dtype: torch.dtype) -> ReadStreams:
    empty = library.memory.empty
    call = library.op("read_streams", dtype, [POINTER] * 6 + [INT64] * 4 + [FLOAT] * 4 + [INT])

    def read_streams(streams: torch.Tensor, connection: Connection) -> tuple[torch.Tensor, torch.Tensor]:
        rows, width = connection.matrix.shape
        if streams.shape[1] != width:
            raise ValueError(f"streams are {tuple(streams.shape)}, the matrix {tuple(connection.matrix.shape)}")
        hidden = width // connection.num_streams
        out = empty(len(streams), hidden, dtype=dtype)
        gains = empty(len(streams), connection.num_gains, dtype=torch.float32)
        call(
            pointer(streams, dtype),
            pointer(connection.matrix, torch.float32),
            pointer(connection.base, torch.float32),
            pointer(connection.scale, torch.float32),
            out.data_ptr(),
            gains.data_ptr(),
            len(streams),
            connection.num_streams,
            hidden,
            rows,
            connection.norm_eps,
            connection.eps,
            connection.output_scale,
            connection.output_eps,
            connection.iterations,
        )
        return out, gains

    return read_streams


def write_streams_cpu(library: CpuLibrary, dtype: torch.dtype) -> WriteStreams:
    empty = library.memory.empty
    call = library.op("write_streams", dtype, [POINTER] * 3 + [INT64, POINTER] + [INT64] * 3)

    def write_streams(
        added: torch.Tensor, num_streams: int, streams: torch.Tensor | None = None, gains: torch.Tensor | None = None
    ) -> torch.Tensor:
        check_streams(added, num_streams, streams, gains)
        tokens, hidden = added.shape
        out = empty(tokens, num_streams * hidden, dtype=dtype)
        call(
            pointer(added, dtype),
            None if streams is None else pointer(streams, dtype),
            None if gains is None else pointer(gains, torch.float32),
            0 if gains is None else gains.shape[1],
            out.data_ptr(),
            tokens,
            num_streams,
            hidden,
        )
        return out

    return write_streams
