"""Models through the transformers library: options, wrong input, and code from a model's repository."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.config import ConfigError, ModelFilesError

from .checkpoints import reference_greedy, save
from .conftest import Saved
from .engine import Engine, resolved
from .test_generation import make_prompts
from .test_transformers_families import deployment, random_model

# A model of a repository: a small decoder that calls the library's attention interface.
MODELING = """
import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from .configuration_mine import MineConfig
from .norm_mine import MineNorm


class MineAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, True
        self.head_dim, self.num_key_value_groups = config.hidden_size // config.num_attention_heads, 1
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden, mask):
        split = self.qkv(hidden).view(*hidden.shape[:2], 3, -1, self.head_dim).permute(2, 0, 3, 1, 4)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        return self.out(attend(self, *split, mask, scaling=0.3)[0].reshape(hidden.shape))


class MineModel(PreTrainedModel):
    config_class = MineConfig

    def __init__(self, config):
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.wpe = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.norms = nn.ModuleList(MineNorm(config.hidden_size) for _ in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(MineAttention(config, index) for index in range(config.num_hidden_layers))
        self.post_init()

    def forward(self, input_ids=None, position_ids=None, attention_mask=None, **kwargs):
        hidden = self.wte(input_ids) + self.wpe(position_ids)
        mask = None
        if self.config._attn_implementation == "eager":
            mask = torch.full((hidden.shape[1],) * 2, float("-inf")).triu(1)[None, None]
        for norm, layer in zip(self.norms, self.layers):
            hidden = hidden + layer(norm(hidden), mask)
        return BaseModelOutputWithPast(last_hidden_state=hidden)


class MineForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = MineConfig
    base_model_prefix = "model"
    _tied_weights_keys = {}

    def __init__(self, config):
        super().__init__(config)
        self.model = MineModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def get_input_embeddings(self):
        return self.model.wte

    def forward(self, input_ids=None, position_ids=None, **kwargs):
        hidden = self.model(input_ids=input_ids, position_ids=position_ids).last_hidden_state
        return CausalLMOutputWithPast(logits=5 * torch.tanh(self.lm_head(hidden)))
"""
NORM = """
import torch
from torch import nn


class MineNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-5

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
"""
CONFIGURATION = """
from transformers import PretrainedConfig


class MineConfig(PretrainedConfig):
    model_type = "mine"
"""
CONFIG: dict[str, Any] = {
    "architectures": ["MineForCausalLM"],
    "model_type": "mine",
    "auto_map": {
        "AutoConfig": "configuration_mine.MineConfig",
        "AutoModelForCausalLM": "modeling_mine.MineForCausalLM",
    },
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
ALLOWED = {"model_impl": "transformers", "trust_remote_code": True}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code and config.json, and no weights."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in (("modeling_mine", MODELING), ("configuration_mine", CONFIGURATION), ("norm_mine", NORM)):
        (folder / f"{name}.py").write_text(text)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.effect("model.trust_remote_code")
def test_code_of_a_repository_runs_where_it_is_allowed(repository: Path, tmp_path: Path):
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    config_class, model_class = (
        get_class_from_dynamic_module(name, str(repository)) for name in CONFIG["auto_map"].values()
    )
    torch.manual_seed(0)
    model = model_class._from_config(config_class(**CONFIG), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.15)
    weights = save(model, tmp_path / "saved")
    (repository / "model.safetensors").symlink_to(weights / "model.safetensors")
    settings = deployment(repository, tmp_path, model=ALLOWED)
    code = settings.model_files.code
    assert code is not None
    assert {file.name: file.sha256 for file in code.files} == {
        name: hashlib.sha256((repository / name).read_bytes()).hexdigest()
        for name in ("configuration_mine.py", "modeling_mine.py", "norm_mine.py")
    }
    engine = Engine(settings)
    assert "fused: norms" in engine.runner.info().kernels["model"]
    prompt = make_prompts(3)[2]
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(24):
            logits = model(input_ids=torch.tensor([ids]), position_ids=torch.arange(len(ids))[None]).logits
            ids.append(int(logits[0, -1].argmax()))
    assert engine.generate([prompt])[0] == ids[len(prompt) :]
    (repository / "norm_mine.py").write_text(NORM + "\n# changed")
    with pytest.raises(ModelFilesError, match="its code has changed since this start began"):
        Engine(settings)


def test_code_is_not_run_unless_both_options_are_written(repository: Path, tmp_path: Path):
    for model in ({}, {"model_impl": "transformers"}):
        with pytest.raises(ModelFilesError, match=r"`model\.trust_remote_code: true` with `model\.model_impl"):
            deployment(repository, tmp_path, model={"model_impl": "auto"} | model)
    with pytest.raises(ModelFilesError, match=r"`model\.trust_remote_code: true` with `model\.model_impl"):
        deployment(repository, tmp_path, model={"model_impl": "auto", "trust_remote_code": True})
    config = CONFIG | {"auto_map": {**CONFIG["auto_map"], "AutoModelForCausalLM": "other/repo--modeling.Mine"}}
    (repository / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFilesError, match=r"as `module\.Class` of the model's own repository"):
        deployment(repository, tmp_path, model=ALLOWED)


@pytest.mark.effect("model.model_impl")
def test_the_own_implementation_and_the_library_generate_the_same(saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("qwen3")[1]
    prompts = make_prompts(6)
    native, library = (
        Engine(resolved(folder, tmp_path, model={"model_impl": which})) for which in ("native", "transformers")
    )
    assert native.generate(prompts) == library.generate(prompts)
    assert "model" not in native.runner.info().kernels
    table = library.runner.info().kernels
    assert table["model"].endswith("(fused: q_proj+k_proj+v_proj, gate_proj+up_proj, norms)")
    assert table["decode_step"].startswith("op by op: modules of transformers")
    assert library.runner.info().weights_bytes == native.runner.info().weights_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_router_that_looks_at_the_dtype_of_its_weight_is_computed(
    dtype: str, saved: Callable[[str], Saved], tmp_path: Path
):
    """Hunyuan's router asks `self.wg.weight.dtype` before it multiplies."""
    folder = saved("hunyuan_moe")[1]
    engine = Engine(resolved(folder, tmp_path, model={"model_impl": "transformers", "dtype": dtype}))
    found = engine.generate([[5, 6, 7]])
    if dtype == "float32":
        assert found == Engine(resolved(folder, tmp_path)).generate([[5, 6, 7]])


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_linear_layers_are_quantised_as_in_own_models(scheme: str, saved: Callable[[str], Saved], tmp_path: Path):
    folder = saved("qwen3")[1]
    native, library = (
        Engine(resolved(folder, tmp_path, model={"model_impl": which, "quantization": scheme}))
        for which in ("native", "transformers")
    )
    assert library.runner.info().weights_bytes == native.runner.info().weights_bytes
    prompts = make_prompts(4)
    assert native.generate(prompts) == library.generate(prompts)


def test_the_plan_counts_what_the_files_have(tmp_path: Path):
    """The description takes a gated MLP for granted, which Persimmon has not."""
    model = random_model("persimmon")
    settings = deployment(save(model, tmp_path / "model"), tmp_path)
    assert settings.model_files.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert settings.memory.weights_bytes == Engine(settings).runner.info().weights_bytes


def test_dummy_weights_and_bfloat16(tmp_path: Path):
    folder = save(random_model("gemma2"), tmp_path / "model")
    settings = deployment(folder, tmp_path, model={"dtype": "bfloat16"}, load={"load_format": "dummy"})
    assert len(Engine(settings).generate(make_prompts(3))) == 3


def test_a_checkpoint_without_the_prefix_of_the_output_layers_class(tmp_path: Path):
    """As GPT-2's own, which was saved without its output layer."""
    from safetensors.torch import load_file, save_file

    model = random_model("gpt2")
    folder = save(model, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    plain = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    assert plain.keys() != tensors.keys()
    save_file(plain | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}, folder / "model.safetensors", {"format": "pt"})
    prompt = make_prompts(3)[1]
    assert Engine(deployment(folder, tmp_path)).generate([prompt])[0] == reference_greedy(model, prompt, 24)


def test_the_language_model_of_a_model_with_encoders(tmp_path: Path):
    """As Gemma 3n is published: one configuration within another, towers, and names with a further prefix."""
    from safetensors.torch import load_file, save_file

    model = random_model("gemma3n_text")
    folder = save(model, tmp_path / "model")
    file, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    tensors = {f"model.language_model.{name.removeprefix('model.')}": each for name, each in load_file(file).items()}
    towers = {f"model.{name}.weight": torch.ones(3, 4) for name in ("vision_tower.stem", "audio_tower.conv")}
    save_file({**tensors, **towers}, file, {"format": "pt"})
    whole = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n", "eos_token_id": [2, 7]}
    del config["architectures"], config["eos_token_id"]
    (folder / "config.json").write_text(
        json.dumps({**whole, "text_config": config, "vision_config": {"hidden_size": 8}})
    )
    settings = deployment(folder, tmp_path)
    assert settings.model_files.eos_token_ids == (2, 7)
    assert any("encoders" in note for note in settings.model_files.notes)
    prompt = make_prompts(3)[1]
    assert Engine(settings).generate([prompt])[0] == reference_greedy(model, prompt, 24)


def test_a_tensor_that_is_missing_or_has_another_shape_ends_the_start(tmp_path: Path):
    from safetensors.torch import load_file, save_file

    folder = save(random_model("olmo"), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    save_file({key: each for key, each in tensors.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(ModelFilesError, match=f"tensor `{name}` is not in any of its weight files"):
        Engine(deployment(folder, tmp_path))
    save_file(tensors | {name: torch.zeros(3, 5)}, folder / "model.safetensors")
    with pytest.raises(ModelFilesError, match=r"has shape \[3, 5\], config\.json says \[64, 96\]"):
        Engine(deployment(folder, tmp_path))


def edited(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["OddForCausalLM"]}, r"transformers \S+ has no model `OddForCausalLM`"),
        ({"num_key_value_heads": 1, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "key-value heads of"),
    ],
)
def test_what_the_library_does_not_have_ends_the_start(changes: dict[str, Any], reason: str, tmp_path: Path):
    folder = edited(save(random_model("gpt2"), tmp_path / "model"), **changes)
    with pytest.raises(ModelFilesError, match=reason):
        Engine(deployment(folder, tmp_path))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"architectures": ["OddForCausalLM"]},
            r"is not supported; .*`model\.model_impl: transformers` probes",
        ),
        ({"architectures": ["RwkvForCausalLM"], "model_type": "rwkv"}, "`RwkvForCausalLM` is not supported"),
        ({"architectures": ["BertLMHeadModel"]}, "; without `is_decoder: true` BertLMHeadModel sees later tokens too"),
    ],
)
def test_auto_refuses_what_is_neither_tested_nor_probed(changes: dict[str, Any], reason: str, tmp_path: Path):
    folder = edited(save(random_model("olmo"), tmp_path / "model"), **changes)
    with pytest.raises(ModelFilesError, match=reason):
        deployment(folder, tmp_path, model={"model_impl": "auto"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "rwkv", "architectures": ["RwkvForCausalLM"]}, "layers with mamba, which keep no keys"),
        (
            {"is_encoder_decoder": True, "architectures": ["T5ForConditionalGeneration"]},
            "an encoder-decoder, or a model with another input",
        ),
        ({"architectures": ["BertLMHeadModel"]}, "set it in config.json if the model was trained as a decoder"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "a quantised checkpoint"),
        (
            {"hidden_size": None, "text_config": {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 97}},
            "encoders",
        ),
    ],
)
def test_kinds_of_models_that_cannot_be_served(changes: dict[str, Any], reason: str, tmp_path: Path):
    folder = edited(save(random_model("olmo"), tmp_path / "model"), **changes)
    if changes.get("hidden_size", 0) is None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps({key: each for key, each in config.items() if key != "hidden_size"})
        )
    with pytest.raises(ModelFilesError, match=reason):
        deployment(folder, tmp_path)


