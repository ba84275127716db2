"""Models whose tokens see all others of a text give what transformers gives, alone and in a batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel

from stoker.engine.kernels import KernelSet, select_kernels

from .checkpoints import VOCAB, save
from .pooling_checkpoints import TEXTS, assert_alone_and_together, build, build_decoder, pooled, stepped

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROBERTA = SMALL | {"pad_token_id": 1, "max_position_embeddings": 66, "type_vocab_size": 1}
DISTILBERT = {
    "vocab_size": VOCAB,
    "dim": 64,
    "hidden_dim": 96,
    "n_layers": 3,
    "n_heads": 4,
    "pad_token_id": 0,
    "max_position_embeddings": 64,
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("bert", SMALL),
    "Roberta": ("roberta", ROBERTA),
    "XLMRoberta": ("xlm-roberta", ROBERTA),
    "Camembert": ("camembert", ROBERTA),
    "Electra": ("electra", SMALL | {"embedding_size": 64}),
    "DistilBert": ("distilbert", DISTILBERT),
    "MPNet": ("mpnet", SMALL | {"pad_token_id": 1, "max_position_embeddings": 66}),
    "ModernBert": ("modernbert", SMALL | {"local_attention": 6, "num_hidden_layers": 5, "max_position_embeddings": 64}),
    "NomicBert": ("nomic_bert", SMALL),
    "Gte": ("gte", SMALL | {"type_vocab_size": 1}),
    "JinaEmbeddingsV3": ("jina_embeddings_v3", SMALL | {"type_vocab_size": 1}),
    "EuroBert": ("eurobert", SMALL | {"num_key_value_heads": 2}),
}
HAVE_VOCABULARY = ("Bert", "Roberta", "XLMRoberta", "Camembert", "DistilBert", "MPNet", "ModernBert", "EuroBert")


def built(stem: str, end: str, **changes: Any) -> Any:
    model_type, settings = ENCODERS[stem]
    return build(f"{stem}{end}", model_type, **settings | changes)


def ids(text: list[int]) -> torch.Tensor:
    return torch.tensor([text])


@pytest.mark.parametrize("stem", ENCODERS)
def test_hidden_states_of_encoders_equal_transformers(stem: str, tmp_path: Path):
    theirs = built(stem, "Model")
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    assert not model.spec.is_causal
    assert not model.spec.keeps.tensors
    with torch.inference_mode():
        states = [theirs(ids(text)).last_hidden_state[0] for text in TEXTS]
    assert_alone_and_together(model, "token_embed", states)
    head = model.spec.pooling.head("embed")
    expected = [each[:1] if head.modes == ("cls",) else each.mean(0, keepdim=True) for each in states]
    assert_alone_and_together(model, "embed", expected)


@pytest.mark.parametrize("stem", ["MPNet", "JinaEmbeddingsV3", "ModernBert"])
def test_long_texts_equal_transformers(stem: str, tmp_path: Path):
    """Distances of more than a hundred tokens, beside a short text."""
    theirs = built(stem, "Model", max_position_embeddings=400)
    room = {"model": {"max_model_len": 320}, "scheduler": {"max_num_batched_tokens": 512}}
    model = stepped(save(theirs, tmp_path / "model"), tmp_path, blocks_each=40, **room)
    texts = [[5 + (7 * place) % 80 for place in range(300)], TEXTS[0]]
    with torch.inference_mode():
        states = [theirs(ids(text)).last_hidden_state[0] for text in texts]
    for found, expected in zip(pooled(model, "token_embed", texts), states, strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("stem", ENCODERS)
@pytest.mark.parametrize("num_labels", [1, 3])
def test_scores_of_texts_equal_transformers(stem: str, num_labels: int, tmp_path: Path):
    theirs = built(stem, "ForSequenceClassification", num_labels=num_labels)
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    with torch.inference_mode():
        expected = [theirs(ids(text)).logits for text in TEXTS]
    assert_alone_and_together(model, "classify", expected)


@pytest.mark.parametrize(("stem", "changes"), [
    ("ModernBert", {"classifier_pooling": "mean", "classifier_bias": True, "classifier_activation": "relu"}),
    ("EuroBert", {"classifier_pooling": "bos"}),
    ("EuroBert", {"classifier_pooling": "mean"}),
])  # fmt: skip
def test_config_json_says_what_a_classifier_pools(stem: str, changes: dict[str, Any], tmp_path: Path):
    theirs = built(stem, "ForSequenceClassification", num_labels=3, **changes)
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    with torch.inference_mode():
        expected = [theirs(ids(text)).logits for text in TEXTS]
    assert_alone_and_together(model, "classify", expected)


@pytest.mark.parametrize("stem", ENCODERS)
def test_scores_of_tokens_equal_transformers(stem: str, tmp_path: Path):
    theirs = built(stem, "ForTokenClassification", num_labels=5)
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    with torch.inference_mode():
        expected = [theirs(ids(text)).logits[0] for text in TEXTS]
    assert_alone_and_together(model, "token_classify", expected)


@pytest.mark.parametrize("stem", HAVE_VOCABULARY)
def test_weights_of_the_vocabulary_are_splades(stem: str, tmp_path: Path):
    """Formal et al., arXiv:2109.10086: the largest log(1 + relu(logit)) of all tokens."""
    theirs = built(stem, "ForMaskedLM")
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    with torch.inference_mode():
        expected = [theirs(ids(text)).logits.relu().log1p().amax(1) for text in TEXTS]
    assert_alone_and_together(model, "sparse", expected)


def test_tokens_of_a_second_text_have_another_type(tmp_path: Path):
    theirs = built("Bert", "ForSequenceClassification", num_labels=1)
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    assert model.spec.pooling.token_types == 2
    types = [[0] * 3 + [1] * (len(text) - 3) for text in TEXTS]
    types = [each[: len(text)] for each, text in zip(types, TEXTS, strict=True)]
    with torch.inference_mode():
        expected = [theirs(ids(text), token_type_ids=ids(own)).logits for text, own in zip(TEXTS, types, strict=True)]
    flat = torch.tensor([kind for own in types for kind in own])
    for found, wanted in zip(pooled(model, "classify", TEXTS, token_types=flat), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    plain = pooled(model, "classify", TEXTS)
    assert not torch.allclose(plain[0], expected[0], atol=1e-3)


@pytest.mark.parametrize(("architecture", "family"), [
    ("LlamaModel", "llama"), ("Qwen3Model", "qwen3"), ("Qwen2Model", "qwen2 tied"), ("MistralModel", "mistral"),
])  # fmt: skip
def test_decoders_see_later_tokens_where_config_json_says_so(architecture: str, family: str, tmp_path: Path):
    theirs = build_decoder(architecture, family, is_causal=False)
    model = stepped(save(theirs, tmp_path / "model"), tmp_path)
    assert not model.spec.is_causal
    with torch.inference_mode():
        states = [theirs(ids(text), use_cache=False).last_hidden_state[0] for text in TEXTS]
    assert_alone_and_together(model, "token_embed", states, 1e-4)
    assert_alone_and_together(model, "embed", [each.mean(0, keepdim=True) for each in states], 1e-4)


def test_embedding_gemma_sees_half_a_window_on_each_side(tmp_path: Path):
    theirs = build_decoder("Gemma3TextModel", "gemma3", use_bidirectional_attention=True)
    folder = save(theirs, tmp_path / "model")
    theirs = AutoModel.from_pretrained(folder)
    model = stepped(folder, tmp_path)
    assert [layer.mixer.window for layer in model.spec.layers] == [3, None]
    with torch.inference_mode():
        states = [theirs(ids(text), use_cache=False).last_hidden_state[0] for text in TEXTS]
    assert_alone_and_together(model, "token_embed", states, 1e-4)


ORIGINAL_NAMES = {  # of the code in the repositories, whose projections are fused
    "NomicBert": (
        {"embeddings.LayerNorm": "emb_ln", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
        | {"self_attn.o_proj": "attn.out_proj", "mlp.down_proj": "mlp.fc2", "layers.": "encoder.layers."}
        | {"mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12"},
        {"attn.Wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    ),
    "Gte": (
        {"post_attention_layernorm": "attn_ln", "post_mlp_layernorm": "mlp_ln", "layers.": "encoder.layer."}
        | {"self_attn.o_proj": "attention.o_proj", "mlp.down_proj": "mlp.down_proj"},
        {
            "attention.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj"),
        },
    ),
    "JinaEmbeddingsV3": (
        {"embeddings.LayerNorm": "emb_ln", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
        | {"self_attn.o_proj": "mixer.out_proj", "layers.": "encoder.layers."},
        {"mixer.Wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    ),
}


def original(tensors: dict[str, torch.Tensor], stem: str) -> dict[str, torch.Tensor]:
    """A state dict of transformers under the names of the repositories' own code."""
    names, fused = ORIGINAL_NAMES[stem]
    for whole, parts in fused.items():
        for first in [name for name in tensors if f".{parts[0]}." in name]:
            rows = [tensors.pop(first.replace(parts[0], part)) for part in parts]
            tensors[first.replace(parts[0], whole)] = torch.cat(rows)
    for new, old in names.items():
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    return tensors


