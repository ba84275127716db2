"""BlockParts: makes the transformer blocks whose weights several layers share, and the layers that have them."""

from __future__ import annotations

from ...model.feed_forwards import MLP as MLPSpec
from ...model.mixers import Attention as AttentionSpec
from ...model.spec import LayerSpec
from ...model.spec import SharedBlock as SharedBlockSpec
from ...model.tensors import ADAPTERS, BLOCK_NORMS, SHARED_BLOCK, adapter_sizes, layer_norms
from ..layers.adapter import Adapter
from ..layers.linear import Linear
from ..layers.mlp import GatedMLP
from .feed_forward_parts import FeedForwardParts
from .mixer_parts import MixerParts
from .shared_block import SharedBlock, SharedBlockLayer


class BlockParts(MixerParts, FeedForwardParts):
    """Makes layers with a shared block, in their order: the first of those that share weights makes them."""

    def block_layer(self, index: int, spec: LayerSpec, block: SharedBlockSpec) -> SharedBlockLayer:
        prefix, hidden, of_attention = f"model.layers.{index}", self._spec.hidden_size, spec.mixer
        assert isinstance(of_attention, AttentionSpec)
        assert spec.beside is not None
        if block.weights_of is None:
            self._blocks[index] = self.shared_block(f"{prefix}.{SHARED_BLOCK}", spec)
        shared = self._blocks[index if block.weights_of is None else block.weights_of]
        sizes = adapter_sizes(hidden, spec)
        gate_up = {name: sizes.pop(name) for name in ("gate_up_proj",) if name in sizes}
        of_qkv, of_gate_up = (
            self.adapter(prefix, parts, block.adapter_rank) if parts else None for parts in (sizes, gate_up)
        )
        return SharedBlockLayer(
            shared,
            self.attention(f"{prefix}.{SHARED_BLOCK}.self_attn", of_attention, weights_of=shared.attention),
            (of_qkv, of_gate_up),
            self.linear(prefix, {"linear": hidden}, hidden, has_bias=False),
            self.norm(f"{prefix}.{layer_norms(spec)[0]}", hidden),
            self.mixer(prefix, spec.beside),
            self._kernels,
            has_weights=block.weights_of is None,
        )

    def shared_block(self, prefix: str, spec: LayerSpec) -> SharedBlock:
        hidden = self._spec.hidden_size
        assert isinstance(spec.mixer, AttentionSpec)
        assert isinstance(spec.feed_forward, MLPSpec)
        first, second = BLOCK_NORMS
        mlp = self.mlp(f"{prefix}.mlp", spec.feed_forward)
        assert isinstance(mlp, GatedMLP)
        return SharedBlock(
            (self.norm(f"{prefix}.{first}", 2 * hidden), self.norm(f"{prefix}.{second}", hidden)),
            self.attention(f"{prefix}.self_attn", spec.mixer, inputs=2 * hidden),
            mlp,
        )

    def adapter(self, prefix: str, sizes: dict[str, tuple[int, int]], rank: int) -> Adapter:
        """sizes: numbers of outputs and inputs by part. The weights are not quantised: they are small."""

        def linear(parts: dict[str, int], inputs: int) -> Linear:
            named = {f"{prefix}.{ADAPTERS}.{name}": rows for name, rows in parts.items()}
            return Linear(named, inputs, False, self._kernels, self._dtype, self._device)

        inputs = next(iter(sizes.values()))[1]
        ups = [linear({f"{name}.1": outputs}, rank) for name, (outputs, _) in sizes.items()]
        return Adapter(linear({f"{name}.0": rank for name in sizes}, inputs), ups, self._kernels)
