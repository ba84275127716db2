"""Whether a model runs on its own implementation here or on the modules of the transformers library.

The library is not imported: what is known about it before a start is in transformers_table.py and in the description.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .activations import HIDDEN_ACTS
from .config_json import ModelConfigError
from .families import family_of
from .feed_forwards import MLP
from .mixers import Attention, LatentAttention
from .rope import ROPE_KINDS
from .spec import ModelSpec
from .support import support_problem
from .transformers_table import DECODERS, PROBED, REFUSED, TESTED

Implementation = Literal["native", "transformers"]
_FIX = "set it in config.json if the model was trained as a decoder"
_ADVICE = "if the installed transformers library has it, `model.model_impl: transformers` probes and runs it there"


def implementation(spec: ModelSpec, wanted: str) -> Implementation:
    """wanted: `model.model_impl`. Raises ModelConfigError, with the reason, for a model that cannot run so."""
    if wanted != "transformers" and not (reason := support_problem(spec)):
        return "native"
    obstacle = transformers_problem(spec)
    if wanted == "transformers":
        if obstacle:
            raise ModelConfigError(f"{obstacle}, which `model.model_impl: transformers` cannot serve", "M304")
        return "transformers"
    if wanted == "native" or (obstacle and spec.architecture not in DECODERS):
        raise ModelConfigError(reason, "M304")
    if obstacle:
        raise ModelConfigError(f"{reason}; {obstacle}", "M304")
    if spec.architecture in TESTED or spec.architecture in PROBED:
        return "transformers"
    raise ModelConfigError(f"{reason}; {REFUSED.get(spec.architecture, _ADVICE)}", "M304")


def is_known_class(architecture: str) -> bool:
    """Whether a class of this build or of the library has the name, so that it needs no code of a repository."""
    return family_of(architecture) is not None or architecture in TESTED or architecture in PROBED


def is_tested(spec: ModelSpec) -> bool:
    return spec.architecture in TESTED


def transformers_problem(spec: ModelSpec) -> str:
    """The part of the model that keeps it from running on the library's modules; empty if there is none."""
    return next(_obstacles(spec), "")


def _obstacles(spec: ModelSpec) -> Iterator[str]:
    if not spec.layers or not spec.vocab_size or not spec.hidden_size:
        yield "config.json names no layers, no vocabulary or no width"
    if not spec.generates:
        yield f"{spec.architecture} generates no tokens"
    if spec.quantization is not None:
        yield "this is a quantised checkpoint (`quantization_config`)"
    if spec.architecture in DECODERS and not spec.is_decoder:
        yield f"without `is_decoder: true` {spec.architecture} sees later tokens too ({_FIX})"
    if spec.is_part:
        yield "this is a model with encoders of images or sound"
    kinds: set[str] = {mixer.kind for layer in spec.layers for mixer in layer.mixers}
    if "cross_attention" in kinds:
        yield "this is an encoder-decoder, or a model with another input than its tokens"
    if other := sorted(kinds - {"attention", "latent_attention"}):
        yield f"the model has layers with {', '.join(other).replace('_', ' ')}, which keep no keys and values"
    shapes = set()
    for layer in set(spec.layers):
        match layer.feed_forward:
            case MLP(activation=activation) if activation not in HIDDEN_ACTS:
                yield f"`hidden_act` is '{activation}'"
        match layer.mixer:
            case Attention() as mixer:
                shapes.add((mixer.num_kv_heads, mixer.head_dim))
                if mixer.is_chunked:
                    yield "the model attends in chunks of tokens"
                if mixer.rope is not None and mixer.rope.kind not in ROPE_KINDS:
                    yield f"the rope type is {mixer.rope.kind}"
            case LatentAttention() as mixer:
                shapes.add((mixer.expanded.num_kv_heads, mixer.expanded.head_dim))
                if mixer.index_heads:
                    yield "the model has an index that chooses the tokens of its attention"
    if len(shapes) > 1:
        yield "the keys and values of the model's layers differ in size"


def through_transformers(
    spec: ModelSpec, version: str = "", fused: str | None = None, *, is_apart: bool = False
) -> dict[str, str]:
    """Rows of the start-up table about a model on the library's modules.

    version: of the library, if it is known. fused: None for what a tested architecture has.
    is_apart: each sequence of a step runs separately.
    """
    if fused is None:
        fused = TESTED.get(spec.architecture, "known when the model is loaded")
    modules = "modules of transformers"
    order = "one sequence after the other" if is_apart else "op by op"
    return {
        "model": f"through transformers{f' {version}' if version else ''} (fused: {fused})",
        "activation": f"torch: {modules}",
        "decode_step": f"{order}: {modules} run between the kernels",
    }
