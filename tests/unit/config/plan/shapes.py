"""config.json of well-known models, cut to the keys that sizes follow from, with their published parameter counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stoker.model.read import read_config
from stoker.model.spec import ModelSpec

FOLDER = Path(__file__).parent / "shape_files"


def config_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def write_config(folder: Path, config: dict[str, Any] | str) -> Path:
    """A model directory that holds nothing but a config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    values = config_of(config) if isinstance(config, str) else config
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def _llama(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
    } | changes


_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_INDEX = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
_DEEPSEEK_V3 = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
}
_GEMMA = {"model_type": "gemma2", "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216}
# name -> config, parameters, bytes of bfloat16 keys and values: per token, of windows, per sequence
SHAPES: dict[str, tuple[dict[str, Any], int, tuple[int, tuple[tuple[int, int], ...], int]]] = {
    "qwen3-0.6b": (config_of("qwen3-0.6b"), 596_049_920, (114688, (), 0)),
    "llama-3.1-8b": (config_of("llama-3.1-8b"), 8_030_261_248, (131072, (), 0)),
    "llama-3.1-70b": (config_of("llama-3.1-70b"), 70_553_706_496, (327680, (), 0)),
    "mistral-7b": (_llama(model_type="mistral", sliding_window=4096), 7_241_732_096, (0, ((4096, 131072),), 0)),
    "mixtral-8x7b": (
        _llama(model_type="mixtral", num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
        46_702_792_704,
        (131072, (), 0),
    ),
    "qwen3-30b-a3b": (
        _llama(
            **_EXPERTS,
            architectures=["Qwen3MoeForCausalLM"],
            model_type="qwen3_moe",
            vocab_size=151936,
            hidden_size=2048,
            intermediate_size=6144,
            num_hidden_layers=48,
            num_key_value_heads=4,
            max_position_embeddings=40960,
            head_dim=128,
        ),
        30_532_122_624,
        (98304, (), 0),
    ),
    "gemma-2-2b": (
        _llama(**_GEMMA, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4, head_dim=256),
        2_614_341_888,
        (53248, ((4096, 53248),), 0),
    ),
    "gemma-3-1b": (
        _llama(
            model_type="gemma3_text",
            vocab_size=262144,
            hidden_size=1152,
            intermediate_size=6912,
            num_hidden_layers=26,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=256,
            sliding_window=512,
        ),
        999_885_952,
        (4096, ((512, 22528),), 0),
    ),
    "deepseek-v2-lite": (
        _llama(
            **_MLA,
            model_type="deepseek_v2",
            vocab_size=102400,
            hidden_size=2048,
            intermediate_size=10944,
            moe_intermediate_size=1408,
            num_hidden_layers=27,
            num_attention_heads=16,
            num_key_value_heads=16,
            q_lora_rank=None,
            n_routed_experts=64,
            n_shared_experts=2,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
        ),
        15_706_484_224,
        (31104, (), 0),
    ),
    "deepseek-v3": (
        _llama(
            **_MLA,
            **_DEEPSEEK_V3,
            architectures=["DeepseekV3ForCausalLM"],
            model_type="deepseek_v3",
        ),
        671_026_419_200,
        (70272, (), 0),
    ),
    "deepseek-v3.2": (
        _llama(
            **_MLA,
            **_DEEPSEEK_V3,
            **_INDEX,
            model_type="deepseek_v32",
        ),
        671_877_944_064,
        (85888, (), 0),
    ),
    "glm-5": (
        _llama(
            **_MLA | {"qk_nope_head_dim": 192, "v_head_dim": 256} | _INDEX | {"index_n_heads": 32},
            model_type="glm_moe_dsa",
            vocab_size=154880,
            hidden_size=6144,
            intermediate_size=12288,
            moe_intermediate_size=2048,
            num_hidden_layers=78,
            num_attention_heads=64,
            num_key_value_heads=64,
            q_lora_rank=2048,
            n_routed_experts=256,
            n_shared_experts=1,
            num_experts_per_tok=8,
            first_k_dense_replace=3,
        ),
        744_000_000_000,
        (109824, (), 0),
    ),
    "gpt-oss-20b": (
        _llama(
            architectures=["GptOssForCausalLM"],
            model_type="gpt_oss",
            vocab_size=201088,
            hidden_size=2880,
            intermediate_size=2880,
            num_hidden_layers=24,
            num_attention_heads=64,
            head_dim=64,
            num_local_experts=32,
            num_experts_per_tok=4,
            sliding_window=128,
            max_position_embeddings=131072,
            attention_bias=True,
        ),
        20_914_757_184,
        (24576, ((128, 24576),), 0),
    ),
    "jamba-v0.1": (
        _llama(
            model_type="jamba",
            vocab_size=65536,
            num_experts=16,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=8,
            attn_layer_offset=4,
        ),
        51_570_323_328,
        # 28 layers of 8192 x 16 float32 and a convolution that looks back 3 tokens
        (16384, (), 28 * (8192 * 16 * 4 + 8192 * 3 * 2)),
    ),
    "mamba-2.8b": (
        {
            "model_type": "mamba",
            "vocab_size": 50280,
            "hidden_size": 2560,
            "num_hidden_layers": 64,
            "tie_word_embeddings": True,
        },
        2_768_345_600,
        (0, (), 64 * (5120 * 16 * 4 + 5120 * 3 * 2)),
    ),
    "phi-3-mini": (
        _llama(model_type="phi3", vocab_size=32064, hidden_size=3072, intermediate_size=8192, num_key_value_heads=32),
        3_821_079_552,
        (393216, (), 0),
    ),
    "falcon-7b": (
        {
            "model_type": "falcon",
            "vocab_size": 65024,
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "multi_query": True,
        },
        6_921_720_704,
        (8192, (), 0),
    ),
    "qwen3-next-80b-a3b": (
        config_of("qwen3-next-80b-a3b"),
        79_674_391_296,
        # 36 layers of 32 states of 128 x 128 float32, and a convolution over 8192 channels that looks back 3 tokens
        (24576, (), 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)),
    ),
    "qwen3.5-397b-a17b": (
        config_of("qwen3.5-397b-a17b"),
        396_346_000_000,  # of the language model
        (30720, (), 45 * (64 * 128 * 128 * 4 + 12288 * 3 * 2)),
    ),
    "qwen3.5-27b": (config_of("qwen3.5-27b"), 26_895_998_464, (65536, (), 48 * (48 * 128 * 128 * 4 + 10240 * 3 * 2))),
    "kimi-linear-48b-a3b": (
        config_of("kimi-linear-48b-a3b"),
        49_122_681_728,
        (8064, (), 20 * (32 * 128 * 128 * 4 + 12288 * 3 * 2)),
    ),
    "deepseek-v4-flash": (
        config_of("deepseek-v4-flash"),
        284_334_567_511,  # published are 284B
        # Of 4 tokens 512 elements and 128 of the index in 21 layers, of 128 tokens 512 in 20; of a sequence the keys of
        # 128 tokens in all layers, and the inputs of the last 8 and 128 tokens in float32.
        (21 * 320 + 20 * 8, (), 43 * 128 * 512 * 2 + 21 * 8 * 2560 * 4 + 20 * 128 * 1024 * 4),
    ),
    "lfm2-1.2b": (config_of("lfm2-1.2b"), 1_170_340_608, (12288, (), 10 * 2048 * 2 * 2)),
    "llama-4-scout": (config_of("llama-4-scout"), 107_769_861_120, (49152, ((8192, 147456),), 0)),
    "kimi-k2": (config_of("kimi-k2"), 1_026_408_000_000, (70272, (), 0)),
    "glm-4.7-flash": (config_of("glm-4.7-flash"), 29_943_000_000, (54144, (), 0)),
    "minimax-m2": (config_of("minimax-m2"), 228_703_644_928, (253952, (), 0)),
    "gpt2": (
        {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024},
        124_439_808,
        (36864, (), 0),
    ),
}


def _of(architecture: str, **config: Any) -> dict[str, Any]:
    return {"architectures": [architecture], **config}


def _gemma_4_e(hidden: int, inner: int, layers: int, period: int, **changes: Any) -> dict[str, Any]:
    """Every layer has an input of its own; every `period`-th has no window. Published are the parameters of the files,
    which have keys and values that no layer reads."""
    kinds = ["sliding_attention"] * (period - 1) + ["full_attention"]
    text = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "layer_types": kinds * (layers // period),
        "final_logit_softcapping": 30.0,
    }
    return _of("Gemma4ForConditionalGeneration", text_config=text | changes)


_GRANITE_4 = {
    "vocab_size": 100352,
    "num_hidden_layers": 40,
    "max_position_embeddings": 131072,
    "layer_types": ["attention" if index % 10 == 5 else "mamba" for index in range(40)],
    "mamba_d_state": 128,
    "tie_word_embeddings": True,
}
_ZAMBA2 = {"vocab_size": 32000, "num_attention_heads": 32, "num_key_value_heads": 32, "use_mem_rope": True}
# name -> config, parameters: of families that are described exactly
NATIVE: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": (
        _of("GPT2LMHeadModel", n_embd=768, n_layer=12, n_head=12, n_positions=1024, vocab_size=50257),
        124_439_808,
    ),
    "opt-1.3b": (
        _of(
            "OPTForCausalLM",
            hidden_size=2048,
            ffn_dim=8192,
            num_hidden_layers=24,
            num_attention_heads=32,
            word_embed_proj_dim=2048,
        ),
        1_315_758_080,
    ),
    "pythia-1b": (
        _of(
            "GPTNeoXForCausalLM",
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=8,
            vocab_size=50304,
            rotary_pct=0.25,
            rotary_emb_base=10000,
        ),
        1_011_781_632,
    ),
    "gpt-j-6b": (_of("GPTJForCausalLM", n_embd=4096, n_layer=28, n_head=16, rotary_dim=64), 6_050_882_784),
    "recurrentgemma-2b": (
        _of("RecurrentGemmaForCausalLM", num_key_value_heads=1, intermediate_size=15360),
        2_682_862_080,
    ),
    "zamba-7b": (_of("ZambaForCausalLM"), 7_232_490_496),
    "zamba2-1.2b": (
        _of(
            "Zamba2ForCausalLM",
            hidden_size=2048,
            num_hidden_layers=38,
            layers_block_type=["hybrid" if index % 6 == 5 and index < 36 else "mamba" for index in range(38)],
            n_mamba_heads=64,
            mamba_d_state=128,
            use_shared_attention_adapter=True,
            **_ZAMBA2,
        ),
        1_215_064_704,
    ),
    "zamba2-7b": (
        _of(
            "Zamba2ForCausalLM",
            hidden_size=3584,
            num_hidden_layers=81,
            layers_block_type=["hybrid" if index == 6 or index in range(11, 78, 6) else "mamba" for index in range(81)],
            num_mem_blocks=2,
            n_mamba_heads=112,
            mamba_ngroups=2,
            **_ZAMBA2,
        ),
        7_356_749_648,
    ),
    "falcon-7b": (_of("FalconForCausalLM", multi_query=True, num_kv_heads=71), 6_921_720_704),
    "falcon-40b": (
        _of(
            "FalconForCausalLM",
            hidden_size=8192,
            num_hidden_layers=60,
            num_attention_heads=128,
            num_kv_heads=8,
            new_decoder_architecture=True,
        ),
        41_303_293_952,
    ),
    "falcon-rw-1b": (
        _of(
            "FalconForCausalLM",
            hidden_size=2048,
            num_hidden_layers=24,
            num_attention_heads=32,
            vocab_size=50304,
            alibi=True,
            bias=True,
            multi_query=False,
            parallel_attn=False,
        ),
        1_311_625_216,
    ),
    "bloom-560m": (_of("BloomForCausalLM", n_embed=1024, n_layer=24, n_head=16), 559_214_592),
    "gemma-4-31b": (
        _of(
            "Gemma4ForConditionalGeneration",
            text_config={
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "num_hidden_layers": 60,
                "num_attention_heads": 32,
                "num_key_value_heads": 16,
                "num_global_key_value_heads": 4,
                "attention_k_eq_v": True,
                "hidden_size_per_layer_input": 0,
                "sliding_window": 1024,
                "max_position_embeddings": 262144,
                "final_logit_softcapping": 30.0,
            },
        ),
        30_700_000_000,
    ),
    # The card's 11.95B are with 0.04B of embeddings for images and audio, which are not loaded.
    "gemma-4-12b": (
        _of(
            "Gemma4UnifiedForConditionalGeneration",
            text_config={
                "hidden_size": 3840,
                "intermediate_size": 15360,
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "num_global_key_value_heads": 1,
                "attention_k_eq_v": True,
                "sliding_window": 1024,
                "max_position_embeddings": 262144,
                "final_logit_softcapping": 30.0,
            },
        ),
        11_910_000_000,
    ),
    "gemma-4-e2b": (
        _gemma_4_e(1536, 6144, 35, 5, num_key_value_heads=1, num_kv_shared_layers=20, use_double_wide_mlp=True),
        4_650_000_000,
    ),
    "gemma-4-e4b": (_gemma_4_e(2560, 10240, 42, 6, num_key_value_heads=2, num_kv_shared_layers=18), 7_520_000_000),
    "llama-4-scout": (config_of("llama-4-scout"), 107_769_861_120),
    "gemma-4-26b-a4b": (
        _of(
            "Gemma4ForConditionalGeneration",
            text_config={
                "hidden_size": 2816,
                "intermediate_size": 2112,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "num_global_key_value_heads": 2,
                "attention_k_eq_v": True,
                "hidden_size_per_layer_input": 0,
                "sliding_window": 1024,
                "use_bidirectional_attention": "vision",
                "enable_moe_block": True,
                "num_experts": 128,
                "top_k_experts": 8,
                "moe_intermediate_size": 704,
            },
        ),
        25_200_000_000,
    ),
    "llama-4-maverick": (
        _of("Llama4ForCausalLM", num_local_experts=128, interleave_moe_layer_step=2, use_qk_norm=False),
        400_711_000_000,
    ),
    "olmoe-1b-7b": (_of("OlmoeForCausalLM", intermediate_size=1024), 6_919_161_856),
    "qwen1.5-moe-a2.7b": (_of("Qwen2MoeForCausalLM"), 14_315_784_192),
    "ernie-4.5-21b-a3b": (_of("Ernie4_5_MoeForCausalLM"), 21_830_000_000),
    "dots.llm1": (
        _of(
            "Dots1ForCausalLM",
            hidden_size=4096,
            n_routed_experts=128,
            n_shared_experts=2,
            num_experts_per_tok=6,
            first_k_dense_replace=1,
        ),
        142_774_000_000,
    ),
    "hunyuan-a13b": (
        _of(
            "HunYuanMoEV1ForCausalLM",
            vocab_size=128167,
            hidden_size=4096,
            intermediate_size=3072,
            num_key_value_heads=8,
            head_dim=128,
            num_experts=64,
            moe_topk=[8] * 32,
            tie_word_embeddings=True,
        ),
        80_393_000_000,
    ),
    "phi-2": (_of("PhiForCausalLM", hidden_size=2560, intermediate_size=10240, num_hidden_layers=32), 2_779_683_840),
    "phi-3.5-moe": (_of("PhimoeForCausalLM", attention_bias=True, lm_head_bias=True), 41_873_153_344),
    "starcoder": (
        _of(
            "GPTBigCodeForCausalLM",
            n_embd=6144,
            n_inner=24576,
            n_layer=40,
            n_head=48,
            n_positions=8192,
            vocab_size=49152,
        ),
        15_517_456_384,
    ),
    "nemotron-3-nano-30b-a3b": (
        _of(
            "NemotronHForCausalLM",
            hidden_size=2688,
            hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            max_position_embeddings=262144,
            num_key_value_heads=2,
            mamba_num_heads=64,
            n_routed_experts=128,
            num_experts_per_tok=6,
            moe_intermediate_size=1856,
            moe_shared_expert_intermediate_size=3712,
        ),
        31_577_940_288,
    ),
    "nemotron-h-8b": (
        _of("NemotronHForCausalLM", hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"),
        8_100_852_736,
    ),
    "granite-4.0-h-small": (
        _of(
            "GraniteMoeHybridForCausalLM",
            **_GRANITE_4,
            num_key_value_heads=8,
            intermediate_size=768,
            shared_intermediate_size=1536,
            num_local_experts=72,
            num_experts_per_tok=10,
        ),
        32_207_337_984,
    ),
    "granite-4.0-h-tiny": (
        _of(
            "GraniteMoeHybridForCausalLM",
            **_GRANITE_4,
            hidden_size=1536,
            num_attention_heads=12,
            num_key_value_heads=4,
            intermediate_size=512,
            shared_intermediate_size=1024,
            num_local_experts=64,
            num_experts_per_tok=6,
            mamba_n_heads=48,
        ),
        6_939_037_248,
    ),
    "falcon-h1-7b": (
        _of(
            "FalconH1ForCausalLM",
            vocab_size=130048,
            hidden_size=3072,
            intermediate_size=12288,
            num_hidden_layers=44,
            num_attention_heads=12,
            num_key_value_heads=2,
            head_dim=128,
            mamba_d_ssm=3072,
            mamba_n_heads=24,
        ),
        7_585_654_784,
    ),
    "falcon-mamba-7b": (
        _of(
            "FalconMambaForCausalLM",
            vocab_size=65024,
            hidden_size=4096,
            intermediate_size=8192,
            expand=16,
            num_hidden_layers=64,
            time_step_rank=256,
            tie_word_embeddings=False,
        ),
        7_272_665_088,
    ),
    # The defaults of its configuration class in transformers, not its published config.json. The parameters are those
    # of the class in transformers, and 256 biases of the router in each of 45 layers.
    "dots-3": (_of("Dots3NoteForCausalLM"), 279_551_718_016 + 45 * 256),
    "jamba-1.5-mini": (_of("JambaForCausalLM"), 51_570_323_328),
    "mamba-2.8b": (_of("MambaForCausalLM", hidden_size=2560, num_hidden_layers=64), 2_768_345_600),
    "codestral-mamba-7b": (_of("Mamba2ForCausalLM"), 7_285_403_648),
    # Published numbers of encoders without the layer after the first token, which vectors do not need.
    "all-minilm-l6-v2": (
        _of(
            "BertModel",
            hidden_size=384,
            intermediate_size=1536,
            num_hidden_layers=6,
        ),
        22_713_216 - 147_840,
    ),
    "bge-m3": (
        _of(
            "XLMRobertaModel",
            vocab_size=250002,
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=24,
            num_attention_heads=16,
            max_position_embeddings=8194,
            type_vocab_size=1,
        ),
        567_754_752 - 1_049_600,
    ),
    # Each layer has the 384 biases of distances, which files have once.
    "all-mpnet-base-v2": (_of("MPNetModel", max_position_embeddings=514), 109_486_464 - 590_592 + 11 * 384),
    "modernbert-base": (_of("ModernBertForMaskedLM"), 149_655_232),
}


def spec_of(name: str) -> ModelSpec:
    """The description of the model of SHAPES with this name."""
    return read_config(SHAPES[name][0])[0]
