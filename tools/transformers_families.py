"""Writes how classes of the transformers library run: `make classes`.

The tested ones have a tiny configuration here: tests/models/test_transformers_families.py generates text with all of
them. Of every other class that generates text a small model is probed, as at a start (engine/executor/probe.py).
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from stoker.config import DeploymentError, load_deployment, read_model_files
from stoker.engine.executor.probe import probe
from stoker.engine.kernels import KernelSet
from stoker.engine.models.hf_build import line_of
from stoker.engine.models.transformers_model import TransformersModel
from stoker.model.families import FAMILIES as NATIVE

TABLE = Path(__file__).parent.parent / "src/model/transformers_table.py"
_UNSAID = re.compile(  # of a reason: folders, and what every reason says
    r"^(?:/\S*/)?config\.json: |/\S*/(?=\w+\.\w)|, which `model\.model_impl: transformers` cannot serve$"
)
COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_ALL_HEADS = {"num_key_value_heads": 4}
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
_LATENT = _ALL_HEADS | {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {  # model_type -> what differs from COMMON
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 8, "num_hidden_layers": 7},
    "gemma3n_text": {
        "head_dim": 16,
        "sliding_window": 5,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 3,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "intermediate_size": [96] * 6,
        "activation_sparsity_pattern": [0.9] * 2 + [0.0] * 4,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 97,
        "laurel_rank": 8,
        "altup_num_inputs": 2,
    },
    "phi3": {},
    "olmo2": {},
    "granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5},
    "cohere": {},
    "starcoder2": {"sliding_window": 5},
    "gpt_neox": _ALL_HEADS,
    "stablelm": {},
    "gpt2": _ALL_HEADS | {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "opt": _ALL_HEADS | {"ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.0},
    "glm4": {"head_dim": 16},
    "smollm3": {},
    "qwen3_moe": _EXPERTS | {"head_dim": 16},
    "mixtral": _EXPERTS,
    "gpt_oss": _EXPERTS | {"head_dim": 16, "sliding_window": 5},
    "deepseek_v3": _LATENT | _ROUTED | {"first_k_dense_replace": 1},
    "afmoe": _EXPERTS,
    "apertus": {},
    "arcee": {},
    "biogpt": _ALL_HEADS,
    "cohere2": {"sliding_window": 5, "num_hidden_layers": 5},
    "cwm": {},
    "dots1": _ROUTED | {"n_shared_experts": 1},
    "ernie4_5": {},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    "exaone4": {"sliding_window": 5, "num_hidden_layers": 5},
    "flex_olmo": _EXPERTS,
    "glm": {"head_dim": 16},
    "glm4_moe": _ROUTED | {"head_dim": 16, "first_k_dense_replace": 1},
    "glm4_moe_lite": _LATENT | _ROUTED | {"first_k_dense_replace": 1},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "num_key_value_heads": 1},
    "granitemoe": _EXPERTS,
    "granitemoeshared": _EXPERTS | {"shared_intermediate_size": 32},
    "hyperclovax": {},
    "minimax_m2": _EXPERTS | {"head_dim": 16, "rotary_dim": 8},
    "ministral3": {},
    "nanochat": {},
    "nemotron": {"head_dim": 16},
    "olmo": {},
    "olmo3": {"sliding_window": 5, "num_hidden_layers": 5},
    "olmoe": _EXPERTS,
    "persimmon": _ALL_HEADS,
    "phi": {},
    "phimoe": _EXPERTS,
    "qwen2_moe": _EXPERTS | {"shared_expert_intermediate_size": 32},
    "seed_oss": {"head_dim": 16},
    "solar_open": _ROUTED | {"head_dim": 16},
    "vaultgemma": {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 8},
}


WRITTEN: dict[str, dict[str, Any]] = {  # what config.json files have and the configuration class has no default for
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8, "rope_theta": 500000.0}},
    "xmod": {"default_language": "en_XX"},
}


def config_of(model_type: str) -> PretrainedConfig:
    found: PretrainedConfig = CONFIG_MAPPING[model_type](**COMMON | FAMILIES[model_type])
    return found


def architecture_of(model_type: str) -> str:
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return found if isinstance(found, str) else found[0]


def table() -> dict[str, str]:
    """What is fused in each architecture with the installed transformers."""
    with tempfile.TemporaryDirectory() as folder:
        return {architecture_of(each): fused(each, Path(folder) / each) for each in FAMILIES}


def written_config(model_type: str, folder: Path) -> Path:
    """A folder with nothing but a config.json."""
    folder.mkdir(exist_ok=True)
    config = config_of(model_type).to_dict() | {"architectures": [architecture_of(model_type)]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def fused(model_type: str, folder: Path) -> str:
    written_config(model_type, folder)
    words = ["--model", str(folder), "--model-impl", "transformers", "--load-format", "dummy", "--skip-tokenizer-init"]
    files = read_model_files(load_deployment([], words, {}))
    return TransformersModel(files, KernelSet(), torch.float32, torch.device("cpu")).fused


def problems(classes: Iterable[str]) -> tuple[dict[str, str], set[str]]:
    """Why a model of each of these classes does not run on the modules of the library; empty for those that run.

    Returns also the classes that run if config.json says `is_decoder: true`.
    """
    found: dict[str, str] = {}
    decoders: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for name in classes:
            model_type = type_of(name)
            place, values = Path(folder) / model_type, WRITTEN.get(model_type, {})
            found[name] = _problem(model_type, name, place, values)
            config = CONFIG_MAPPING[model_type]
            if found[name] and getattr(config, "is_decoder", None) is False:
                as_decoder = _problem(model_type, name, place, values | {"is_decoder": True})
                if not as_decoder:
                    found[name] = ""
                    decoders.add(name)
    return found, decoders


def type_of(architecture: str) -> str:
    """The `model_type` of the configuration that a class takes."""
    own: str = getattr(transformers, architecture).config_class.model_type
    types = {architecture_of(each): each for each in reversed(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}
    return own if own in CONFIG_MAPPING else types[architecture]


def _problem(model_type: str, architecture: str, folder: Path, values: Mapping[str, Any]) -> str:
    """values: of config.json, besides the defaults of the class."""
    folder.mkdir(exist_ok=True)
    try:
        config = CONFIG_MAPPING[model_type](**values).to_dict() | {"architectures": [architecture]}
    except Exception as error:  # classes check their values in different ways
        return f"the class has no default configuration: {line_of(error)}"
    (folder / "config.json").write_text(json.dumps(config))
    words = ["--model", str(folder), "--model-impl", "transformers", "--load-format", "dummy", "--skip-tokenizer-init"]
    try:
        probe(read_model_files(load_deployment([], words, {})))
    except DeploymentError as error:
        return _UNSAID.sub("", str(error))
    return ""


def others() -> list[str]:
    """The classes of the library that generate text, have no configuration here and are no family of this engine."""
    known = {architecture_of(each) for each in FAMILIES} | set(NATIVE)
    return sorted({architecture_of(each) for each in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - known)


def written(tested: Mapping[str, str], probed: Mapping[str, str], decoders: Iterable[str]) -> str:
    head = TABLE.read_text().partition("VERSION")[0]
    tables = {
        "TESTED: dict[str, str]": tested,
        "REFUSED: dict[str, str]": {name: problem for name, problem in probed.items() if problem},
    }
    sets = {
        "PROBED": (name for name, problem in sorted(probed.items()) if not problem),
        "DECODERS": sorted(decoders),
    }
    rows = {
        name: "".join(f"    {key!r}: {value!r},\n" for key, value in sorted(found.items()))
        for name, found in tables.items()
    }
    text = f"{head}VERSION = {transformers.__version__!r}  # of the library that was probed\n"
    text += "".join(f"{name} = {{\n{lines}}}\n" for name, lines in rows.items())
    for name, members in sets.items():
        lines = "".join(f"        {each!r},\n" for each in members)
        text += f"{name}: frozenset[str] = frozenset(\n    {{\n{lines}    }}\n)\n"
    return text


if __name__ == "__main__":
    logging.disable()
    TABLE.write_text(written(table(), *problems(others())))
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(TABLE)], check=True)