def test_native_forbids_the_library(tmp_path: Path):
    folder = save(random_model("olmo"), tmp_path / "model")
    with pytest.raises(ModelFilesError, match="architecture `OlmoForCausalLM` is not supported"):
        deployment(folder, tmp_path, model={"model_impl": "native"})


def test_a_rotary_embedding_that_depends_on_the_batch_limits_the_context(tmp_path: Path):
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    folder = save(random_model("phi3"), tmp_path / "model")
    edited(folder, rope_parameters=rope, original_max_position_embeddings=48)
    assert deployment(folder, tmp_path, model={"max_model_len": "auto"}).model.max_model_len == 48
    with pytest.raises(ConfigError, match="the model supports 48 tokens"):
        deployment(folder, tmp_path, model={"max_model_len": 64})


def test_rope_options_need_one_rotary_embedding(tmp_path: Path):
    folder = save(random_model("opt"), tmp_path / "model")
    with pytest.raises(ModelFilesError, match="describes no single rotary embedding"):
        deployment(folder, tmp_path, model={"rope_theta": 5000})


def test_a_class_that_does_not_fit_is_named_with_the_reason(saved: Callable[[str], Saved], tmp_path: Path):
    """`KeyError: 'stoker_paged'`."""
    reasons = "does not call the library's attention interface, .*; one sequence after the other: .* keeps no keys"
    with pytest.raises(ModelFilesError, match=rf"^OpenAIGPTLMHeadModel {reasons}"):
        Engine(resolved(saved("openai-gpt")[1], tmp_path, model={"model_impl": "transformers"}))


def test_an_error_of_the_modules_in_the_warm_up_names_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from transformers.models.olmo.modeling_olmo import OlmoDecoderLayer

    def failing(self: Any, hidden: torch.Tensor, *_: Any, **options: Any) -> torch.Tensor:
        return forward(self, hidden, *_, **options) if hidden.is_meta else self.no_such_part(hidden)

    forward = OlmoDecoderLayer.forward
    monkeypatch.setattr(OlmoDecoderLayer, "forward", failing)
    folder = save(random_model("olmo"), tmp_path / "model")
    with pytest.raises(ModelFilesError, match=r"^OlmoForCausalLM cannot run: AttributeError: .* 'no_such_part'"):
        Engine(deployment(folder, tmp_path))
