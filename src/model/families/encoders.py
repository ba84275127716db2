"""Encoders: models whose tokens see all others of a text, and which make vectors and scores of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec import Norm
from .common import LLAMA
from .family import Family, HeadLayer

_COMMON: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
# What all have: norms of sums, and a norm of the embedding.
_PARTS: dict[str, Any] = {
    "is_causal": False,
    "pools": "cls",
    "norm": Norm(kind="layer", has_bias=True),
    "eps_key": "layer_norm_eps",
    "norms": "sums",
    "has_embedding_norm": True,
    "num_token_types_key": "type_vocab_size",
}
_WITH_TABLE: dict[str, Any] = _PARTS | {
    "bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "is_gated": False,
    "rope_layers": "none",
    "position_offset": 0,
}
_EMBEDDING_NAMES = {
    "^embeddings.word_embeddings.": "model.embed_tokens.",
    "^embeddings.position_embeddings.": "model.embed_positions.",
    "^embeddings.token_type_embeddings.": "model.embed_types.",
    "^embeddings.LayerNorm.": "model.embed_norm.",
}
_BERT_NAMES = {
    "LayerNorm.gamma": "LayerNorm.weight",  # names of old files
    "LayerNorm.beta": "LayerNorm.bias",
    "^bert.": "",
    "^roberta.": "",
    "^electra.": "",
    **_EMBEDDING_NAMES,
    "^encoder.layer.": "model.layers.",
    ".attention.self.query.": ".self_attn.q_proj.",
    ".attention.self.key.": ".self_attn.k_proj.",
    ".attention.self.value.": ".self_attn.v_proj.",
    ".attention.output.dense.": ".self_attn.o_proj.",
    ".attention.output.LayerNorm.": ".post_attention_layernorm.",
    ".intermediate.dense.": ".mlp.up_proj.",
    ".output.dense.": ".mlp.down_proj.",
    ".output.LayerNorm.": ".post_feedforward_layernorm.",
    "^cls.predictions.decoder.": "lm_head.",
    "^cls.predictions.bias": "lm_head.bias",
    "^cls.predictions.transform.dense.": "head.dense.",
    "^cls.predictions.transform.LayerNorm.": "head.norm.",
    "^lm_head.decoder.": "lm_head.",
    "^lm_head.dense.": "head.dense.",
    "^lm_head.layer_norm.": "head.norm.",
}
_MPNET_NAMES = {
    "^mpnet.": "",
    "^encoder.relative_attention_bias.": "model.distance_biases.",
    ".attention.attn.q.": ".self_attn.q_proj.",
    ".attention.attn.k.": ".self_attn.k_proj.",
    ".attention.attn.v.": ".self_attn.v_proj.",
    ".attention.attn.o.": ".self_attn.o_proj.",
    ".attention.LayerNorm.": ".post_attention_layernorm.",
} | _BERT_NAMES
_JINA_BERT_NAMES = _BERT_NAMES | {
    ".mlp.gated_layers.": ".mlp.gate_up_proj.",
    ".mlp.wo.": ".mlp.down_proj.",
    ".mlp.layernorm.": ".post_feedforward_layernorm.",
}
_DISTILBERT_NAMES = {
    "^distilbert.": "",
    **_EMBEDDING_NAMES,
    "^transformer.layer.": "model.layers.",
    ".attention.q_lin.": ".self_attn.q_proj.",
    ".attention.k_lin.": ".self_attn.k_proj.",
    ".attention.v_lin.": ".self_attn.v_proj.",
    ".attention.out_lin.": ".self_attn.o_proj.",
    ".sa_layer_norm.": ".post_attention_layernorm.",
    ".ffn.lin1.": ".mlp.up_proj.",
    ".ffn.lin2.": ".mlp.down_proj.",
    ".output_layer_norm.": ".post_feedforward_layernorm.",
    "^vocab_projector.": "lm_head.",
    "^vocab_transform.": "head.dense.",
    "^vocab_layer_norm.": "head.norm.",
}
_MODERNBERT_NAMES = {
    "^model.": "",
    "^embeddings.tok_embeddings.": "model.embed_tokens.",
    "^embeddings.norm.": "model.embed_norm.",
    "^layers.": "model.layers.",
    "^final_norm.": "model.norm.",
    ".attn_norm.": ".input_layernorm.",
    ".mlp_norm.": ".post_attention_layernorm.",
    ".attn.Wqkv.": ".self_attn.qkv_proj.",
    ".attn.Wo.": ".self_attn.o_proj.",
    ".mlp.Wi.": ".mlp.gate_up_proj.",
    ".mlp.Wo.": ".mlp.down_proj.",
    "^decoder.": "lm_head.",
}
# Names of the classes of transformers, and of the repositories' own code before these
_GTE_NAMES = {
    "^gte.": "",
    "^new.": "",
    **_EMBEDDING_NAMES,
    "^encoder.layer.": "layers.",
    "^layers.": "model.layers.",
    ".attention.qkv_proj.": ".self_attn.qkv_proj.",
    ".attention.o_proj.": ".self_attn.o_proj.",
    ".attn_ln.": ".post_attention_layernorm.",
    ".mlp_ln.": ".post_feedforward_layernorm.",
    ".post_mlp_layernorm.": ".post_feedforward_layernorm.",
}
_NOMIC_NAMES = {
    "^nomic_bert.": "",
    "^bert.": "",
    "^emb_ln.": "embeddings.LayerNorm.",
    **_EMBEDDING_NAMES,
    "^encoder.layers.": "layers.",
    "^layers.": "model.layers.",
    ".attn.Wqkv.": ".self_attn.qkv_proj.",
    ".attn.out_proj.": ".self_attn.o_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_feedforward_layernorm.",
    ".mlp.fc11.": ".mlp.up_proj.",
    ".mlp.fc12.": ".mlp.gate_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
    ".post_mlp_layernorm.": ".post_feedforward_layernorm.",
}
_JINA_NAMES = {
    "^roberta.": "",
    "^emb_ln.": "embeddings.LayerNorm.",
    **_EMBEDDING_NAMES,
    "^encoder.layers.": "layers.",
    "^layers.": "model.layers.",
    ".mixer.Wqkv.": ".self_attn.qkv_proj.",
    ".mixer.out_proj.": ".self_attn.o_proj.",
    ".norm1.": ".post_attention_layernorm.",
    ".norm2.": ".post_feedforward_layernorm.",
    ".mlp.fc1.": ".mlp.up_proj.",
    ".mlp.fc2.": ".mlp.down_proj.",
    ".post_mlp_layernorm.": ".post_feedforward_layernorm.",
}
_OUTPUT = HeadLayer("lm_head", outputs="vocabulary")
_POOLER = HeadLayer("pooler.dense", outputs="hidden", activation="tanh")
_LABELS = HeadLayer("classifier")
_BERT_HEADS = {
    "labels": (_POOLER, _LABELS),
    "token_labels": (_LABELS,),
    "vocabulary": (HeadLayer("head.dense", outputs="hidden", activation="hidden_act", norm="head.norm"), _OUTPUT),
}
_ROBERTA_HEADS = {
    "labels": (
        HeadLayer("classifier.dense", outputs="hidden", activation="tanh"),
        HeadLayer("classifier.out_proj"),
    ),
    "token_labels": (_LABELS,),
    "vocabulary": (HeadLayer("head.dense", outputs="hidden", activation="gelu", norm="head.norm"), _OUTPUT),
}
_ELECTRA_HEADS = {
    "labels": (
        HeadLayer("classifier.dense", outputs="hidden", activation="gelu"),
        HeadLayer("classifier.out_proj"),
    ),
    "token_labels": (_LABELS,),
}
_DISTILBERT_HEADS = _BERT_HEADS | {
    "labels": (HeadLayer("pre_classifier", outputs="hidden", activation="relu"), _LABELS)
}
_MODERNBERT_HEAD = HeadLayer(
    "head.dense",
    outputs="hidden",
    activation="classifier_activation",
    has_bias="classifier_bias",
    norm="head.norm",
    norm_has_bias=False,
)
_MODERNBERT_HEADS = {
    "labels": (_MODERNBERT_HEAD, _LABELS),
    "token_labels": (_MODERNBERT_HEAD, _LABELS),
    "vocabulary": (_MODERNBERT_HEAD, _OUTPUT),
}
_EUROBERT_HEADS = {
    "labels": (HeadLayer("dense", outputs="hidden", activation="gelu"), _LABELS),
    "token_labels": (_LABELS,),
    "vocabulary": (_OUTPUT,),
}
_ENDS: dict[str, str] = {
    "states": "Model",
    "labels": "ForSequenceClassification",
    "token_labels": "ForTokenClassification",
    "vocabulary": "ForMaskedLM",
}
# Beginnings of the names of heads' tensors, of which a class has only some
_HEADS: tuple[str, ...] = (
    "pooler.",
    "cls.",
    "lm_head.",
    "classifier.",
    "qa_outputs.",
    "head.",
    "decoder.",
    "dense.",
    "pre_classifier.",
)
_HEADS += (
    "generator_predictions.",
    "generator_lm_head.",
    "vocab_transform.",
    "vocab_layer_norm.",
    "vocab_projector.",
    "discriminator_predictions.",
)


def _classes(
    stem: str,
    model_type: str,
    models: str,
    defaults: Mapping[str, Any],
    heads: Mapping[str, tuple[HeadLayer, ...]],
    prefix: str,
    **parts: Any,
) -> dict[str, Family]:
    """The classes of an encoder. heads: layers of those that have some. prefix: of the body's tensors in these."""
    unused = (*_HEADS, *(f"{prefix}.{name}" for name in _HEADS))
    found: dict[str, Family] = {}
    for makes, end in _ENDS.items():
        if makes != "states" and makes not in heads:
            continue
        own = parts | {"makes": makes, "head": heads.get(makes, ()), "unused_heads": unused}
        if makes == "labels":
            own["pools"] = "cls"  # unless config.json says otherwise
        own["has_output_bias"] = parts.get("has_output_bias", True) if makes == "vocabulary" else False
        found[f"{stem}{end}"] = Family(model_type, models, defaults, **own)
    return found


