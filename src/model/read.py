"""ModelSpec from config.json: strictly for the families that are known (families/), else by guess.py.

    spec, config = read_config({"architectures": ["LlamaForCausalLM"], "hidden_size": 2048, ...})
    spec.layers[0].mixer    # Attention(num_heads=32, ...)

The parts of a layer are read by modules of their own: read_attention.py, latent.py, recurrent.py, experts.py.

Defaults for keys that config.json leaves out come from the transformers library, per family. Both spellings of its
releases are read: `dtype` and `torch_dtype`, `rope_parameters` and `rope_theta` with `rope_scaling`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .compressed import read_compressed
from .config_json import ConfigJson, ModelConfigError, shown
from .experts import averages_experts, read_experts
from .families import Family, family_of, known_family
from .family_settings import MAX_SCALE, flag_of, is_causal, limit_of, multiplier_of
from .feed_forwards import MLP, Experts
from .gated_residual import read_gated_residual
from .guess import guess, named_dtype
from .hyper_connections import read_hyper_connections
from .latent import read_latent
from .latent_kinds import read_latent_kinds
from .layout import Parts, read_layout
from .mixers import Attention, CompressedAttention, GatedDelta, LatentAttention, LightningAttention, Mixer
from .multipliers import read_weight_scales
from .ngrams import read_ngrams
from .quantisation_config import read_quantisation
from .read_attention import read_attentions
from .read_pooling import read_pooling
from .recurrent import adjusted_width, of_layer, read_state
from .spec import EVEN_SUMS, LayerInput, LayerSpec, ModelSpec, NormPlaces, SharedBlock, SumWeights, WeightScale

_OFTEN_READ = {"architectures", "dtype", "torch_dtype", "quantization_config"}


def read_config(values: Mapping[str, Any]) -> tuple[ModelSpec, ConfigJson]:
    """The model that config.json describes, and its language model's part of the file with the family's defaults.

    Raises ModelConfigError if it is malformed or absurd.
    """
    config, name = config_json(values), _architecture(values)
    if name is None:
        return guess(values), config
    config.read |= _OFTEN_READ
    return _read(config, values, name, known_family(name)), config


def config_json(values: Mapping[str, Any]) -> ConfigJson:
    """The language model's part of the file, with the defaults and the names of keys of its family, if it is known."""
    name = _architecture(values)
    if name is None:
        return ConfigJson(values)
    family = known_family(name)
    text = values if family.text_in is None else _text_part(values, family.text_in)
    return ConfigJson(text, family.defaults, family.own_keys)


def _architecture(values: Mapping[str, Any]) -> str | None:
    """Architecture of the model; None if its family is not known."""
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    return name if isinstance(name, str) and family_of(name) is not None else None


