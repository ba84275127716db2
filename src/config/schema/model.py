"""Section `model`: which model, in which precision, with how much context, and its defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .pooler_config import POOLER_CONFIG
from .refused import with_refused
from .rope_scaling import ROPE_SCALING
from .sampling import SAMPLING_DEFAULTS
from .section import Section, about
from .types import Auto, ContextLen, Duration, Flag, Secret, Text, Texts, Whole, means, parse_number

_STORED = "checkpoints of this method are not read; use another checkpoint of the model, int8 or int4"
_SAME_IDEA = "write int8 or int4, which quantise an unquantised checkpoint while it loads"
_OTHER_MACHINE = "a scheme for other hardware; on a CPU write int8 or int4"
OTHER_SCHEMES = {
    **dict.fromkeys(("aqlm", "qqq", "fbgemm_fp8", "hqq", "quanto"), _STORED),
    **dict.fromkeys(("experts_int8", "deepspeedfp", "ipex"), _SAME_IDEA),
    **dict.fromkeys(("marlin", "gptq_marlin_24", "moe_wna16", "tpu_int8"), _OTHER_MACHINE),
    "neuron_quant": _OTHER_MACHINE,
}
Base = Annotated[float, BeforeValidator(parse_number), Field(gt=0, allow_inf_nan=False)]


@with_refused("model")
class ModelConfig(Section):
    """The model and how it is read: source, precision, context, sampling defaults."""

    model: Text = Field(
        description=(
            "The model to serve: a hub id, a local directory, a GGUF file, or `builtin:tiny`, which is part of the "
            "package. A hub id is downloaded once; files and directories are used in place. `owner/name:Q4_K_M` is the "
            "GGUF file of this quantisation in a repository of the hub."
        ),
        examples=["Qwen/Qwen3-0.6B", "./checkpoints/mine", "./qwen3-0.6b-q4_k_m.gguf", "builtin:tiny"],
        json_schema_extra=about(kind="model"),
    )
    model_impl: Literal["auto", "native", "transformers"] = Field(
        "auto",
        description=(
            "Which implementation of the model's architecture runs. `native` is this engine's own, the fastest. "
            "`transformers` runs the modules of the transformers library with this engine's KV cache, attention and "
            "linear layers: many more architectures, on a CPU, slower, and without a warning only if this build is "
            "tested with them. `auto` is `native` where there is one, else `transformers` for a tested architecture."
        ),
        examples=["transformers"],
        json_schema_extra=about(
            refused={
                "vllm": "write native, which is this engine's own implementation",
                "terratorch": "this build serves text; write auto",
            },
        ),
    )
    runner: Literal["auto", "generate", "pooling"] = Field(
        "auto",
        description=(
            "What the model is run for. `generate` produces text token by token, `pooling` makes something of whole "
            "texts: vectors, scores, labels. `auto` is both where the model can do both: a model that generates text "
            "gives embeddings too, of the last token. `pooling` leaves out an output layer that is not the "
            "embedding, and so needs less memory. A request says which of the model's tasks it wants."
        ),
        examples=["pooling"],
        json_schema_extra=about(
            reload="model", refused={"draft": "name the network that drafts in `speculative.model`"}
        ),
    )
    convert: Literal["auto", "none", "embed", "classify", "reward"] = Field(
        "auto",
        description=(
            "Which results of whole texts the model has. `auto`: those that its files describe, and embeddings of "
            "every model that generates text. `embed` leaves it embeddings only, `classify` (or reward, the older "
            "name) scores and labels, and neither generates text. `none` adds nothing: a model that generates text has "
            "no embeddings."
        ),
        examples=["embed"],
    )
    pooler_config: dict[str, Any] = Field(
        {},
        description=(
            "How hidden states become results, instead of what the model's files say. `pooling_type`: CLS, LAST or "
            "MEAN of a text, ALL tokens or the STEP tokens of a process reward model, whose id is `step_tag_id`; "
            "`seq_pooling_type` and `tok_pooling_type` give both kinds. `use_activation: false` returns results "
            "without normalisation, softmax or sigmoid. `dimensions` is the size of embeddings of requests that name "
            "none. Scores have `logit_mean` subtracted and are divided by `logit_sigma` before their activation. "
            "`task` leaves the model this task only."
        ),
        examples=[{"pooling_type": "MEAN", "use_activation": False}],
        json_schema_extra=about(json_schema=POOLER_CONFIG),
    )
    trust_remote_code: Flag = Field(
        False,
        description=(
            "Run the Python code in the model's repository that defines its architecture, with all rights of this "
            "process: read the code first. Needs `model_impl: transformers`, and a local directory or a "
            "`code_revision`, so that every start runs the same code; the start logs the SHA-256 of each file, and "
            "`/config` shows it. Code for tokenizers is never run."
        ),
    )
    code_revision: Text | None = Field(
        None,
        description=(
            "Commit of the hub repository whose Python code `trust_remote_code` allows: 40 hexadecimal digits. A "
            "branch or tag can change, so it is refused. Weights and config.json are those of `revision`."
        ),
        examples=["c1899de289a04d12100db370d81485cdf75e47ca"],
    )
    tokenizer: Auto | Text = Field(
        "auto",
        description=(
            "Where the tokenizer is read from: a hub id or a directory. `auto` is the model's own tokenizer. Another "
            "tokenizer must have the same vocabulary, or the answers are meaningless."
        ),
        examples=["auto", "Qwen/Qwen3-0.6B"],
        json_schema_extra=about(kind="source"),
    )
    tokenizer_mode: Literal["auto", "hf", "slow", "mistral"] = Field(
        "auto",
        description=(
            "Which files the tokenizer is built from. `auto` reads tokenizer.json, the fastest start; without one, it "
            "reads tekken.json or converts older vocabulary files. `mistral` reads tekken.json, of Mistral AI's own "
            "format, also beside a tokenizer.json; the chat template is the folder's or `server.chat_template`. `hf` "
            "loads it with transformers, including what the model's tokenizer class adds. `slow` ignores "
            "tokenizer.json and builds from the older files (vocab.json, tokenizer.model). `hf` and `slow` import "
            "transformers, which takes seconds."
        ),
        examples=["hf"],
        json_schema_extra=about(
            refused={
                "custom": "a custom tokenizer class would be code from a model; give a folder with tokenizer.json",
            },
        ),
    )
    skip_tokenizer_init: Flag = Field(
        False,
        description=(
            "Start without a tokenizer: requests and answers consist of token ids. Starts faster and works for a "
            "directory without a tokenizer; chat, text prompts and stop strings are then refused."
        ),
    )
    revision: Text | None = Field(
        None,
        description=(
            "Branch, tag or commit of the hub repository. A commit makes every start load the same files; unset is the "
            "main branch."
        ),
        examples=["main", "c1899de289a04d12100db370d81485cdf75e47ca"],
    )
    tokenizer_revision: Text | None = Field(
        None,
        description=(
            "Branch, tag or commit of the tokenizer's hub repository. Unset, it is `revision` if model and tokenizer "
            "share a repository, and the main branch otherwise."
        ),
        examples=["main"],
    )
    config_format: Literal["auto", "hf", "mistral", "gguf"] = Field(
        "auto",
        description=(
            "Format of the model's files: `hf` is config.json and the weights that it describes, `mistral` is Mistral "
            "AI's own format, params.json and consolidated safetensors, `gguf` is a GGUF file, whose header describes "
            "the model. `auto` is `gguf` for such a file and `hf` if there is a config.json. Many "
            "repositories hold both, of which only one is downloaded. Of models with a vision encoder, the text model "
            "is served."
        ),
        examples=["mistral"],
    )
    hf_config_path: Auto | Text = Field(
        "auto",
        description=(
            "Where config.json is read from: a hub id or a directory. `auto` is the model's own. For weights without a "
            "config.json, or to try other dimensions; a config.json that does not fit the weights is refused while "
            "loading."
        ),
        examples=["auto", "Qwen/Qwen3-0.6B"],
        json_schema_extra=about(kind="source"),
    )
    quantization: Annotated[
        Literal[
            "int8", "int4", "int4_pure", "awq", "awq_marlin", "gptq", "gptq_marlin", "modelopt_fp4", "modelopt_mxfp8"
        ]
        | Literal[
            "auto-round", "compressed-tensors", "fp8", "mxfp4", "modelopt", "torchao", "quark", "bitsandbytes", "gguf"
        ]
        | None,
        means(awq_marlin="awq", gptq_marlin="gptq", modelopt_fp4="modelopt", modelopt_mxfp8="modelopt"),
    ] = Field(
        None,
        description=(
            "Quantise the weights of the linear layers while the model loads; activations, norms and the KV cache keep "
            "`dtype`. `int8` needs half the memory of bfloat16 weights and is up to twice as fast for one request at a "
            "time, with answers that hardly differ from the original. `int4` needs a third, is faster still, and loses "
            "quality, which is noticeable in small models; its output layer is int8. `int4_pure` has an int4 output "
            "layer too, which is faster if the vocabulary is a large part of the model, and less accurate. With many "
            "requests at once, and for prompts, the speed is that of bfloat16. These three need a CPU. "
            "The other values are methods of quantised checkpoints, which are found without this option: a checkpoint "
            "of another method is refused, and an unquantised one too. Its matrices stay in their own codes; "
            "`int8` and `int4` quantise them again, which loses accuracy."
        ),
        examples=["int8"],
        json_schema_extra=about(devices=("cpu",), aliases=("-q",), refused=OTHER_SCHEMES),
    )
    activation_quantization: Literal["int8", "none"] | None = Field(
        None,
        description=(
            "Quantise the inputs of the quantised linear layers too: with `int8` each token's input has one scale, and "
            "the product is one of integers. Prompts and many requests at once are faster; memory does not change. "
            "Answers are less accurate than with `quantization` alone, noticeably where some elements of an input are "
            "much larger than the others: compare answers before you use it. Unset, inputs are rounded where a "
            "quantised checkpoint says so: compressed-tensors in int8 with a scale per token. With `none` these keep "
            "`dtype` too."
        ),
        examples=["int8"],
        json_schema_extra=about(devices=("cpu",)),
    )
    dtype: Annotated[
        Literal["auto", "float32", "float", "bfloat16", "float16", "half"], means(float="float32", half="float16")
    ] = Field(
        "auto",
        description=(
            "Number format of weights, activations and KV cache. bfloat16 needs half the memory of float32 and half "
            "the memory traffic; float32 (or float) is exact; float16 (or half) is as small as bfloat16, has a "
            "narrower range, and runs on GPUs only. `auto` is the checkpoint's format, or float32 for a float16 "
            "checkpoint on a CPU."
        ),
        examples=["bfloat16"],
        json_schema_extra=about(
            refused={"fp32": "write float32", "bf16": "write bfloat16", "fp16": "write float16"},
        ),
    )
    max_model_len: ContextLen = Field(
        "auto",
        description=(
            "Maximum length of a sequence, prompt and answer together. Longer requests are refused; a higher limit "
            "needs more KV cache. `auto` (or -1) is the model's own limit, or what the KV cache holds if that is less."
        ),
        examples=["32k", 4096],
        json_schema_extra=about(unit="tokens"),
    )
    disable_sliding_window: Flag = Field(
        False,
        description=(
            "Let every layer attend to the whole sequence, and limit the context to the model's sliding window, within "
            "which both are the same. The context is shorter, and all layers are alike; no effect on models without a "
            "window."
        ),
    )
    rope_scaling: dict[str, Any] = Field(
        {},
        description=(
            "How rotary positions are scaled to longer contexts, instead of what config.json says: `rope_type` "
            "(linear, dynamic, llama3 or yarn), `factor` and the parameters of that type. The model's limit grows by "
            "the factor, from `original_max_position_embeddings` if given; answers to short prompts may be slightly "
            "worse."
        ),
        examples=[{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}],
        json_schema_extra=about(json_schema=ROPE_SCALING),
    )
    rope_theta: Base | Auto = Field(
        "auto",
        description=(
            "Base of the rotary embedding, instead of the one in config.json; meant to be used with `rope_scaling`. A "
            "larger base rotates more slowly with the position; a base that the model was not trained with gives "
            "meaningless answers without an error."
        ),
        examples=[1000000],
    )
    served_model_name: Texts = Field(
        (),
        description=(
            "Names of the model in the API; the first is shown in responses and metrics. Unset, the name is the value "
            "of `model`."
        ),
        examples=[["assistant", "qwen3"]],
        json_schema_extra=about(reload="hot"),
    )
    seed: Whole = Field(
        0,
        ge=0,
        le=2**63 - 1,
        description=(
            "Seed of all random numbers: dummy weights, and sampling for requests without a seed. The same seed and "
            "the same requests in the same order give the same tokens."
        ),
        examples=[42],
    )
    max_logprobs: Whole = Field(
        20,
        ge=-1,
        description=(
            "Maximum number of log-probabilities per position that a request may ask for; more is refused. -1 removes "
            "the limit: one request can then ask for the whole vocabulary at every position."
        ),
        examples=[5],
        json_schema_extra=about(reload="hot", unit="log-probabilities per position"),
    )
    enforce_eager: Flag = Field(
        False,
        description=(
            "Run each operation of the model separately in plain PyTorch, instead of this build's fused C++ kernels, "
            "and on a GPU instead of its Triton kernels and captured graphs. Use it to check whether a kernel is at "
            "fault, and on machines without a compiler; several times slower. `compilation.level: 0` disables the "
            "graphs alone."
        ),
    )
    batch_invariant: Flag = Field(
        False,
        description=(
            "Give a prompt the same tokens and log-probabilities, bit for bit, alone or in any batch: whether it is "
            "split into chunks, found in the prefix cache or preempted. For evaluations and training that must be "
            "repeatable; random sampling needs a `seed` in the request. The speed of answers is the same in bfloat16 "
            "and float32, long prompts take a quarter longer; a stage without a C++ kernel computes one row at a time, "
            "as the start-up table shows. On a GPU every stage does."
        ),
    )
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"] = Field(
        "raw_logprobs",
        description=(
            "What `logprobs` of a request contains: `raw` is the output of the model, `processed` the distribution "
            "that a token is sampled from, after processors, bias, penalties, temperature and filters (a token that "
            "cannot be sampled has -9999); `logits` are the values before the softmax. Processed values cost a sort of "
            "the vocabulary per token. Prompt tokens are not sampled: theirs are always raw."
        ),
        examples=["processed_logprobs"],
    )
    logits_processors: Texts = Field(
        (),
        description=(
            "Import paths of classes, `package.module:Class` or with dots, that change the logits of every request "
            "before a token is sampled. They run in the engine in each step, so their time is added to every token; "
            "engine/sampling/logits_processor.py lists their methods."
        ),
        examples=[["mypackage.logits:NoProfanity"]],
    )
    logits_processor_settings: dict[str, Any] = Field(
        {},
        description=(
            "Keyword arguments for the classes of `logits_processors`, by import path. They are checked against the "
            "class's `settings_schema` if it has one."
        ),
        examples=[{"mypackage.logits:NoProfanity": {"language": "en"}}],
        json_schema_extra=about(json_schema={"type": "object", "additionalProperties": {"type": "object"}}),
    )
    enable_sleep_mode: Flag = Field(
        False,
        description=(
            "Serve POST /sleep and /wake_up, and GET /is_sleeping, by which an engine that is not used gives its "
            "memory back to the system. Level 1 frees the KV cache, and on a GPU the weights too, which are in host "
            "memory meanwhile. Level 2 frees everything: it ends the engine process, and waking loads the model again."
        ),
        json_schema_extra=about(reload="process"),
    )
    sleep_after: Duration | None = Field(
        None,
        description=(
            "Time without requests after which the engine sleeps by itself, with `enable_sleep_mode`. The next request "
            "wakes it, and waits until it is ready. Probes, metrics and lists of models neither wake it nor count as "
            "requests. Unset, it sleeps only by request."
        ),
        examples=["10m"],
        json_schema_extra=about(reload="process", unit="seconds"),
    )
    sleep_level: Literal[1, 2] = Field(
        2,
        description=(
            "Level of the sleep that follows `sleep_after`: 1 frees the KV cache, and on a GPU the weights, and wakes "
            "at once; 2 frees everything and takes as long to wake as the start of the engine."
        ),
        examples=[1],
        json_schema_extra=about(reload="process"),
    )
    logits_processor_pattern: Text | None = Field(
        None,
        description=(
            "Lets requests select logits processors by import path in `logits_processors`, if the whole path matches "
            "this regular expression. Such a request imports and calls code in the engine: allow only your own code. "
            "Unset, a request that names a processor is refused."
        ),
        examples=[r"mypackage\.logits[.:]\w+"],
    )
    hf_overrides: dict[str, Any] = Field(
        {},
        description=(
            "Changes to the model's config.json, merged key by key after it is read; null is a value here. The same "
            "keys apply to a params.json. For experiments such as another rope base; a wrong value gives wrong "
            "answers, not an error."
        ),
        examples=[{"rope_theta": 1000000}],
    )
    generation_config: Annotated[Auto | Literal["none"] | str, means(vllm="none")] = Field(
        "auto",
        min_length=1,
        description=(
            "Where default sampling parameters are read from: `auto` is the model's generation_config.json, `none` the "
            "engine's own defaults (`vllm` means the same), anything else a folder that contains such a file, such as "
            "`./vllm`. The model's file often sets a "
            "temperature that clients do not expect."
        ),
        examples=["none", "./sampling"],
        json_schema_extra=about(kind="path"),
    )
    override_generation_config: dict[str, Any] = Field(
        {},
        description=(
            "Default sampling parameters that replace those of `generation_config` one by one. A request's own value "
            "has precedence."
        ),
        examples=[{"temperature": 0.7, "top_p": 0.9}],
        json_schema_extra=about(reload="hot", json_schema=SAMPLING_DEFAULTS),
    )
    hf_token: Secret | None = Field(
        None,
        description=(
            "Token for gated or private hub repositories. Unset, the token of the hub's own login is used if there is "
            "one; true requires that token, and a download fails if there was no login. Read only while downloading."
        ),
        examples=[{"env": "HF_TOKEN"}],
    )
