"""Random layers that draft, as checkpoints have them, and what each would draft first, computed by torch alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import rms_norm, silu
from transformers import LlamaConfig, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel, PreTrainedModel
from transformers.modeling_layers import MtpModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from stoker.model.drafts import draft_shapes
from stoker.model.mtp import MTP_FORMS, mtp_spec
from stoker.model.read import read_config

HIDDEN, DRAFT_VOCAB, VOCAB = 64, 41, 97
EAGLE3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT_VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
}


DFLASH: dict[str, Any] = {
    **{name: value for name, value in EAGLE3.items() if name not in ("draft_vocab_size", "eagle_config")},
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "head_dim": 16,
    "num_hidden_layers": 2,
    "block_size": 5,
    "dflash_config": {"mask_token_id": 96, "target_layer_ids": [0, 2]},
}
INPUT_NORM = torch.linspace(0.5, 1.5, 3 * HIDDEN)  # of what EAGLE-3 joins, in layers that norm it
MASK = 96  # a token that stands for those that are not known


def save_eagle3(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A layer of EAGLE-3 with random weights, under the names of its authors."""
    folder.mkdir(parents=True)
    config = EAGLE3 | changes
    (folder / "config.json").write_text(json.dumps(config))
    weights = eagle3_weights(seed)
    if changes.get("norm_before_fc"):
        weights["input_norm.weight"] = INPUT_NORM
    save_file(weights, folder / "model.safetensors")
    return folder


