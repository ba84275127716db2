"""The experts of a layer, as the families that have them write them in config.json."""

from __future__ import annotations

from typing import Literal

from .config_json import ConfigJson, ModelConfigError, shown
from .feed_forwards import MLP, Experts, Routing, Scoring

Kind = (
    Literal["none", "qwen", "mixtral", "minimax", "deepseek", "deepseek_v2", "gpt_oss", "hunyuan", "ernie", "granite"]
    | Literal["llama4", "gemma4", "granite_hybrid", "nemotron_h", "lfm2", "jamba", "cohere", "mimo"]
    | Literal["deepseek_v4", "hy_v4", "phimoe"]
)
CLAMPED_SWIGLU = "clamped_swiglu"  # of gpt-oss, with alpha 1.702
SWIGLU_LIMIT = 7.0


def read_experts(config: ConfigJson, kind: Kind, index: int) -> Experts | None:
    """Read the experts; None if the layer has an MLP. Raises ModelConfigError for contradictory numbers."""
    match kind:
        case "none":
            return None
        case "qwen":
            return _qwen(config, index)
        case "mixtral":
            routing = Routing(is_renormalised=True)
            return _checked(config, "num_local_experts", config.count("intermediate_size"), routing)
        case "phimoe":
            tolerance = 2 * config.number("router_jitter_noise", 0, 1)
            routing = Routing(scoring="sparse_mixer", tolerance=tolerance)
            return _checked(config, "num_local_experts", config.count("intermediate_size"), routing)
        case "minimax":
            routing = Routing(scoring="sigmoid", is_renormalised=True, has_correction=True)
            return _checked(config, "num_local_experts", config.count("intermediate_size"), routing)
        case "deepseek":
            return _deepseek(config, index)
        case "mimo":
            experts = _deepseek(config, index)
            return experts and experts.model_copy(update={"shared_width": 0})
        case "hy_v4":
            experts = _deepseek(config, index)
            return experts and experts.model_copy(update={"gate_limit": config.number("swiglu_limit", 0, 1e6)})
        case "deepseek_v2":
            return _deepseek_v2(config, index)
        case "deepseek_v4":
            return _deepseek_v4(config, index)
        case "gpt_oss":
            return _gpt_oss(config)
        case "hunyuan":
            return _hunyuan(config, index)
        case "llama4":
            return _llama4(config, index)
        case "gemma4":
            return _gemma4(config)
        case "ernie":
            return _ernie(config, index)
        case "granite":
            return _granite(config)
        case "granite_hybrid":
            return _granite_hybrid(config)
        case "nemotron_h":
            return _nemotron_h(config)
        case "lfm2":
            return _lfm2(config, index)
        case "cohere":
            return _cohere(config, index)
        case "jamba":
            return _jamba(config, index)


def _checked(
    config: ConfigJson,
    count_key: str,
    width: int,
    routing: Routing,
    per_token: int | None = None,
) -> Experts:
    count = config.count(count_key)
    per_token = per_token or config.count("num_experts_per_tok")
    if per_token > count:
        raise ModelConfigError(f"`num_experts_per_tok` is {per_token}, but there are {count} experts")
    activation = config.name("hidden_act")
    return Experts(count=count, per_token=per_token, width=width, routing=routing, activation=activation)


def _count_key(config: ConfigJson, own: str) -> str:
    """The family's own key, unless config.json has only the one that transformers writes."""
    is_renamed = own not in config.values and "num_local_experts" in config.values
    return "num_local_experts" if is_renamed else own


def _qwen(config: ConfigJson, index: int) -> Experts | None:
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ModelConfigError("`mlp_only_layers` must be a list of layers")
    if index in dense or (index + 1) % config.count("decoder_sparse_step", 1):
        return None
    if config.get("mlp_layer_types") is not None and not _has_experts(config, index):
        return None
    routing = Routing(is_renormalised=config.flag("norm_topk_prob"))
    experts = _checked(config, _count_key(config, "num_experts"), config.count("moe_intermediate_size"), routing)
    if config.get("shared_expert_intermediate_size") is None:
        return experts
    width = config.count("shared_expert_intermediate_size")
    return experts.model_copy(update={"shared_width": width, "has_shared_gate": True})


def _deepseek(config: ConfigJson, index: int) -> Experts | None:
    return _with_groups(config, "sigmoid") if _has_experts(config, index) else None


