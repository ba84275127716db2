"""Section `model`: which model, in which precision, with how much context, and its defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .section import Section, about
from .types import Auto, ContextLen, Flag, Secret, Texts, Whole, parse_number

_STORED = "the scheme of a checkpoint that is stored in it; take the unquantised one and write int8 or int4"
_SAME_IDEA = "write int8 or int4, which quantise an unquantised checkpoint while it loads"
_OTHER_MACHINE = "a scheme of another kind of machine; on a CPU write int8 or int4"
OTHER_SCHEMES = {
    **dict.fromkeys(("aqlm", "awq", "gptq", "compressed-tensors", "qqq", "quark", "modelopt"), _STORED),
    **dict.fromkeys(("bitsandbytes", "hqq", "experts_int8", "deepspeedfp", "ipex"), _SAME_IDEA),
    **dict.fromkeys(
        ("fp8", "fbgemm_fp8", "marlin", "gptq_marlin", "gptq_marlin_24", "awq_marlin", "moe_wna16", "tpu_int8"),
        _OTHER_MACHINE,
    ),
    "neuron_quant": _OTHER_MACHINE,
    "gguf": "GGUF files are not read; take the model's safetensors and write int8 or int4",
}
Base = Annotated[float, BeforeValidator(parse_number), Field(gt=0, allow_inf_nan=False)]


class ModelConfig(Section):
    """The model and how it is read: source, precision, context, sampling defaults."""

    model: str = Field(
        min_length=1,
        description=(
            "The model to serve: a hub id, a local directory, or `builtin:tiny`, which is part of the package. "
            "A hub id is downloaded once; a directory is used in place."
        ),
        examples=["Qwen/Qwen3-0.6B", "./checkpoints/mine", "builtin:tiny"],
        json_schema_extra=about(reload="model", kind="model"),
    )
    tokenizer: str = Field(
        "auto",
        min_length=1,
        description=(
            "Where the tokenizer comes from: a hub id or a directory. `auto` takes the model's own. "
            "Another one must have the same vocabulary, or the model reads noise."
        ),
        examples=["auto", "Qwen/Qwen3-0.6B"],
        json_schema_extra=about(reload="model", kind="model"),
    )
    tokenizer_mode: Literal["auto", "hf", "slow"] = Field(
        "auto",
        description=(
            "Which files the tokenizer is made from. `auto` reads tokenizer.json as it is, the fastest start, and "
            "converts older vocabulary files where there is none; `hf` has transformers load it with what its class "
            "adds; `slow` passes tokenizer.json over and builds from the older files (vocab.json, tokenizer.model). "
            "The last two import transformers, which takes seconds."
        ),
        examples=["hf"],
        json_schema_extra=about(
            reload="model",
            refused={
                "mistral": "this build has no library of Mistral's; a tokenizer.json of the same vocabulary works",
                "custom": "a tokenizer class of your own would be code from a model; give a folder with tokenizer.json",
            },
        ),
    )
    skip_tokenizer_init: Flag = Field(
        False,
        description=(
            "Start without a tokenizer: requests carry token ids and answers are token ids. Starts faster and works "
            "for a directory that has no tokenizer; chat, text prompts and stop strings are then refused."
        ),
        examples=[True],
        json_schema_extra=about(reload="model"),
    )
    revision: str | None = Field(
        None,
        min_length=1,
        description=(
            "Branch, tag or commit of the hub repository. A commit makes every start load the same files; "
            "unset follows the main branch."
        ),
        examples=["main", "c1899de289a04d12100db370d81485cdf75e47ca"],
        json_schema_extra=about(reload="model"),
    )
    tokenizer_revision: str | None = Field(
        None,
        min_length=1,
        description=(
            "Branch, tag or commit of the tokenizer's hub repository. Unset, `revision` counts where model and "
            "tokenizer share one repository, and the main branch elsewhere."
        ),
        examples=["main"],
        json_schema_extra=about(reload="model"),
    )
    code_revision: str | None = Field(
        None,
        description="Branch, tag or commit of the hub repository that holds a model's Python code.",
        examples=["main"],
        json_schema_extra=about(
            reload="model",
            devices=(),
            refused="no code of a model's repository is ever fetched or run; `model.revision` pins its files",
        ),
    )
    trust_remote_code: Flag = Field(
        False,
        description="Run Python code that a model's repository brings along.",
        examples=[True],
        json_schema_extra=about(
            reload="model",
            devices=(),
            refused="no code of a model's repository is ever run; take a model whose architecture this build has",
        ),
    )
    hf_config_path: str = Field(
        "auto",
        min_length=1,
        description=(
            "Where config.json is read: a hub id or a directory. `auto` takes the model's own. For weights that come "
            "without one, or to try another shape; one that does not fit the weights is refused while loading."
        ),
        examples=["auto", "Qwen/Qwen3-0.6B"],
        json_schema_extra=about(reload="model", kind="model"),
    )
    config_format: Literal["auto", "hf", "mistral"] = Field(
        "auto",
        description="Layout of the model's configuration file: `hf` is config.json.",
        examples=["hf"],
        json_schema_extra=about(
            reload="model",
            devices=(),
            refused="this build reads config.json; take a repository that has one, not params.json alone",
            same=("hf",),
        ),
    )
    runner: Literal["auto", "generate", "pooling", "draft"] = Field(
        "auto",
        description="What the model is run for: `generate` gives text token by token.",
        examples=["generate"],
        json_schema_extra=about(
            reload="process",
            devices=(),
            refused="this build generates text; it makes no embeddings and runs no draft model by itself",
            same=("generate",),
        ),
    )
    convert: Literal["auto", "none", "embed", "classify", "reward"] = Field(
        "auto",
        description="Another head on the model, such as one for embeddings: `none` leaves it as it is.",
        examples=["none"],
        json_schema_extra=about(
            reload="model",
            devices=(),
            refused="this build generates text with the model's own head; nothing is converted",
            same=("none",),
        ),
    )
    pooler_config: dict[str, Any] = Field(
        {},
        description="How hidden states become one vector, for embedding models.",
        examples=[{"pooling_type": "MEAN"}],
        json_schema_extra=about(
            reload="model",
            devices=(),
            refused="this build generates text; it makes no embeddings",
        ),
    )
    model_impl: Literal["auto", "native", "vllm", "transformers", "terratorch"] = Field(
        "auto",
        description="Whose implementation of the architecture runs: `native` is this engine's own.",
        examples=["native"],
        json_schema_extra=about(
            reload="model",
            devices=(),
            refused="this build runs its own implementations only (Llama, Mistral, Qwen2, Qwen3); write auto or native",
            same=("native",),
        ),
    )
    quantization: Literal["int8", "int4", "int4_pure"] | None = Field(
        None,
        description=(
            "Turn the weights of the linear layers into fewer bits while the model loads; activations, norms and the "
            "KV cache keep `dtype`. `int8` halves bfloat16 weights, answers up to twice as fast one request at a time, "
            "and is hardly to be told from the original; `int4` takes a third, is faster again, and costs quality that "
            "small models feel. Its output layer is int8; `int4_pure` takes int4 there too, which is faster where the "
            "vocabulary is a large part of the model, and less accurate. With many requests at once, and for prompts, "
            "the speed is that of bfloat16. Needs an unquantised checkpoint, in any load format, and a CPU."
        ),
        examples=["int8"],
        json_schema_extra=about(reload="model", devices=("cpu",), aliases=("-q",), refused=OTHER_SCHEMES),
    )
    dtype: Literal["auto", "float32", "float", "bfloat16", "float16", "half"] = Field(
        "auto",
        description=(
            "Number format of weights, activations and KV cache. bfloat16 halves memory and reads twice as fast; "
            "float32 (or float) is exact; float16 (or half) is as small as bfloat16, has a narrower range, and runs "
            "on GPUs only. `auto` takes the checkpoint's own format, and float32 for a float16 checkpoint on a CPU."
        ),
        examples=["bfloat16"],
        json_schema_extra=about(
            reload="model",
            refused={"fp32": "write float32", "bf16": "write bfloat16", "fp16": "write float16"},
        ),
    )
    max_model_len: ContextLen = Field(
        "auto",
        description=(
            "Longest sequence, prompt and answer together. Longer requests are refused; a longer limit needs more KV "
            "cache. `auto` (or -1) takes the model's own limit, or what the KV cache holds if that is less."
        ),
        examples=["32k", 4096],
        json_schema_extra=about(reload="model", unit="tokens"),
    )
    disable_sliding_window: Flag = Field(
        False,
        description=(
            "Let every layer see the whole sequence, and end the context at the model's sliding window, inside which "
            "both are the same. Shorter answers for layers that are all alike; no effect on models without a window."
        ),
        examples=[True],
        json_schema_extra=about(reload="model"),
    )
    rope_scaling: dict[str, Any] = Field(
        {},
        description=(
            "How rotary positions are stretched to longer contexts, in place of what config.json says: `rope_type` "
            "(linear, dynamic, llama3 or yarn), `factor` and the numbers of the kind. The model's limit grows by the "
            "factor, from `original_max_position_embeddings` if given; short prompts may be answered a little worse."
        ),
        examples=[{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}],
        json_schema_extra=about(reload="model"),
    )
    rope_theta: Base | Auto = Field(
        "auto",
        description=(
            "Base of the rotary embedding in place of config.json's; meant to accompany `rope_scaling`. A larger base "
            "turns positions more slowly; one that the model was not trained with gives nonsense without an error."
        ),
        examples=[1000000],
        json_schema_extra=about(reload="model"),
    )
    served_model_name: Texts = Field(
        (),
        description=(
            "Names under which the API answers; the first is shown in responses and metrics. "
            "Unset, the name is what `model` says."
        ),
        examples=[["assistant", "qwen3"]],
        json_schema_extra=about(reload="hot"),
    )
    seed: Whole = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description=(
            "Seed of everything random: dummy weights, and the draws of requests that bring no seed of their own. "
            "The same seed and the same requests in the same order give the same tokens."
        ),
        examples=[42],
        json_schema_extra=about(reload="model"),
    )
    max_logprobs: Whole = Field(
        20,
        ge=-1,
        description=(
            "Most log-probabilities per position that a request may ask for; more is refused. -1 lifts the cap, and "
            "one request can then ask for the whole vocabulary at every position."
        ),
        examples=[5],
        json_schema_extra=about(reload="hot", unit="log-probabilities per position"),
    )
    enforce_eager: Flag = Field(
        False,
        description=(
            "Run each operation of the model by itself, as plain PyTorch, instead of this build's fused C++ kernels, "
            "and on a GPU instead of its Triton kernels and captured graphs. For finding out whether a kernel is at "
            "fault, and for machines without a compiler; several times slower. `compilation.level: 0` leaves out the "
            "graphs alone."
        ),
        examples=[True],
        json_schema_extra=about(reload="model"),
    )
    batch_invariant: Flag = Field(
        False,
        description=(
            "Give a prompt the same tokens and log-probabilities, bit for bit, alone or in any batch: however it is "
            "cut into chunks, found in the prefix cache or preempted. For evaluations and training that must be "
            "repeatable; draws need a `seed` in the request. Answers cost the same in bfloat16 and float32, long "
            "prompts a quarter more; a stage without a C++ kernel works one row at a time, as the start-up table says. "
            "On a GPU that is every stage."
        ),
        examples=[True],
        json_schema_extra=about(reload="model"),
    )
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"] = Field(
        "raw_logprobs",
        description=(
            "What `logprobs` of a request shows: `raw` is what the model says, `processed` what a token was drawn "
            "from, after processors, bias, penalties, temperature and cuts (one that could not be drawn has -9999); "
            "`logits` are the scores before the softmax. Processed scores cost a sort of the vocabulary per token. "
            "Prompt tokens are not drawn: theirs are always raw."
        ),
        examples=["processed_logprobs"],
        json_schema_extra=about(reload="model"),
    )
    logits_processors: Texts = Field(
        (),
        description=(
            "Import paths of classes, `package.module:Class` or with dots, that change the logits of every request "
            "before a token is drawn. They run in the engine for each step, so their time is added to every token; "
            "engine/sampling/logits_processor.py says what they must have."
        ),
        examples=[["mypackage.logits:NoProfanity"]],
        json_schema_extra=about(reload="model"),
    )
    logits_processor_pattern: str | None = Field(
        None,
        min_length=1,
        description=(
            "Lets requests name logits processors by import path in `logits_processors`, those whose whole path "
            "matches this regular expression. Such a request imports and calls code in the engine: allow only what "
            "you have written. Unset, a request that names one is refused."
        ),
        examples=[r"mypackage\.logits[.:]\w+"],
        json_schema_extra=about(reload="model"),
    )
    hf_overrides: dict[str, Any] = Field(
        {},
        description=(
            "Changes to the model's config.json, merged key by key after it is read; null is a value here. "
            "For experiments such as another rope base; a wrong value gives wrong answers, not an error."
        ),
        examples=[{"rope_theta": 1000000}],
        json_schema_extra=about(reload="model"),
    )
    generation_config: str = Field(
        "auto",
        min_length=1,
        description=(
            "Where default sampling parameters come from: `auto` the model's generation_config.json, `none` the "
            "engine's own defaults, else a folder that holds such a file. The model's file often sets a temperature "
            "that a plain client does not expect."
        ),
        examples=["none", "./sampling"],
        json_schema_extra=about(reload="model", kind="path"),
    )
    override_generation_config: dict[str, Any] = Field(
        {},
        description=(
            "Default sampling parameters that replace those of `generation_config` one by one. "
            "A request's own value still wins."
        ),
        examples=[{"temperature": 0.7, "top_p": 0.9}],
        json_schema_extra=about(reload="hot"),
    )
    hf_token: Secret | None = Field(
        None,
        description=(
            "Token for gated or private hub repositories. Unset, the token of the hub's own login is used if there is "
            "one; true insists on it, and a download fails where nobody logged in. Read only while downloading."
        ),
        examples=[{"env": "HF_TOKEN"}],
        json_schema_extra=about(reload="model"),
    )
    allowed_local_media_path: str = Field(
        "",
        description="Folder of this machine from which requests may name images and videos.",
        examples=["/srv/images"],
        json_schema_extra=about(
            reload="process", devices=(), refused="this build takes text only; no request can name a file"
        ),
    )
    allowed_media_domains: Texts = Field(
        (),
        description="Hosts from which images and videos of a request may be fetched.",
        examples=[["example.org"]],
        json_schema_extra=about(
            reload="process", devices=(), refused="this build takes text only; nothing that a request names is fetched"
        ),
    )
    enable_prompt_embeds: Flag = Field(
        False,
        description="Accept a prompt as ready-made embedding vectors.",
        examples=[True],
        json_schema_extra=about(
            reload="process", devices=(), refused="prompts are text, messages or token ids; tensors are not accepted"
        ),
    )
    enable_sleep_mode: Flag = Field(
        False,
        description="Give the memory of weights and KV cache back on demand while the process stays.",
        examples=[True],
        json_schema_extra=about(
            reload="process",
            devices=(),
            refused="it frees memory of a GPU; on a CPU, stop the process",
        ),
    )
    override_attention_dtype: str | None = Field(
        None,
        description="Number format of attention alone.",
        examples=["float32"],
        json_schema_extra=about(
            reload="model",
            devices=(),
            refused="attention reads keys and values in `model.dtype` and adds up in float32; set `model.dtype`",
        ),
    )
    io_processor_plugin: str | None = Field(
        None,
        description="Plugin that turns other payloads into prompts and outputs into other payloads.",
        examples=["my_plugin"],
        json_schema_extra=about(
            reload="process",
            devices=(),
            refused="there are no plugins; requests and answers have the shapes of the OpenAI API",
        ),
    )