def save_peagle(folder: Path, *, speculators: bool = False) -> Path:
    """Two layers of P-EAGLE with random weights, under the names of EAGLE-3, or as the library `speculators` has it."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = EAGLE3 | {"num_hidden_layers": 2, "mask_token_id": MASK}
    weights = peagle_weights()
    if speculators:
        config = {
            "speculators_model_type": "peagle",
            "transformer_layer_config": {name: config.pop(name) for name in list(EAGLE3) if name in _OF_LAYERS},
            "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
            **{name: config[name] for name in ("draft_vocab_size", "mask_token_id")},
        }
        config["transformer_layer_config"]["num_hidden_layers"] = 2
        weights = {name.replace("midlayer.", "layers.0."): each for name, each in weights.items()}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def peagle_weights() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(9)
    second = {name: each for name, each in eagle_weights().items() if name.startswith("layers.1.")}
    return {**eagle3_weights(), **second, "mask_hidden": torch.randn(1, 3 * HIDDEN, generator=random)}


@torch.no_grad()
def peagle_drafts(model: PreTrainedModel, known: list[int], count: int) -> list[int]:
    """What the layers of `save_peagle` draft after these tokens in one pass, the best token in each place."""
    weights = peagle_weights()
    states = model(torch.tensor([known]), output_hidden_states=True).hidden_states
    features = torch.cat([states[layer][0] for layer in (1, 2, 3)], 1)[:-1]
    features = torch.cat([features, weights["mask_hidden"].repeat(count - 1, 1)]) @ weights["fc.weight"].T
    inputs = model.get_input_embeddings()(torch.tensor([*known[1:], *[MASK] * (count - 1)]))
    stream = _eagle3_layer(weights, inputs, features)
    own = {name.removeprefix("layers.1."): each for name, each in weights.items() if name.startswith("layers.1.")}
    stream = stream + _attention(own, rms_norm(stream, (HIDDEN,), own["input_layernorm.weight"], 1e-5))
    stream = _after_mlp(own, stream)[-count:]
    logits = rms_norm(stream, (HIDDEN,), weights["norm.weight"], 1e-5) @ weights["lm_head.weight"].T
    best = logits.argmax(1)
    return (best + weights["d2t"][best]).tolist()


def eagle3_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * 2 / columns**0.5

    def norm() -> torch.Tensor:
        return 1 + 0.1 * torch.randn(HIDDEN, generator=random)

    order = torch.randperm(VOCAB, generator=random)[:DRAFT_VOCAB].sort().values
    return {
        "fc.weight": matrix(HIDDEN, 3 * HIDDEN),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.self_attn.q_proj.weight": matrix(HIDDEN, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": matrix(32, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": matrix(32, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
        "midlayer.post_attention_layernorm.weight": norm(),
        "midlayer.mlp.gate_proj.weight": matrix(96, HIDDEN),
        "midlayer.mlp.up_proj.weight": matrix(96, HIDDEN),
        "midlayer.mlp.down_proj.weight": matrix(HIDDEN, 96),
        "norm.weight": norm(),
        "lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN),
        "d2t": order - torch.arange(DRAFT_VOCAB),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, order, True),
    }


@torch.no_grad()
def eagle3_chain(
    model: PreTrainedModel,
    token_ids: list[int],
    count: int,
    *,
    seed: int = 0,
    norm_before_fc: bool = False,
    norm_output: bool = False,
) -> list[int]:
    """What the layer drafts after these tokens, the best token in each place.

    Each place is computed from the beginning, without a cache: the features of known tokens are the model's, and those
    of drafts are the layer's own.
    """
    weights = eagle3_weights(seed)
    states = model(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
    features = torch.cat([states[layer][0] for layer in (1, 2, 3)], 1)[:-1]
    if norm_before_fc:
        features = rms_norm(features, (3 * HIDDEN,), INPUT_NORM, 1e-5)
    features = features @ weights["fc.weight"].T
    known, drafts = list(token_ids), list[int]()
    for _ in range(count):
        inputs = model.get_input_embeddings()(torch.tensor([*known, *drafts][1:]))
        outputs = _eagle3_layer(weights, inputs, features)
        normed = rms_norm(outputs[-1:], (HIDDEN,), weights["norm.weight"], 1e-5)
        best = int((normed @ weights["lm_head.weight"].T).argmax())
        drafts.append(best + int(weights["d2t"][best]))
        features = torch.cat([features, normed if norm_output else outputs[-1:]])
    return drafts


def _eagle3_layer(weights: dict[str, torch.Tensor], inputs: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """inputs, features: [T, hidden]"""
    own = {name.removeprefix("midlayer."): each for name, each in weights.items() if name.startswith("midlayer.")}
    normed = [
        rms_norm(inputs, (HIDDEN,), own["input_layernorm.weight"], 1e-5),
        rms_norm(features, (HIDDEN,), own["hidden_norm.weight"], 1e-5),
    ]
    return _after_mlp(own, features + _attention(own, torch.cat(normed, 1)))


def _attention(own: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Causal attention of a layer, written out apart from transformers' rotation. x: [T, inputs]"""
    length = len(x)
    q, k, v = (
        (x @ own[f"self_attn.{name}_proj.weight"].T).view(length, -1, 16).transpose(0, 1) for name in ("q", "k", "v")
    )
    cos, sin = LlamaRotaryEmbedding(LlamaConfig(hidden_size=HIDDEN, num_attention_heads=4))(
        x, torch.arange(length)[None]
    )
    q, k = (each * cos + torch.cat([-each[..., 8:], each[..., :8]], -1) * sin for each in (q, k))
    k, v = (each.repeat_interleave(2, 0) for each in (k, v))
    scores = (q @ k.transpose(1, 2) / 4).masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    return (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, HIDDEN) @ own["self_attn.o_proj.weight"].T


def _after_mlp(own: dict[str, torch.Tensor], stream: torch.Tensor) -> torch.Tensor:
    x = rms_norm(stream, (HIDDEN,), own["post_attention_layernorm.weight"], 1e-5)
    gated = silu(x @ own["mlp.gate_proj.weight"].T) * (x @ own["mlp.up_proj.weight"].T)
    return stream + gated @ own["mlp.down_proj.weight"].T


