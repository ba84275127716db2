"""The matrices of a model by the names that the modules of a trained adapter have."""

from __future__ import annotations

import difflib
import re

from ...model.adapted_layers import linear_shapes
from ...model.families import known_family
from ...model.families.common import MULTIMODAL_NAMES
from ...model.feed_forwards import Experts
from ...model.mixers import Attention
from ...model.spec import ModelSpec
from ...model.tensors import EMBEDDING, FUSED, model_tensors
from .match import renamed, renames_of

_WEIGHT = ".weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_EXPERTS = re.compile(
    r"model\.layers\.(?P<layer>\d+)\.mlp\.experts"
    r"(?:\.(?P<part>gate_up_proj|gate_proj|up_proj|down_proj|w1|w2|w3))?(?:\.base_layer)?"
)
_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


class Targets:
    """The matrices of one model.

    shapes: [outputs, inputs] by their names in model/tensors.py, without `.weight`; the order is that of the model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.shapes = dict(linear_shapes(spec))
        # weights whose products are not adapted
        self._others = {tensor.name.removesuffix(_WEIGHT) for tensor in model_tensors(spec)} - self.shapes.keys()
        self._renames = {**MULTIMODAL_NAMES, **renames_of(spec, "hf")}

    def name_of(self, module: str) -> str:
        """The name in model/tensors.py, whether the model has it or not, of a module of the class that was trained."""
        return renamed(f"{module}{_WEIGHT}", self._renames).removesuffix(_WEIGHT)

    def parts_of(self, name: str) -> list[str]:
        """The matrices that a module consists of: itself, or the parts of a fused one in their order; none of others.

        name: as `name_of` returns it.
        """
        if name in self.shapes:
            return [name]
        place, _, last = name.rpartition(".")
        parts = [f"{place}.{part}" for part in FUSED.get(last, ())]
        return [part for part in parts if part in self.shapes]

    def experts_of(self, name: str) -> tuple[int, str | None, Experts] | None:
        """The layer, the part and the description of a module with all experts; None of any other module."""
        match = _EXPERTS.fullmatch(name)
        if match is None or int(match["layer"]) >= self.spec.num_layers:
            return None
        block = self.spec.layers[int(match["layer"])].feed_forward
        part = match["part"]
        return (int(match["layer"]), _PARTS.get(part, part), block) if isinstance(block, Experts) else None

    def why_unknown(self, name: str) -> str:
        """A sentence for a module that is no matrix of the model, with the nearest names.

        name: as `name_of` returns it.
        """
        if name.startswith(known_family(self.spec.architecture).ignored or ("\0",)):
            return "it belongs to an encoder of images or sound, and this build reads text"
        if name in self._others:
            if name == EMBEDDING.removesuffix(_WEIGHT):
                return "an embedding has `lora_embedding_A` and `lora_embedding_B`"
            return "it is no linear layer whose product this build adds to"
        match = _LAYER.match(name)
        if match is not None and int(match[1]) >= self.spec.num_layers:
            return f"the model has {self.spec.num_layers} layers"
        layer = "" if match is None else f"model.layers.{match[1]}."
        first = layer or "model.layers.0."
        own = {
            _EXPERT.sub(".experts.0.", known)
            for known in self.shapes
            if known.startswith(first) or not _LAYER.match(known)
        }
        near = difflib.get_close_matches(name, sorted(own), 3, 0.6)
        nearest = f"; the nearest {'are' if len(near) > 1 else 'is'} {', '.join(f'`{each}`' for each in near)}"
        return f"the model has no such layer{nearest if near else ''}"

    def row_pairs(self, name: str) -> int | None:
        """The size of a head whose rows are stored as neighbouring pairs, while an adapter has them in halves.

        Formats other than transformers' have the rows of queries and keys in another order: the two elements that are
        rotated together follow one another. None of matrices whose rows are in the same order.
        """
        match = _LAYER.match(name)
        if self.spec.weight_names == "hf" or match is None or known_family(self.spec.architecture).is_interleaved:
            return None
        mixer = self.spec.layers[int(match[1])].mixer
        if not isinstance(mixer, Attention) or mixer.rope is None or not mixer.rope.is_interleaved:
            return None
        return mixer.head_dim if match[2] in ("self_attn.q_proj", "self_attn.k_proj") else None

    def factor(self, name: str) -> float | None:
        """What the rows of a weight are multiplied by when it is read; None if the rows have different factors."""
        match = _LAYER.match(name)
        if match is None:
            return 1.0
        scales = [scale for scale in self.spec.weight_scales if scale.name == f"{match[2]}{_WEIGHT}"]
        factors = {factor for scale in scales for _, factor in scale.parts} or {1.0}
        return factors.pop() if len(factors) == 1 else None
