"""Options of llama.cpp's server and what they are here. Spellings as of its 2026 documentation."""

from __future__ import annotations

from ..schema.refused.reasons import DRAFTS_LIKE_MODEL
from .counterparts import adapters, by_name, choice, gone, key_file, needless, switch, template, to

_LAYERS = "the whole model is on one device; `device.device` says which"
_SAMPLING = "requests say it themselves; `model.override_generation_config` holds what a request leaves out"
_SHARED = "llama.cpp divides this among its slots unless the cache is unified; here it is the limit of each sequence"
_PAGES = "weights are read once into memory of this process"
_CACHE = "one block pool holds the prefixes of all sequences: `cache.kv_cache_memory_bytes` bounds it"
_TYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "q8_0": "int8"}

TABLE = by_name(
    to("model.model", "-m", "--model"),
    to(
        "model.model",
        *("-hf", "-hfr", "--hf-repo"),
        says="llama.cpp takes Q4_K_M where no quantisation follows a colon; here it must be named: owner/name:Q4_K_M",
    ),
    gone(
        "name the file, or the repository and the quantisation: owner/name:Q4_K_M",
        "-hff",
        "--hf-file",
        "-mu",
        "--model-url",
    ),
    to("model.hf_token", "-hft", "--hf-token"),
    to("model.served_model_name", "-a", "--alias", commas=True),
    choice("model.max_model_len", "-c", "--ctx-size", says=_SHARED, values={"0": "auto"}),
    choice("model.seed", "-s", "--seed", values={"-1": ""}, says="without a seed each request has a random one"),
    to("model.rope_theta", "--rope-freq-base"),
    gone("`model.rope_scaling` takes the keys of config.json", "--rope-scaling", "--rope-scale", "--rope-freq-scale"),
    gone("`model.rope_scaling` takes the keys of config.json", "--yarn-orig-ctx", "--yarn-ext-factor"),
    gone("`model.hf_overrides` replaces keys of config.json", "--override-kv"),
    *(
        to(f"model.override_generation_config.{key}", *names)
        for key, names in {
            "temperature": ("--temp", "--temperature"),
            "top_k": ("--top-k",),
            "top_p": ("--top-p",),
            "min_p": ("--min-p",),
            "repetition_penalty": ("--repeat-penalty",),
        }.items()
    ),
    choice(
        "model.override_generation_config.max_new_tokens",
        *("-n", "--predict", "--n-predict"),
        values={"-1": "", "-2": ""},  # no limit; up to the context: both are what happens without it
    ),
    gone(_SAMPLING, "--presence-penalty", "--frequency-penalty", "--typical", "--mirostat", "--samplers"),
    gone(_SAMPLING, "--grammar", "--grammar-file", "-j", "--json-schema", "-l", "--logit-bias", "--repeat-last-n"),
    gone(_SAMPLING, "--dry-multiplier", "--xtc-probability", "--top-nsigma", "-r", "--reverse-prompt"),
    gone(_SAMPLING, "--ignore-eos", takes=0),
    to("scheduler.max_num_seqs", "-np", "--parallel"),
    to(
        "scheduler.max_num_batched_tokens",
        "-b",
        "--batch-size",
        says="all tokens of a step, prompts and answers together",
    ),
    gone("a step is computed in one go", "-ub", "--ubatch-size"),
    needless("sequences always join and leave the batch as they come", "-cb", "--cont-batching", takes=0),
    gone("sequences always join and leave the batch as they come", "-nocb", "--no-cont-batching", takes=0),
    switch("cache.enable_prefix_caching", "true", "--cache-prompt"),
    switch("cache.enable_prefix_caching", "false", "--no-cache-prompt"),
    choice("cache.kv_cache_dtype", "-ctk", "--cache-type-k", values=_TYPES, says="one format holds keys and values"),
    gone("one format holds keys and values: `cache.kv_cache_dtype`", "-ctv", "--cache-type-v"),
    gone(_CACHE, "-cram", "--cache-ram", "--cache-reuse", "--slot-save-path", "-dt", "--defrag-thold"),
    gone(_CACHE, "-kvu", "--kv-unified", "--swa-full", "--context-shift", "--no-context-shift", takes=0),
    to("device.num_threads", "-t", "--threads"),
    gone("prompts and answers are computed together, by the same threads", "-tb", "--threads-batch"),
    gone("the HTTP side is one event loop", "--threads-http"),
    gone(
        "`device.numa_bind` and `numa_bind_cpus` name nodes and cores",
        "--numa",
        "-C",
        "--cpu-mask",
        "-Cr",
        "--cpu-range",
        "--prio",
    ),
    gone(_LAYERS, "-ngl", "--gpu-layers", "--n-gpu-layers", "-sm", "--split-mode", "-ts", "--tensor-split"),
    gone(_LAYERS, "-mg", "--main-gpu", "-dev", "--device", "-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe"),
    gone(_LAYERS, "-cmoe", "--cpu-moe", "-nkvo", "--no-kv-offload", takes=0),
    needless("the kernels are chosen by the processor; `engine plan` names them", "-fa", "--flash-attn", takes="maybe"),
    needless(_PAGES, "--mlock", "--mmap", "--no-mmap", "-nr", "--no-repack", "--check-tensors", takes=0),
    needless(_PAGES, "-lm", "--load-mode", "-fit", "--fit"),
    needless("a start ends with a step of its own before it is ready", "--warmup", "--no-warmup", takes=0),
    to("server.host", "--host"),
    to("server.port", "--port"),
    to("server.api_key", "--api-key", commas=True),
    key_file(
        "server.api_key",
        "--api-key-file",
        says="llama.cpp reads a key from each line; here a file holds one, and `server.api_keys_file` holds several",
    ),
    to("server.ssl_keyfile", "--ssl-key-file"),
    to("server.ssl_certfile", "--ssl-cert-file"),
    to("server.root_path", "--api-prefix", says="the prefix is what a proxy in front takes away"),
    to("server.allowed_origins", "--cors-origins", commas=True),
    to("server.chat_template", "--chat-template-file"),
    template("--chat-template"),
    gone("requests send `chat_template_kwargs`", "--chat-template-kwargs"),
    needless("templates are always read by Jinja", "--jinja", takes=0),
    gone("templates are always read by Jinja", "--no-jinja", takes=0),
    gone("`structured_outputs.reasoning_parser` names the model's own form", "--reasoning-format"),
    gone(
        "`structured_outputs.reasoning_parser` names the model's own form", "--reasoning-budget", "-rea", "--reasoning"
    ),
    gone("`server.send_stall_timeout` and its neighbours bound slow clients, each in its own way", "-to", "--timeout"),
    switch("server.log_level", "debug", "-v", "--verbose", "--log-verbose"),
    gone("`server.log_level` takes names: debug, info, warning, error", "-lv", "--verbosity", "--log-verbosity"),
    switch("server.log_format", "json", "--log-jsonl"),
    switch("server.log_level", "error", "--log-disable"),
    gone("the log goes to standard error; let the shell or the supervisor keep it", "--log-file"),
    needless("/metrics is always there", "--metrics", takes=0),
    switch("server.disable_web_page", "true", "--no-webui", "--no-ui"),
    gone("there is no page of slots; the web page and /metrics show what runs", "--slots", "--no-slots", takes=0),
    gone("the web page is part of the package, and no other files are served", "--path"),
    gone("one deployment serves one model; start one for each", "--models-dir", "--models-preset", "--models-max"),
    switch("model.runner", "pooling", "--embedding", "--embeddings"),
    switch("model.runner", "pooling", "--rerank", "--reranking"),
    adapters("--lora", commas=True),
    gone("an adapter is applied in full", "--lora-scaled"),
    gone("this build serves text", "-mm", "--mmproj", "-mmu", "--mmproj-url"),
    needless("this build serves text", "--no-mmproj", takes=0),
    to("speculative.model", "-md", "--model-draft", "--spec-draft-model"),
    to("speculative.num_speculative_tokens", "--draft", "--draft-max", "--draft-n", "--spec-draft-n-max"),
    choice(
        "speculative.method",
        "--spec-type",
        values={
            **dict.fromkeys(("ngram-simple", "ngram-cache", "ngram-map-k", "ngram-map-k4v", "ngram-mod"), "ngram"),
            "none": "",
            "draft-simple": "draft_model",
            "draft-eagle3": "eagle3",
            "draft-mtp": "mtp",
        },
    ),
    to("speculative.prompt_lookup_min", "--spec-ngram-size-n", says="the tokens that must agree"),
    gone("`speculative.num_speculative_tokens` limits each draft", "--spec-ngram-size-m"),
    gone("the last place where most tokens agree is followed", "--spec-ngram-min-hits"),
    gone("the engine chooses the number of drafts in each step", "--draft-min", "--draft-n-min", "--spec-draft-n-min"),
    gone("the engine counts how far drafts survive", "--draft-p-min", "--draft-p-split", "--spec-draft-p-min"),
    gone(DRAFTS_LIKE_MODEL, "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "-devd", "--device-draft"),
    gone(
        DRAFTS_LIKE_MODEL, "-cd", "--ctx-size-draft", "-ctkd", "--cache-type-k-draft", "-ctvd", "--cache-type-v-draft"
    ),
    gone(DRAFTS_LIKE_MODEL, "-td", "--threads-draft", "-tbd", "--threads-batch-draft", "--spec-replace"),
    gone("`speculative.past_output_tokens` keeps earlier answers in memory", "-lcs", "--lookup-cache-static"),
    gone("`speculative.past_output_tokens` keeps earlier answers in memory", "-lcd", "--lookup-cache-dynamic"),
)

NOTES = {
    "server.host": "llama-server without --host serves this machine only, and so does this.",
    "server.port": "llama-server has another default port (8080 in most releases); here it is 8000.",
}