EAGLE: dict[str, Any] = {
    **{name: value for name, value in EAGLE3.items() if name not in ("draft_vocab_size", "eagle_config")},
    "architectures": ["EagleLlamaForCausalLM"],
    "num_hidden_layers": 2,
}
_SPECULATORS = {"layers.0.": "transformer.", "fc.": "fusion_fc."}


def save_eagle(folder: Path, *, num_layers: int = 2, has_bias: bool = False, speculators: bool = False) -> Path:
    """Layers of EAGLE-1 with random weights, as their authors store them, or the library `speculators`."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = EAGLE | {"num_hidden_layers": num_layers}
    weights = eagle_weights(num_layers, has_bias=has_bias)
    if speculators:
        del config["architectures"]
        config = {"speculators_model_type": "eagle", "transformer_layer_config": config, "layernorms": False}
        for old, new in _SPECULATORS.items():
            weights = {
                new + name.removeprefix(old) if name.startswith(old) else name: weights[name] for name in weights
            }
        weights["lm_head.weight"] = torch.zeros(VOCAB, HIDDEN)
    weights["embed_tokens.weight"] = torch.zeros(VOCAB, HIDDEN)  # the model's is read
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def eagle_weights(num_layers: int = 2, *, has_bias: bool = False) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * 2 / shape[-1] ** 0.5

    weights = {"fc.weight": normal(HIDDEN, 2 * HIDDEN)}
    if has_bias:
        weights["fc.bias"] = normal(HIDDEN)
    for index in range(num_layers):
        own = {
            "self_attn.q_proj.weight": normal(HIDDEN, HIDDEN),
            "self_attn.k_proj.weight": normal(32, HIDDEN),
            "self_attn.v_proj.weight": normal(32, HIDDEN),
            "self_attn.o_proj.weight": normal(HIDDEN, HIDDEN),
            "post_attention_layernorm.weight": 1 + 0.1 * torch.randn(HIDDEN, generator=random),
            "mlp.gate_proj.weight": normal(96, HIDDEN),
            "mlp.up_proj.weight": normal(96, HIDDEN),
            "mlp.down_proj.weight": normal(HIDDEN, 96),
        }
        if index:  # the first layer has none
            own["input_layernorm.weight"] = 1 + 0.1 * torch.randn(HIDDEN, generator=random)
        weights |= {f"layers.{index}.{name}": each for name, each in own.items()}
    return weights


@torch.no_grad()
def eagle_chain(model: PreTrainedModel, weights: dict[str, torch.Tensor], known: list[int], count: int) -> list[int]:
    """What the layers draft after these tokens, the best token in each place, computed from the beginning each time.

    Hidden states of known tokens are the model's after its last norm, and those of drafts are the layers' own. The
    model's output layer reads both as they are.
    """
    features = model.model(torch.tensor([known])).last_hidden_state[0, :-1]
    drafts = list[int]()
    for _ in range(count):
        inputs = model.get_input_embeddings()(torch.tensor([*known, *drafts][1:]))
        stream = torch.cat([inputs, features], 1) @ weights["fc.weight"].T + weights.get("fc.bias", 0.0)
        for index in range(sum(name.endswith(".o_proj.weight") for name in weights)):
            prefix = f"layers.{index}."
            own = {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
            x = rms_norm(stream, (HIDDEN,), own["input_layernorm.weight"], 1e-5) if index else stream
            stream = _after_mlp(own, stream + _attention(own, x))
        drafts.append(int(model.lm_head(stream[-1:]).argmax()))
        features = torch.cat([features, stream[-1:]])
    return drafts


_OF_QWEN = {".shared_experts.": ".shared_expert."}
# How files name the parts of a layer, by what the engine calls them.
NAMES_IN_FILES: dict[str, dict[str, str]] = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _OF_QWEN),
    "nemotron_h": {".input_layernorm.": ".norm.", ".self_attn.": ".mixer.", ".mlp.": ".mixer."},
}


_OF_LAYERS = set(EAGLE3) - {"architectures", "draft_vocab_size", "eagle_config"}


def save_dflash(folder: Path, *, speculators: bool = False) -> Path:
    """Layers of DFlash with random weights, as their authors store them, or the library `speculators`."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = DFLASH
    weights = dflash_weights(has_output=speculators)
    if speculators:
        config = {
            "speculators_model_type": "dflash",
            "transformer_layer_config": {name: DFLASH[name] for name in DFLASH if name in {*_OF_LAYERS, "head_dim"}},
            "aux_hidden_state_layer_ids": [1, 3],
            "mask_token_id": MASK,
            "block_size": 5,
            "draft_vocab_size": DRAFT_VOCAB,
        }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