def _text_part(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The language model's keys; of the whole model, keys that it does not have, and whether embeddings are tied."""
    inner = values.get(key, {})
    if not isinstance(inner, Mapping):
        raise ModelConfigError(f"`{key}` must be an object: the language model's configuration")
    ropes = "rope_scaling", "rope_parameters"
    own = {name: value for name, value in values.items() if name in ropes or not isinstance(value, Mapping)}
    tied = {name: values[name] for name in ("tie_word_embeddings",) if name in values}
    return {**own, **inner, **tied}


def _read(config: ConfigJson, whole: Mapping[str, Any], name: str, family: Family) -> ModelSpec:
    hidden = config.count("hidden_size")
    if family.makes in ("tokens", "states") and family.is_causal and not is_causal(config, family):
        family = replace(family, makes="states", pools="mean")
    layers = _read_layers(config, family, hidden)
    has_output = family.makes in ("tokens", "vocabulary")
    eps = config.number(family.eps_key, 0, 1)
    return ModelSpec(
        architecture=name,
        model_type=family.model_type,
        hidden_size=hidden,
        vocab_size=config.count("vocab_size"),
        max_position_embeddings=_num_positions(config, family),
        is_tied=has_output and config.flag("tie_embedding", config.flag("tie_word_embeddings")),
        has_position_table=family.position_offset is not None,
        has_sine_positions=family.has_sine_positions,
        position_offset=family.position_offset or 0,
        num_token_types=_num_token_types(config, family),
        has_embedding_norm=family.has_embedding_norm,
        has_output_bias=has_output and flag_of(config, family.has_output_bias),
        norm=family.norm.model_copy(update={"eps": eps}),
        layers=layers,
        hyper_connections=read_hyper_connections(config, family.hyper_connections),
        rounds_embedding_scale=bool(family.rounds_embedding_scale),
        weight_scales=_weight_scales(config, family, layers[0], hidden),
        embedding_scale=_embedding_scale(config, family, hidden),
        residual_scale=_residual_scale(config, family, len(layers)),
        logits_scale=_logits_scale(config, family, hidden),
        logits_softcap=limit_of(config, family, "logits_softcap"),
        dtype=named_dtype(whole, config.values),
        quantization=read_quantisation(whole, config.values),
        is_part=family.text_in is not None,
        unsupported=tuple(_unsupported(config, family, layers)),
        generates=family.makes == "tokens",
        has_output=has_output,
        pooling=read_pooling(config, whole, family, hidden, eps, _num_token_types(config, family)),
    )


def _read_layers(config: ConfigJson, family: Family, hidden: int) -> tuple[LayerSpec, ...]:
    """All layers, of which equal ones are one object."""
    layout = read_layout(config, family.states)
    attentions = _attentions(config, family, hidden, layout)
    norms, layer_input = _norm_places(config, family), _layer_input(config, family)
    state = read_state(config, family.states)
    mlp = _mlp(config, family, hidden) if any(parts.feed_forward != "none" for parts in layout) else None
    blocks = _shared_blocks(config, layout) if family.has_blocks else {}
    gated_residual = read_gated_residual(config) if family.norms == "gated_residual" else None
    channels = hidden if gated_residual is None else hidden * gated_residual.count
    ngrams = read_ngrams(config, channels, len(layout)) if family.has_ngrams else [None] * len(layout)
    known: dict[Any, LayerSpec] = {}
    layers: list[LayerSpec] = []
    for index, parts in enumerate(layout):
        mixers: list[Mixer] = []
        if parts.has_attention:
            mixers.append(attentions[index])
        if parts.has_state and state is not None:
            mixers.append(of_layer(state, index, len(layout)))
        mixer = mixers[0] if mixers else None
        beside = mixers[1] if len(mixers) > 1 else None
        feed_forward = _feed_forward(config, family, parts, index, mlp, mixer)
        if ngrams[index] is not None and not parts.has_state:
            raise ModelConfigError(f"`ple_layer_ids` lists layer {index + 1}, which has no recurrent state", "M304")
        key = mixer, beside, feed_forward, blocks.get(index), ngrams[index], index == 0 and family.is_bare_first
        if key not in known:
            known[key] = LayerSpec(
                mixer=mixer,
                beside=beside,
                block=blocks.get(index),
                feed_forward=feed_forward,
                norms=_norms_of(norms, mixer, index, family, has_streams=gated_residual is not None),
                norm_gates=_norm_gates(config, family, feed_forward),
                input=layer_input,
                has_scalar=family.has_layer_scalars,
                sum_weights=_sum_weights(config, family, mixer),
                gated_residual=gated_residual,
                ngrams=ngrams[index],
            )
        layers.append(known[key])
    return tuple(layers)


def _norms_of(places: NormPlaces, mixer: Mixer | None, index: int, family: Family, *, has_streams: bool) -> NormPlaces:
    """Norms of a layer. places: of most layers."""
    if index == 0 and family.is_bare_first:
        return "feed_forward"
    return "inputs" if isinstance(mixer, GatedDelta) and not has_streams else places


def _norm_gates(config: ConfigJson, family: Family, feed_forward: MLP | Experts | None) -> tuple[int, ...]:
    if family.norm_gates_key is None:
        return ()
    rank = config.count(family.norm_gates_key)
    return rank, rank if isinstance(feed_forward, Experts) else 0


def _shared_blocks(config: ConfigJson, layout: Sequence[Parts]) -> dict[int, SharedBlock]:
    """The blocks before some layers, which share the weights of the first few in turn."""
    count = config.count("num_mem_blocks", 1)
    rank = config.count("adapter_rank") if config.get("adapter_rank") else 0
    adapts_attention = config.flag("use_shared_attention_adapter")
    layers = [index for index, parts in enumerate(layout) if parts.has_attention]
    return {
        index: SharedBlock(
            weights_of=None if number < count else layers[number % count],
            adapter_rank=rank,
            adapts_attention=adapts_attention,
        )
        for number, index in enumerate(layers)
    }


def _sum_weights(config: ConfigJson, family: Family, mixer: Mixer | None) -> SumWeights:
    if family.norms != "stream":
        return EVEN_SUMS
    kind = "linear_attn" if isinstance(mixer, LightningAttention) else "full_attn"

    def factor(part: str, name: str) -> float:
        return config.number(f"{part}_{name}_factor", 0, MAX_SCALE, 1.0)

    return SumWeights(
        mixer=(factor(kind, "alpha"), factor(kind, "beta")),
        feed_forward=(factor("mlp", "alpha"), factor("mlp", "beta")),
    )


def _attentions(
    config: ConfigJson, family: Family, hidden: int, layout: Sequence[Parts]
) -> Sequence[Attention | LatentAttention | CompressedAttention]:
    """Attention by layer; nothing if no layer has it."""
    if family.is_compressed:
        return read_compressed(config, len(layout))
    if family.has_latent_kinds:
        return read_latent_kinds(config, len(layout))
    if family.is_latent:
        return read_latent(
            config,
            family.index,
            len(layout),
            has_rope=family.rope_layers != "none",
            gate=family.gate,
            has_sinks=family.sinks == "all",
        )
    if any(parts.has_attention for parts in layout):
        return read_attentions(config, family, hidden, len(layout))
    return ()


def _feed_forward(
    config: ConfigJson, family: Family, parts: Parts, index: int, mlp: MLP | None, mixer: Mixer | None
) -> MLP | Experts | None:
    """The feed-forward block of a layer. mlp: of layers without experts."""
    reads_keys_of_another = isinstance(mixer, Attention) and mixer.keys_of is not None
    is_wide = reads_keys_of_another and config.flag("use_double_wide_mlp")
    experts = None
    if parts.feed_forward in ("by_index", "experts"):
        experts = read_experts(config, family.experts, index)
    if parts.feed_forward == "none":
        return None
    if experts or mlp is None:
        return experts
    return mlp.model_copy(update={"width": 2 * mlp.width}) if is_wide else mlp


def _weight_scales(config: ConfigJson, family: Family, layer: LayerSpec, hidden: int) -> tuple[WeightScale, ...]:
    if family.has_weight_scales:
        return read_weight_scales(config, layer, hidden)
    if (scale := multiplier_of(config, family, "values_scale")) != 1:  # of values: so of what follows from them
        return (WeightScale(name="self_attn.o_proj.weight", parts=((hidden, scale),)),)
    if averages_experts(config):  # the halves of shared experts come from halves of their last weights
        return (WeightScale(name="mlp.shared_experts.down_proj.weight", parts=((hidden, 0.5),)),)
    return _router_scale(layer, hidden)


def _router_scale(layer: LayerSpec, hidden: int) -> tuple[WeightScale, ...]:
    """The inputs of Gemma 4's router are divided by the root of their number: the weights of their norm are."""
    experts = layer.feed_forward
    if not isinstance(experts, Experts) or not experts.has_router_norm:
        return ()
    return (WeightScale(name="mlp.gate.norm.weight", parts=((hidden, hidden**-0.5),)),)


def _norm_places(config: ConfigJson, family: Family) -> NormPlaces:
    if config.flag("new_decoder_architecture"):  # Falcon 40B and later
        return "parallel" if config.count("num_ln_in_parallel_attn", 2) == 2 else "common"
    if family.parallel_if is not None and config.flag(family.parallel_if):
        return family.parallel_norms
    return family.norms


def _num_positions(config: ConfigJson, family: Family) -> int:
    """Tokens of the longest sequence."""
    found = config.count("max_position_embeddings")
    first = family.position_offset or 0
    if not family.counts_offset:
        return found
    if found <= first:
        raise ModelConfigError(f"`max_position_embeddings` is {found}; the first {first} are of no token")
    return found - first


def _num_token_types(config: ConfigJson, family: Family) -> int:
    key = family.num_token_types_key
    return 0 if key is None or config.get(key) == 0 else config.count(key)


def _unsupported(config: ConfigJson, family: Family, layers: Sequence[LayerSpec]) -> Iterator[str]:
    if not is_causal(config, family) and any(
        not isinstance(mixer, Attention) for layer in layers for mixer in layer.mixers
    ):
        yield "only attention can see later tokens, and the model has other layers"
    others = {key: config.get(other) for key, other in family.equal_keys.items()}
    for key, needed in {**others, **family.fixed}.items():
        name, _, inner = key.partition(".")
        found = config.get(name)
        if inner:
            found = found.get(inner) if isinstance(found, Mapping) else None
        if found is not None and found != needed:
            yield f"`{key}` is {shown(found)}; supported: {shown(needed)}"
    if (
        family.has_block_index and config.get("indexer_n_heads") is None
    ):  # transformers cannot build such a model either
        yield "`indexer_n_heads` is missing: attention without an index is not supported"


def _layer_input(config: ConfigJson, family: Family) -> LayerInput | None:
    if not family.has_layer_inputs or not config.get("hidden_size_per_layer_input"):
        return None
    return LayerInput(
        width=config.count("hidden_size_per_layer_input"),
        vocab_size=config.count("vocab_size_per_layer_input"),
        activation=config.name(family.activation_key),
    )


def _mlp(config: ConfigJson, family: Family, hidden: int) -> MLP:
    is_adjusted = family.model_type == "lfm2"
    width = 0 if is_adjusted else config.count(family.mlp_width_key, 4 * hidden)
    activation = config.name(family.activation_key)
    return MLP(
        width=adjusted_width(config) if is_adjusted else width // family.mlp_width_of,
        activation=family.activations.get(activation, activation),
        is_gated=family.is_gated,
        has_bias=flag_of(config, family.mlp_bias),
        has_down_bias=family.mlp_down_bias,
    )


def _embedding_scale(config: ConfigJson, family: Family, hidden: int) -> float:
    if not flag_of(config, family.scales_embedding):
        return multiplier_of(config, family, "embedding_scale")
    scale = math.sqrt(hidden)
    if family.rounds_embedding_scale == "bfloat16":  # 8 binary digits
        fraction, exponent = math.frexp(scale)
        return math.ldexp(round(fraction * 256), exponent - 8)
    return scale


def _residual_scale(config: ConfigJson, family: Family, num_layers: int) -> float:
    if family.has_depth_scale and config.get("scale_depth") is not None:
        return config.number("scale_depth", 0, MAX_SCALE) / math.sqrt(num_layers)
    return multiplier_of(config, family, "residual_scale")


def _logits_scale(config: ConfigJson, family: Family, hidden: int) -> float:
    if family.has_depth_scale and config.get("dim_model_base") is not None:
        return config.count("dim_model_base") / hidden
    return multiplier_of(config, family, "logits_scale") / multiplier_of(config, family, "logits_divisor")