@pytest.mark.parametrize("stem", ORIGINAL_NAMES)
def test_the_names_of_the_repositories_own_code_are_known(stem: str, tmp_path: Path):
    theirs = built(stem, "Model")
    folder = save(theirs, tmp_path / "model")
    save_file(original(dict(theirs.state_dict()), stem), folder / "model.safetensors")
    model = stepped(folder, tmp_path)
    with torch.inference_mode():
        states = [theirs(ids(text)).last_hidden_state[0] for text in TEXTS]
    assert_alone_and_together(model, "token_embed", states)


NEW = {
    "model_type": "new",
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_theta": 20000,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
}


@pytest.mark.parametrize("factor", [None, 8.0])
@pytest.mark.parametrize("end", ["Model", "ForSequenceClassification"])
def test_gte_in_its_first_form_is_the_class_of_transformers(end: str, factor: float | None, tmp_path: Path):
    """The base, times the factor, and all frequencies over factor^(2 / d): equation 6 of https://kexue.fm/archives/9706,
    from its first position on."""
    theirs = built("Gte", end, rope_parameters={"rope_type": "default", "rope_theta": 20000.0}, num_labels=1)
    folder = save(theirs, tmp_path / "model")
    values = json.loads((folder / "config.json").read_text()) | NEW | {"architectures": [f"New{end}"]}
    values.pop("rope_parameters")
    body = getattr(theirs, "gte", theirs)
    if factor is not None:
        values["rope_scaling"] = {"type": "ntk", "factor": factor}
        head_dim = 16
        base = 20000.0 * factor
        slowed = base ** (-torch.arange(0, head_dim, 2) / head_dim) / factor ** (2 / head_dim)
        body.rotary_emb.inv_freq.copy_(slowed)
    (folder / "config.json").write_text(json.dumps(values))
    tensors = {name.replace("gte.", "new."): each for name, each in theirs.state_dict().items()}
    save_file(original(tensors, "Gte"), folder / "model.safetensors")
    model = stepped(folder, tmp_path)
    with torch.inference_mode():
        if end == "Model":
            states = [theirs(ids(text)).last_hidden_state[0] for text in TEXTS]
            assert_alone_and_together(model, "embed", [each[:1] for each in states])
            assert_alone_and_together(model, "token_embed", states)
        else:
            assert_alone_and_together(model, "classify", [theirs(ids(text)).logits for text in TEXTS])


