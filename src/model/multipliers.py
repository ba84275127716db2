"""The multipliers of Falcon-H1, as factors of its weights: multiplying the output of a linear layer is multiplying its
rows. arXiv:2507.22448, section 3.2.3."""

from __future__ import annotations

from collections.abc import Iterator

from .config_json import ConfigJson, ModelConfigError, shown
from .mixer_tensors import mamba2_parts
from .mixers import Attention, Mamba2
from .spec import LayerSpec, WeightScale

_MAX = 1e6


def read_weight_scales(config: ConfigJson, layer: LayerSpec, hidden: int) -> tuple[WeightScale, ...]:
    """Scales of the layers' tensors; all layers are alike. Raises ModelConfigError for a multiplier not above 0."""
    attention, state = layer.mixer, layer.beside
    assert isinstance(attention, Attention)
    assert isinstance(state, Mamba2)
    width, gate_up = config.count("intermediate_size"), _list(config, "mlp_multipliers", 2)
    ssm = _list(config, "ssm_multipliers", 5)
    of_inputs, of_states = _one(config, "attention_in_multiplier"), _one(config, "ssm_in_multiplier")
    keys = attention.num_kv_heads * attention.head_dim
    queries = attention.num_heads * attention.head_dim
    found = [
        *_scaled("self_attn.q_proj", [(queries, 1.0)], of_inputs, has_bias=attention.has_bias),
        *_scaled("self_attn.k_proj", [(keys, _one(config, "key_multiplier"))], of_inputs, has_bias=attention.has_bias),
        *_scaled("self_attn.v_proj", [(keys, 1.0)], of_inputs, has_bias=attention.has_bias),
        *_scaled(
            "self_attn.o_proj",
            [(hidden, _one(config, "attention_out_multiplier"))],
            has_bias=attention.has_out_bias,
        ),
        *_scaled("mamba.in_proj", list(zip(mamba2_parts(state), ssm, strict=True)), of_states, has_bias=state.has_bias),
        *_scaled("mamba.out_proj", [(hidden, _one(config, "ssm_out_multiplier"))], has_bias=state.has_out_bias),
        *_scaled("mlp.gate_proj", [(width, gate_up[0])], has_bias=config.flag("mlp_bias")),
        *_scaled("mlp.down_proj", [(hidden, gate_up[1])], has_bias=config.flag("mlp_bias")),
    ]
    return tuple(scale for scale in found if any(factor != 1 for _, factor in scale.parts))


def _scaled(
    name: str, parts: list[tuple[int, float]], of_inputs: float = 1.0, *, has_bias: bool
) -> Iterator[WeightScale]:
    """parts: rows and the factors of their outputs."""
    yield WeightScale(name=f"{name}.weight", parts=tuple((rows, factor * of_inputs) for rows, factor in parts))
    if has_bias:
        yield WeightScale(name=f"{name}.bias", parts=tuple(parts))


def _one(config: ConfigJson, key: str) -> float:
    return config.number(key, 0, _MAX, 1.0)


def _list(config: ConfigJson, key: str, count: int) -> list[float]:
    written = config.get(key)
    if written is None:
        return [1.0] * count
    if not isinstance(written, list) or len(written) != count:
        raise ModelConfigError(f"`{key}` is {shown(written)}; it must be a list of {count} numbers")
    return [config.part({key: each}).number(key, 0, _MAX) for each in written]