_ROBERTA = _COMMON | {
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
_ROBERTA_PARTS = _WITH_TABLE | {
    "position_offset": 2,
    "counts_offset": True,
    "fixed": {"pad_token_id": 1, "is_decoder": False, "position_embedding_type": "absolute"},
    "renames": _BERT_NAMES,
}
_ROTARY = _COMMON | {"hidden_act": "silu", "rope_theta": 1000.0, "max_position_embeddings": 2048}
_GTE = _COMMON | {
    "vocab_size": 250048,
    "max_position_embeddings": 8192,
    "type_vocab_size": 1,
    "rope_theta": 160000.0,
    "pad_token_id": 1,
}
_GTE_PARTS = _PARTS | {"bias": True, "out_bias": True, "mlp_down_bias": True, "renames": _GTE_NAMES}
# The distances of tokens count in both directions (arXiv:2310.19923); transformers has no class of it.
_JINA_BERT = _classes(
    "JinaBert",
    "bert",
    "Jina Embeddings v2, Jina Reranker v1",
    _COMMON
    | {
        "vocab_size": 30528,
        "max_position_embeddings": 8192,
        "feed_forward_type": "geglu",
        "position_embedding_type": "alibi",
    },
    {makes: _BERT_HEADS[makes] for makes in ("labels", "token_labels")},
    "bert",
    **_PARTS
    | {
        "pools": "mean",
        "bias": True,
        "out_bias": True,
        "mlp_down_bias": True,
        "rope_layers": "none",
        "alibi": "after_scale",
        "activation_key": "feed_forward_type",
        "activations": {"geglu": "gelu", "reglu": "relu"},
        "fixed": {"is_decoder": False, "position_embedding_type": "alibi"},
        "renames": _JINA_BERT_NAMES,
    },
)

FAMILIES: Mapping[str, Family] = {
    **_classes(
        "Bert",
        "bert",
        "BERT, MiniLM, BGE, E5, GTE, Arctic Embed",
        _COMMON,
        _BERT_HEADS,
        "bert",
        **_WITH_TABLE | {"fixed": {"is_decoder": False, "position_embedding_type": "absolute"}, "renames": _BERT_NAMES},
    ),
    **_classes("Roberta", "roberta", "RoBERTa", _ROBERTA, _ROBERTA_HEADS, "roberta", **_ROBERTA_PARTS),
    **_classes(
        "XLMRoberta",
        "xlm-roberta",
        "XLM-RoBERTa, BGE-M3, multilingual E5",
        _ROBERTA,
        _ROBERTA_HEADS,
        "roberta",
        **_ROBERTA_PARTS,
    ),
    **_classes("Camembert", "camembert", "CamemBERT", _ROBERTA, _ROBERTA_HEADS, "roberta", **_ROBERTA_PARTS),
    **_classes(
        "Electra",
        "electra",
        "ELECTRA",
        _COMMON | {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "embedding_size": 128},
        _ELECTRA_HEADS,
        "electra",
        **_WITH_TABLE
        | {
            "equal_keys": {"embedding_size": "hidden_size"},
            "fixed": {"is_decoder": False, "position_embedding_type": "absolute"},
            "renames": _BERT_NAMES,
        },
    ),
    **_classes(
        "MPNet",
        "mpnet",
        "MPNet, all-mpnet-base-v2",
        _ROBERTA
        | {
            "vocab_size": 30527,
            "max_position_embeddings": 512,
            "type_vocab_size": 0,
            "relative_attention_num_buckets": 32,
        },
        _ROBERTA_HEADS,
        "mpnet",
        **_WITH_TABLE
        | {
            "position_offset": 2,
            "counts_offset": True,
            "has_distance_biases": True,
            "fixed": {"pad_token_id": 1, "relative_attention_num_buckets": 32},
            "renames": _MPNET_NAMES,
        },
    ),
    **_classes(
        "DistilBert",
        "distilbert",
        "DistilBERT",
        _COMMON | {"type_vocab_size": 0},
        _DISTILBERT_HEADS,
        "distilbert",
        **_WITH_TABLE
        | {
            "own_keys": {
                "hidden_size": "dim",
                "num_hidden_layers": "n_layers",
                "num_attention_heads": "n_heads",
                "intermediate_size": "hidden_dim",
                "hidden_act": "activation",
            },
            "renames": _DISTILBERT_NAMES,
        },
    ),
    **_classes(
        "ModernBert",
        "modernbert",
        "ModernBERT, GTE ModernBERT",
        {
            "vocab_size": 50368,
            "hidden_size": 768,
            "intermediate_size": 1152,
            "num_hidden_layers": 22,
            "num_attention_heads": 12,
            "hidden_activation": "gelu",
            "max_position_embeddings": 8192,
            "norm_eps": 1e-5,
            "local_attention": 128,
            "rope_theta": 160000.0,
            "rope_local_base_freq": 10000.0,
            "classifier_pooling": "cls",
            "classifier_activation": "gelu",
            "decoder_bias": True,
            "tie_word_embeddings": True,
            "pad_token_id": 50283,
            "bos_token_id": 50281,
            "eos_token_id": 50282,
        },
        _MODERNBERT_HEADS,
        "model",
        is_causal=False,
        pools="cls",
        pools_key="classifier_pooling",
        norm=Norm(kind="layer"),
        eps_key="norm_eps",
        is_bare_first=True,
        has_embedding_norm=True,
        has_output_bias="decoder_bias",
        activation_key="hidden_activation",
        bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        windows="all_but_each_global",
        window_rope="local",
        own_keys={"rope_theta": "global_rope_theta", "rope_local_base_freq": "local_rope_theta"},
        fixed={"norm_bias": False},
        renames=_MODERNBERT_NAMES,
    ),
    **_classes(
        "NomicBert",
        "nomic_bert",
        "Nomic Embed v1 and v1.5",
        _ROTARY | {"vocab_size": 30528},
        {makes: _BERT_HEADS[makes] for makes in ("labels", "token_labels")},
        "nomic_bert",
        **_PARTS
        | {
            "pools": "mean",
            "activations": {"swiglu": "silu"},
            "own_keys": {
                "hidden_size": "n_embd",
                "num_hidden_layers": "n_layer",
                "num_attention_heads": "n_head",
                "intermediate_size": "n_inner",
                "max_position_embeddings": "n_positions",
                "hidden_act": "activation_function",
                "layer_norm_eps": "layer_norm_epsilon",
                "rope_theta": "rotary_emb_base",
            },
            "fixed": {
                "qkv_proj_bias": False,
                "mlp_fc1_bias": False,
                "mlp_fc2_bias": False,
                "prenorm": False,
                "rotary_emb_fraction": 1.0,
                "rotary_scaling_factor": None,
                "num_experts": 0,
            },
            "renames": _NOMIC_NAMES,
        },
    ),
    **_classes(
        "Gte",
        "gte",
        "GTE v1.5 and multilingual, Arctic Embed M v2",
        _GTE,
        {makes: _BERT_HEADS[makes] for makes in ("labels", "token_labels")},
        "gte",
        **_GTE_PARTS,
    ),
    **_classes(  # GTE under the names of the repositories' own code, whose files have them
        "New",
        "new",
        "GTE v1.5 and multilingual in their first form",
        _GTE | {"type_vocab_size": 0, "rope_theta": 10000.0, "pad_token_id": 0},
        {makes: _BERT_HEADS[makes] for makes in ("labels", "token_labels")},
        "new",
        **_GTE_PARTS
        | {
            "fixed": {
                "position_embedding_type": "rope",
                "layer_norm_type": "layer_norm",
                "pack_qkv": True,
                "logn_attention_scale": False,
            },
        },
    ),
    **_JINA_BERT,
    # Files for embeddings, which have the class with the output layer of BERT, and no results of it
    "JinaBertForMaskedLM": _JINA_BERT["JinaBertModel"],
    **_classes(
        "JinaEmbeddingsV3",
        "jina_embeddings_v3",
        "Jina Embeddings v3",
        _COMMON
        | {
            "vocab_size": 250002,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "max_position_embeddings": 8194,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "rope_theta": 20000.0,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
        {makes: _ROBERTA_HEADS[makes] for makes in ("labels", "token_labels")},
        "roberta",
        **_PARTS
        | {
            "pools": "mean",
            "bias": True,
            "out_bias": True,
            "mlp_bias": True,
            "is_gated": False,
            "renames": _JINA_NAMES,
        },
    ),
    **_classes(
        "EuroBert",
        "eurobert",
        "EuroBERT",
        LLAMA
        | {
            "vocab_size": 128256,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "classifier_pooling": "late",
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "pad_token_id": 128001,
        },
        _EUROBERT_HEADS,
        "model",
        is_causal=False,
        pools="mean",
        pools_key="classifier_pooling",
        bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        has_output_bias="mlp_bias",
    ),
    "LlamaBidirectionalModel": Family(
        "llama_bidirec",
        "Llama Nemotron Embed",
        LLAMA,
        is_causal=False,
        makes="states",
        pools="mean",
        pools_key="pooling",
        bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
}