def jina_bert(sizes: dict[str, int], num_heads: int) -> tuple[dict[str, torch.Tensor], Any]:
    """The tensors of a tiny Jina v2 with random weights, and its states of a text in plain torch (arXiv:2310.19923)."""
    random = torch.Generator().manual_seed(0)
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    tensors: dict[str, torch.Tensor] = {}

    def new(name: str, *shape: int, mean: float = 0.0) -> torch.Tensor:
        tensors[name] = mean + 0.1 * torch.randn(*shape, generator=random)
        return tensors[name]

    def norm(name: str, values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(
            values, (hidden,), tensors[f"{name}.weight"], tensors[f"{name}.bias"], 1e-12
        )

    def linear(name: str, values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(values, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    layers = [f"encoder.layer.{index}" for index in range(sizes["num_hidden_layers"])]
    new("embeddings.word_embeddings.weight", sizes["vocab_size"], hidden)
    new("embeddings.token_type_embeddings.weight", 2, hidden)
    norms = [
        "embeddings.LayerNorm",
        *(f"{name}.{end}" for name in layers for end in ("attention.output.LayerNorm", "mlp.layernorm")),
    ]
    for name in norms:
        new(f"{name}.weight", hidden, mean=1.0)
        new(f"{name}.bias", hidden)
    for name in layers:
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            new(f"{name}.{part}.weight", hidden, hidden)
            new(f"{name}.{part}.bias", hidden)
        new(f"{name}.mlp.gated_layers.weight", 2 * inner, hidden)
        new(f"{name}.mlp.wo.weight", hidden, inner)
        new(f"{name}.mlp.wo.bias", hidden)
    slopes = torch.tensor([2 ** (-8 * (head + 1) / num_heads) for head in range(num_heads)])

    def states(text: list[int]) -> torch.Tensor:
        ids, places = torch.tensor(text), torch.arange(len(text))
        values = (
            tensors["embeddings.word_embeddings.weight"][ids] + tensors["embeddings.token_type_embeddings.weight"][0]
        )
        values = norm("embeddings.LayerNorm", values)
        for name in layers:
            q, k, v = (
                linear(f"{name}.attention.self.{part}", values).view(len(text), num_heads, -1).transpose(0, 1)
                for part in ("query", "key", "value")
            )
            scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
            scores = scores - slopes[:, None, None] * (places - places[:, None]).abs()
            attended = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
            attended = linear(f"{name}.attention.output.dense", attended)
            values = norm(f"{name}.attention.output.LayerNorm", values + attended)
            gates, ups = linear(f"{name}.mlp.gated_layers", values).chunk(2, -1)
            made = linear(f"{name}.mlp.wo", torch.nn.functional.gelu(gates) * ups)
            values = norm(f"{name}.mlp.layernorm", values + made)
        return values

    return tensors, states


@pytest.mark.parametrize("architecture", ["JinaBertModel", "JinaBertForMaskedLM"])
def test_jina_v2_counts_distances_in_both_directions(architecture: str, tmp_path: Path):
    tensors, states = jina_bert(SMALL, num_heads=4)
    config = SMALL | {
        "architectures": [architecture],
        "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        "emb_pooler": "mean",
        "feed_forward_type": "geglu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 8192,
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "torch_dtype": "float32",
        "type_vocab_size": 2,
    }
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if architecture == "JinaBertForMaskedLM":
        tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
        tensors["cls.predictions.bias"] = torch.zeros(VOCAB)
    save_file(tensors, folder / "model.safetensors")
    model = stepped(folder, tmp_path)
    expected = [states(text) for text in TEXTS]
    assert_alone_and_together(model, "token_embed", expected)
    assert_alone_and_together(model, "embed", [each.mean(0, keepdim=True) for each in expected])


# Attention without a rotation, with biases of distances, with windows, with a rotation, and with fewer keys
KINDS = ("Bert", "MPNet", "ModernBert", "Gte", "EuroBert")


def triton_kernels(_: KernelSet) -> KernelSet:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("compiled kernels take no tensors of the CPU")
    from stoker.engine.kernels.gpu.kernels import gpu_kernels

    return gpu_kernels(torch.device("cpu"), max_rows=32)


@pytest.mark.parametrize("make", [lambda _: KernelSet(), triton_kernels], ids=["torch", "triton"])
@pytest.mark.parametrize("stem", KINDS)
def test_other_kernels_give_the_same_states(stem: str, make: Callable[[KernelSet], KernelSet], tmp_path: Path):
    theirs = built(stem, "Model")
    model = stepped(save(theirs, tmp_path / "model"), tmp_path, with_kernels=make)
    with torch.inference_mode():
        states = [theirs(ids(text)).last_hidden_state[0] for text in TEXTS]
    assert_alone_and_together(model, "token_embed", states)


def test_heads_with_norms_are_prepared_alike_by_triton(tmp_path: Path):
    theirs = build_decoder("Qwen3Model", "qwen3", is_causal=False)
    model = stepped(save(theirs, tmp_path / "model"), tmp_path, with_kernels=triton_kernels)
    with torch.inference_mode():
        states = [theirs(ids(text), use_cache=False).last_hidden_state[0] for text in TEXTS]
    assert_alone_and_together(model, "token_embed", states, 1e-4)


@pytest.mark.parametrize("stem", KINDS)
def test_a_text_has_the_same_bits_alone_and_in_a_batch_of_invariant_kernels(stem: str, tmp_path: Path):
    def invariant(kernels: KernelSet) -> KernelSet:
        return select_kernels(torch.device("cpu"), torch.float32, (16,), batch_invariant=True)

    theirs = built(stem, "ForSequenceClassification", num_labels=3)
    model = stepped(save(theirs, tmp_path / "model"), tmp_path, with_kernels=invariant)
    together = pooled(model, "classify", TEXTS)
    for text, found in zip(TEXTS, together, strict=True):
        (alone,) = pooled(model, "classify", [text])
        assert torch.equal(alone, found)


def test_a_class_that_is_bidirectional_by_its_name_pools_as_config_json_says(tmp_path: Path):
    """Llama Nemotron Embed, whose class is code of its repository."""
    theirs = build_decoder("LlamaModel", "llama", is_causal=False, pooling="avg")
    theirs.config.architectures = ["LlamaBidirectionalModel"]
    folder = save(theirs, tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    values.pop("is_causal")
    (folder / "config.json").write_text(json.dumps(values | {"architectures": ["LlamaBidirectionalModel"]}))
    model = stepped(folder, tmp_path)
    with torch.inference_mode():
        states = [theirs(ids(text), use_cache=False).last_hidden_state[0] for text in TEXTS]
    assert_alone_and_together(model, "embed", [each.mean(0, keepdim=True) for each in states], 1e-4)
