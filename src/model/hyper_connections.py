"""Hyper-connections: a residual stream of several vectors, as the families that have it write it in config.json."""

from __future__ import annotations

from typing import Literal

from .config_json import ConfigJson
from .record import Record

# none: the residual stream is one vector. mixed: a matrix mixes the streams at each connection (DeepSeek V4).
# independent: they are not mixed (Hunyuan 4)
Kind = Literal["none", "mixed", "independent"]


class HyperConnections(Record):
    """The residual of each token is several vectors, the streams: arXiv:2409.19606, mixed as in arXiv:2512.24880.

    A mixer or a feed-forward block reads a weighted sum of the streams, and its output is added to each of them times a
    weight. All weights are computed from the streams of the token.
    """

    num_streams: int
    eps: float  # is added to the weights of the sum, and to elements and sums of the matrix
    output_scale: float = 2.0  # what the weights of an output are less than
    output_eps: float = 0.0  # is added to them
    iterations: int = 0  # of the Sinkhorn-Knopp algorithm on the matrix that mixes the streams; 0: there is no matrix

    @property
    def rows(self) -> tuple[int, ...]:
        """Weights of a token at a connection: of the sum, of the output, and the elements of the matrix."""
        each = self.num_streams, self.num_streams
        return (*each, self.num_streams**2) if self.iterations else each

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Tensors of a connection: names without its place, and shapes. hidden: elements of a stream."""
        count = sum(self.rows)
        return {"fn": (count, self.num_streams * hidden), "base": (count,), "scale": (len(self.rows),)}

    def head_shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Tensors of the weighted sum after the layers."""
        count = self.num_streams
        return {"hc_fn": (count, count * hidden), "hc_base": (count,), "hc_scale": (1,)}


def read_hyper_connections(config: ConfigJson, kind: Kind) -> HyperConnections | None:
    if kind == "none":
        return None
    found = HyperConnections(num_streams=config.count("hc_mult"), eps=config.number("hc_eps", 0, 1))
    if kind == "independent":
        scale = config.number("hc_magnitude", 0, 1e3)
        return found.model_copy(update={"output_scale": scale, "output_eps": found.eps})
    return found.model_copy(update={"iterations": config.count("hc_sinkhorn_iters")})