def dflash_weights(*, has_output: bool = False) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * 2 / shape[-1] ** 0.5

    def norm(width: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(width, generator=random)

    weights = {"fc.weight": normal(HIDDEN, 2 * HIDDEN), "hidden_norm.weight": norm(HIDDEN), "norm.weight": norm(HIDDEN)}
    for index in range(2):
        own = {
            "self_attn.q_proj.weight": normal(HIDDEN, HIDDEN),
            "self_attn.k_proj.weight": normal(32, HIDDEN),
            "self_attn.v_proj.weight": normal(32, HIDDEN),
            "self_attn.o_proj.weight": normal(HIDDEN, HIDDEN),
            "self_attn.q_norm.weight": norm(16),
            "self_attn.k_norm.weight": norm(16),
            "input_layernorm.weight": norm(HIDDEN),
            "post_attention_layernorm.weight": norm(HIDDEN),
            "mlp.gate_proj.weight": normal(96, HIDDEN),
            "mlp.up_proj.weight": normal(96, HIDDEN),
            "mlp.down_proj.weight": normal(HIDDEN, 96),
        }
        weights |= {f"layers.{index}.{name}": each for name, each in own.items()}
    if has_output:
        of_eagle = eagle3_weights()
        weights |= {name: of_eagle[name] for name in ("lm_head.weight", "d2t", "t2d")}
    return weights


@torch.no_grad()
def dflash_drafts(
    model: PreTrainedModel, known: list[int], count: int, *, has_output: bool = False
) -> tuple[list[int], list[int]]:
    """What the layers of `save_dflash` draft after these tokens, by torch and by a class of the transformers library.

    The class is that of another model's assistant, whose layers compute the same with other names of two tensors.
    """
    weights = dflash_weights(has_output=has_output)
    states = model(torch.tensor([known]), output_hidden_states=True).hidden_states
    context = torch.cat([states[1][0], states[3][0]], 1)[:-1]
    inputs = model.get_input_embeddings()(torch.tensor([known[-1], *[MASK] * count]))
    config = MuseGlimmerAssistantConfig(
        **{name: DFLASH[name] for name in _OF_LAYERS - {"vocab_size", "rope_theta", "model_type"}},
        head_dim=16,
        target_layer_ids=[0, 2],
        layer_types=["full_attention"] * 2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    library = MuseGlimmerAssistantModel(config).eval()
    names = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}
    outer = ("lm_head.weight", "d2t", "t2d")
    own = {name: each for name, each in weights.items() if name not in outer}
    for old, new in names.items():
        own = {new + name.removeprefix(old) if name.startswith(old) else name: own[name] for name in own}
    library.load_state_dict(own)
    found = library(noise_embeds=inputs[None], context_hidden_states=context[None], use_cache=False)
    outputs = found.last_hidden_state[0, 1:], _dflash_layers(weights, inputs, context)[1:]
    return tuple(_best_tokens(model, weights, each) for each in outputs)  # type: ignore[return-value]


def _best_tokens(model: PreTrainedModel, weights: dict[str, torch.Tensor], hidden: torch.Tensor) -> list[int]:
    if "lm_head.weight" not in weights:
        return model.lm_head(hidden).argmax(1).tolist()
    best = (hidden @ weights["lm_head.weight"].T).argmax(1)
    return (best + weights["d2t"][best]).tolist()


def _dflash_layers(weights: dict[str, torch.Tensor], inputs: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """inputs: [N, hidden] of a block. context: [M, 2 * hidden] of the tokens before. Returns normed hidden states."""
    context = rms_norm(context @ weights["fc.weight"].T, (HIDDEN,), weights["hidden_norm.weight"], 1e-5)
    stream, length = inputs, len(context) + len(inputs)
    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=HIDDEN, num_attention_heads=4))
    cos, sin = (each[0] for each in rotary(inputs, torch.arange(length)[None]))

    def heads(x: torch.Tensor, name: str, turned: torch.Tensor | None) -> torch.Tensor:
        """[heads, T, 16] of the last T positions"""
        split = (x @ own[f"self_attn.{name}_proj.weight"].T).view(len(x), -1, 16).transpose(0, 1)
        if turned is None:
            return split
        split = rms_norm(split, (16,), turned, 1e-5)
        halves = torch.cat([-split[..., 8:], split[..., :8]], -1)
        return split * cos[-len(x) :] + halves * sin[-len(x) :]

    for index in range(2):
        prefix = f"layers.{index}."
        own = {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
        normed = rms_norm(stream, (HIDDEN,), own["input_layernorm.weight"], 1e-5)
        every = torch.cat([context, normed])
        q = heads(normed, "q", own["self_attn.q_norm.weight"])
        k = heads(every, "k", own["self_attn.k_norm.weight"]).repeat_interleave(2, 0)
        v = heads(every, "v", None).repeat_interleave(2, 0)
        mixed = ((q @ k.transpose(1, 2) / 4).softmax(-1) @ v).transpose(0, 1).reshape(len(inputs), HIDDEN)
        stream = _after_mlp(own, stream + mixed @ own["self_attn.o_proj.weight"].T)
    return rms_norm(stream, (HIDDEN,), weights["norm.weight"], 1e-5)


def add_mtp(folder: Path, seed: int = 0, num_layers: int = 1) -> Path:
    """Adds a layer for multi-token prediction with random weights to a checkpoint of a family that has one.

    num_layers: further ones are after the last in the files, and have other weights.
    """
    values = json.loads((folder / "config.json").read_text())
    values |= {"num_nextn_predict_layers": num_layers}
    (folder / "config.json").write_text(json.dumps(values))
    target, _ = read_config(values)
    names = MTP_FORMS[target.architecture].names
    back = {new: old.format(target.num_layers) for old, new in names.items()}
    random = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in draft_shapes(mtp_spec(target, values)).items():
        beginning = next(each for each in back if name.startswith(each))
        scale = 2 / shape[-1] ** 0.5 if len(shape) > 1 else 0.1
        own = torch.randn(shape, generator=random) * scale
        is_norm = "norm" in name and not target.norm.is_offset
        in_files = back[beginning] + name.removeprefix(beginning)
        for old, new in NAMES_IN_FILES.get(target.model_type, {}).items():
            in_files = in_files.replace(old, new)
        weights[in_files] = own + 1 if is_norm else own
    first = f"model.layers.{target.num_layers}."
    for index in range(1, num_layers):
        own = f"model.layers.{target.num_layers + index}."
        further = {name.replace(first, own): -each for name, each in weights.items() if name.startswith(first)}
        weights = {**weights, **further}
    file = folder / "model.safetensors"
    save_file({**load_file(file), **weights}, file, {"format": "pt"})
    return folder


# Embeddings and hidden states, [1, T, hidden], to what a layer makes of them before and after its last norm.
MtpLayer = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def load_mtp(model: PreTrainedModel, folder: Path, **kinds: Any) -> MtpLayer:
    """The layer that `add_mtp` has added, as the transformers library loads it by the names of its tensors.

    kinds: of the layer, which config.json of the family does not say.
    """
    config = model.config
    for name, value in {"num_mtp_layers": 1, "name_or_path": str(folder), "dtype": torch.float32, **kinds}.items():
        setattr(config, name, value)
    config._attn_implementation = "eager"  # with a mask, which sparse attention adds to
    model._keys_to_ignore_on_load_unexpected = [rf"^model\.layers\.{config.num_hidden_layers}\.", r"^mtp\."]
    mtp = MtpModel.from_pretrained(model)
    block, before = mtp.layers[0].mtp_block, list[torch.Tensor]()
    forward = block.forward
    # GLM-5 also returns the tokens that its index has chosen.
    block.forward = lambda *given, **named: _first(forward(*given, **named))
    mtp.layers[0].post_norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))

    def outputs(inputs: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(1, inputs.shape[1] + 1)[None]
        normed = mtp.forward_layer(0, features, positions, None, inputs_embeds=inputs)
        return before.pop(), normed

    return outputs


def _first(found: Any) -> torch.Tensor:
    return found[0] if isinstance(found, tuple) else found


def mtp_by_name(
    model: PreTrainedModel, folder: Path, names: dict[str, str], layers: dict[str, nn.Module], *, hidden_first: bool
) -> MtpLayer:
    """A layer that the transformers library does not load, of layers that it has.

    names: of the norms of the embedding, of the hidden state, of what joins them and of the last norm, as beginnings of
        the names in the files; "" without the last norm. layers: by the beginnings of theirs; they get other weights.
    """
    weights = load_file(folder / "model.safetensors")
    loaded: list[nn.Module] = []
    for beginning, layer in layers.items():
        own = {name.removeprefix(beginning): each for name, each in weights.items() if name.startswith(beginning)}
        each = copy.deepcopy(layer)
        each.load_state_dict({name: _in_library(own, name) for name in each.state_dict()})
        loaded.append(each)
    eps = getattr(model.config, "rms_norm_eps", None) or model.config.layer_norm_epsilon

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x if not names[name] else rms_norm(x, (HIDDEN,), weights[f"{names[name]}.weight"], eps)

    def outputs(inputs: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [norm(inputs, "embedding"), norm(features, "hidden")]
        x = torch.cat(parts[::-1] if hidden_first else parts, 2) @ weights[f"{names['join']}.weight"].T
        length = x.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        rotary = getattr(model.model, "rotary_emb", None)
        more = {} if rotary is None else {"position_embeddings": rotary(x, torch.arange(length)[None])}
        for layer in loaded:
            x = _first(layer(x, attention_mask=mask, **more))
        return x, norm(x, "last")

    return outputs


def _in_library(own: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """A parameter of a layer of the library, which has one for all experts."""
    if name in own:
        return own[name]
    place, _, part = name.rpartition(".")
    return torch.stack([own[f"{place}.{index}.{part}.weight"] for index in range(8)])


@torch.no_grad()
def mtp_chain(model: PreTrainedModel, mtp: MtpLayer, known: list[int], count: int, *, feeds_normed: bool) -> list[int]:
    """What the layer drafts after these tokens, the best token in each place, computed from the beginning each time.

    feeds_normed: the next draft begins with what comes after the layer's last norm, as the library has it; False: with
        what comes before.
    """
    features = model.model(torch.tensor([known])).last_hidden_state[:, :-1]
    drafts = list[int]()
    for _ in range(count):
        inputs = model.get_input_embeddings()(torch.tensor([[*known, *drafts][1:]]))
        before, normed = mtp(inputs, features)
        drafts.append(int(model.lm_head(normed[0, -1]).argmax()))
        features = torch.cat([features, (normed if feeds_normed else before)[:, -1:]], 1)
    return drafts