def _deepseek_v2(config: ConfigJson, index: int) -> Experts | None:
    if config.flag("norm_topk_prob"):
        raise ModelConfigError("`norm_topk_prob` is true, which no model of this family has", "M304")
    method = config.get("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise ModelConfigError(f"`topk_method` is {shown(method)}; known: greedy, group_limited_greedy", "M304")
    if not _has_experts(config, index):
        return None
    return _with_groups(config, "softmax", has_groups=method == "group_limited_greedy")


def _deepseek_v4(config: ConfigJson, index: int) -> Experts:
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        is_listed = index < _hashed_layers(config)
    elif not isinstance(kinds, list) or index >= len(kinds) or kinds[index] not in ("hash_moe", "moe"):
        raise ModelConfigError(f"`mlp_layer_types` must say `hash_moe` or `moe` of layer {index}")
    else:
        is_listed = kinds[index] == "hash_moe"
    scorings: dict[str, Scoring] = {"sqrtsoftplus": "sqrt_softplus", "softmax": "softmax", "sigmoid": "sigmoid"}
    if (name := config.name("scoring_func")) not in scorings:
        raise ModelConfigError(f"`scoring_func` is {name}; known: {', '.join(scorings)}", "M304")
    routing = Routing(
        scoring=scorings[name],
        is_renormalised=True,
        has_correction=not is_listed,
        scale=config.number("routed_scaling_factor", 0, 1e3),
    )
    width = config.count("moe_intermediate_size")
    own = {
        "shared_width": width * config.count("n_shared_experts"),
        **dict.fromkeys(("gate_limit", "shared_gate_limit"), config.number("swiglu_limit", 0, 1e6)),
        "listed_tokens": config.count("vocab_size") if is_listed else 0,
    }
    return _checked(config, _count_key(config, "n_routed_experts"), width, routing).model_copy(update=own)


def _hashed_layers(config: ConfigJson) -> int:
    count = config.get("num_hash_layers")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ModelConfigError(f"`num_hash_layers` is {shown(count)}; it must be a number of layers")
    return count


def _has_experts(config: ConfigJson, index: int) -> bool:
    kinds = config.get("mlp_layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or index >= len(kinds) or kinds[index] not in ("dense", "sparse"):
            raise ModelConfigError(f"`mlp_layer_types` must say `dense` or `sparse` of layer {index}")
        return bool(kinds[index] == "sparse")
    listed = config.get("moe_layer_freq")
    if isinstance(listed, list):
        if index >= len(listed):
            raise ModelConfigError(f"`moe_layer_freq` must be a number, or have one for layer {index}")
        return bool(listed[index])
    first = config.get("first_k_dense_replace")
    return not (isinstance(first, int) and index < first) and index % config.count("moe_layer_freq", 1) == 0


def _with_groups(config: ConfigJson, scoring: Literal["softmax", "sigmoid"], *, has_groups: bool = True) -> Experts:
    groups, kept = (config.count("n_group", 1), config.count("topk_group", 1)) if has_groups else (1, 1)
    key = _count_key(config, "n_routed_experts")
    if config.count(key) % groups or kept > groups:
        raise ModelConfigError(f"{config.count(key)} experts cannot be chosen in {kept} of {groups} groups")
    routing = Routing(
        scoring=scoring,
        is_renormalised=scoring == "sigmoid" and config.flag("norm_topk_prob"),
        has_correction=scoring == "sigmoid",
        num_groups=groups,
        is_float32=True,
        groups_per_token=kept,
        scale=config.number("routed_scaling_factor", 0, 1e3, 1.0),
    )
    width = config.count("moe_intermediate_size")
    experts = _checked(config, key, width, routing)
    shared = config.count("shared_experts_intermediate_size", width)  # of Dots 3
    return experts.model_copy(update={"shared_width": shared * config.count("n_shared_experts", 1)})


def _gpt_oss(config: ConfigJson) -> Experts:
    experts = _checked(
        config, "num_local_experts", config.count("intermediate_size"), Routing(scoring="softmax_of_chosen")
    )
    limit = config.number("swiglu_limit", 0, 1e6, SWIGLU_LIMIT)
    activation = CLAMPED_SWIGLU if limit == SWIGLU_LIMIT else f"swiglu clamped at {limit:g}"
    return experts.model_copy(update={"has_router_bias": True, "has_bias": True, "activation": activation})


def _hunyuan(config: ConfigJson, index: int) -> Experts:
    """Experts of Hunyuan, of which some files list the numbers of each layer."""

    def of_layer(key: str) -> int | None:
        values = config.get(key)
        return (
            config.part({key: values[index]}).count(key) if isinstance(values, list) and index < len(values) else None
        )

    width = of_layer("moe_intermediate_size") or config.count(
        "moe_intermediate_size", config.count("intermediate_size")
    )
    routing = Routing(is_renormalised=True, is_float32=True)
    experts = _checked(config, "num_experts", width, routing, of_layer("num_experts_per_tok"))
    return experts.model_copy(update={"shared_width": width * (of_layer("num_shared_expert") or 1)})


def _ernie(config: ConfigJson, index: int) -> Experts | None:
    first, last = config.get("moe_layer_start_index"), config.get("moe_layer_end_index")
    if (isinstance(first, int) and index < first) or (isinstance(last, int) and 0 <= last < index):
        return None
    if (index + 1) % config.count("moe_layer_interval", 1):
        return None
    width = config.count("moe_intermediate_size")
    routing = Routing(is_renormalised=True, has_correction=True, is_float32=True)
    experts = _checked(config, "num_experts", width, routing)
    shared = config.get("moe_num_shared_experts")
    return experts.model_copy(update={"shared_width": width * shared if isinstance(shared, int) else 0})


def _llama4(config: ConfigJson, index: int) -> Experts | None:
    listed = config.get("moe_layers")
    if isinstance(listed, list):
        if index not in listed:
            return None
    elif (index + 1) % config.count("interleave_moe_layer_step", 1):
        return None
    width = config.count("intermediate_size")
    experts = _checked(config, "num_local_experts", width, Routing(scoring="sigmoid"))
    return experts.model_copy(update={"scales_input": True, "shared_width": width})


def _granite(config: ConfigJson) -> Experts:
    routing = Routing(scoring="softmax_of_chosen")
    experts = _checked(config, "num_local_experts", config.count("intermediate_size"), routing)
    if not config.get("shared_intermediate_size"):
        return experts
    return experts.model_copy(update={"shared_width": config.count("shared_intermediate_size")})


def _granite_hybrid(config: ConfigJson) -> Experts | None:
    return None if config.get("num_local_experts") == 0 else _granite(config)  # None: the shared block alone


def _nemotron_h(config: ConfigJson) -> Experts:
    """Read a layer of experts: the others are known by their names."""
    if config.get("moe_latent_size") is not None:
        raise ModelConfigError("`moe_latent_size`: experts of another width than the model are not supported", "M304")
    experts = _with_groups(config, "sigmoid")
    shared = config.count("moe_shared_expert_intermediate_size")
    return experts.model_copy(update={"shared_width": shared, "is_gated": False})


def _lfm2(config: ConfigJson, index: int) -> Experts | None:
    dense = config.get("num_dense_layers")
    if isinstance(dense, int) and index < dense:
        return None
    routing = Routing(
        scoring="sigmoid",
        is_renormalised=config.flag("norm_topk_prob"),
        has_correction=config.flag("use_expert_bias"),
        scale=config.number("routed_scaling_factor", 0, 1e3, 1.0),
    )
    return _checked(config, _count_key(config, "num_experts"), config.count("moe_intermediate_size"), routing)


def _jamba(config: ConfigJson, index: int) -> Experts | None:
    """Read the experts of one in several layers; where there is only one expert, every layer has an MLP."""
    key = _count_key(config, "num_experts")
    if config.count(key) == 1 or index not in config.periodic_layers("expert_layer", index + 1):
        return None
    return _checked(config, key, config.count("intermediate_size"), Routing())


def _gemma4(config: ConfigJson) -> Experts | None:
    if not config.flag("enable_moe_block"):
        return None
    experts = _checked(config, "num_experts", config.count("moe_intermediate_size"), Routing(is_renormalised=True))
    own = {"activation": config.name("hidden_activation")}
    beside = MLP(width=config.count("intermediate_size"), **own)
    return experts.model_copy(update={"beside": beside, "has_router_norm": True, "has_scales": True, **own})


def _cohere(config: ConfigJson, index: int) -> Experts | None:
    if not _has_experts(config, index):
        return None
    scoring = config.get("expert_selection_fn")
    if scoring not in ("softmax", "sigmoid"):
        raise ModelConfigError(f"`expert_selection_fn` is {shown(scoring)}; known: softmax, sigmoid", "M304")
    num_shared, width = config.get("num_shared_experts"), config.count("intermediate_size")
    routing = Routing(
        scoring="softmax_of_chosen" if scoring == "softmax" else "sigmoid",
        is_renormalised=scoring == "sigmoid" and config.flag("norm_topk_prob"),
        scale=0.5 if averages_experts(config) else 1.0,
    )
    experts = _checked(config, "num_experts", width, routing)
    return experts.model_copy(update={"shared_width": width * config.count("num_shared_experts") if num_shared else 0})


def averages_experts(config: ConfigJson) -> bool:
    """Whether a layer's result is the mean of its routed and its shared experts, not their sum (Cohere)."""
    strategy = config.get("shared_expert_combination_strategy")
    if strategy not in (None, "sum", "average"):
        known = "known: sum, average"
        raise ModelConfigError(f"`shared_expert_combination_strategy` is {shown(strategy)}; {known}", "M304")
    return strategy == "average" and bool(config.get("num_shared_experts"))
