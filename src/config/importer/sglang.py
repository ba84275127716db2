"""Options of SGLang's server and what they are here. Spellings as of its 2026 documentation, older ones beside them."""

from __future__ import annotations

import re

from ...formats.registry import find, reasoning_names, tool_names
from ..schema.refused.reasons import GATHERED_TOKENS
from .counterparts import Counterpart, by_name, choice, gone, needless, section, switch, template, to

_GPU = "it tunes kernels of a GPU; `engine plan` says which kernels run here"
_COMPILED = "this build compiles no models: its own kernels and captured graphs take that place"
_ATTENTION = (
    "replicas have their own attention here: `parallel.data_parallel_size` with `parallel.enable_expert_parallel`, "
    "without which each has all experts too"
)
_METRICS = "/metrics is always there; `server.disable_log_stats` is what switches statistics off"
_PRIORITY = "the order is turned round: SGLang serves larger numbers first, here smaller ones come first"
_EXPERTS = {"1": "false", **{str(size): "true" for size in range(2, 129)}}

TABLE = by_name(
    to("model.model", "--model-path", "--model"),
    to("model.tokenizer", "--tokenizer-path"),
    to("model.tokenizer_mode", "--tokenizer-mode"),
    switch("model.skip_tokenizer_init", "true", "--skip-tokenizer-init"),
    to("model.revision", "--revision"),
    to("model.max_model_len", "--context-length"),
    choice("model.dtype", "--dtype", values={"float": "float32", "half": "float16"}),
    to("model.quantization", "--quantization"),
    to("model.seed", "--random-seed"),
    to("model.hf_overrides", "--json-model-override-args"),
    choice("model.model_impl", "--model-impl", values={"sglang": "native"}),
    switch("model.trust_remote_code", "true", "--trust-remote-code"),
    switch("model.runner", "pooling", "--is-embedding"),
    choice(
        "model.generation_config",
        "--sampling-defaults",
        only=("openai", "model"),
        values={"openai": "none", "model": "auto"},
        says="`none` stands for the API's own defaults instead of the model's",
    ),
    switch("compilation.level", "0", "--disable-cuda-graph"),
    to("compilation.cudagraph_capture_sizes", "--cuda-graph-bs", takes="many"),
    to("scheduler.cuda_graph_sizes", "--cuda-graph-max-bs"),
    switch("model.batch_invariant", "true", "--enable-deterministic-inference"),
    to("load.load_format", "--load-format"),
    to("load.download_dir", "--download-dir"),
    to("load.model_loader_extra_config", "--model-loader-extra-config"),
    choice("cache.mamba_ssm_cache_dtype", "--mamba-ssm-dtype", values={}),
    choice("cache.kv_cache_dtype", "--kv-cache-dtype", values={"bf16": "bfloat16"}),
    to("cache.block_size", "--page-size"),
    switch("cache.enable_prefix_caching", "false", "--disable-radix-cache"),
    to(
        "cache.gpu_memory_utilization",
        "--mem-fraction-static",
        says="SGLang's share is for weights and KV cache; here it is of all that the engine may use, so raise it",
    ),
    to("cache.cpu_offload_gb", "--cpu-offload-gb"),
    to("scheduler.max_num_seqs", "--max-running-requests"),
    to("scheduler.max_queued_requests", "--max-queued-requests"),
    choice(
        "scheduler.max_num_batched_tokens",
        "--chunked-prefill-size",
        says="SGLang bounds a prompt's chunk; here it is all tokens of a step, prompts and answers together",
        values={},
        elsewhere={"-1": ("scheduler.enable_chunked_prefill", "false")},
    ),
    gone("one number bounds a step here: `scheduler.max_num_batched_tokens`", "--max-prefill-tokens"),
    gone("`cache.kv_cache_memory_bytes` sets the size of the KV cache, in bytes", "--max-total-tokens"),
    choice(
        "scheduler.scheduling_policy",
        "--schedule-policy",
        values={},
        only=("fcfs", "priority"),
        says="`fcfs` and `priority` are the policies here; shared prefixes are found in any order",
    ),
    switch("scheduler.scheduling_policy", "priority", "--enable-priority-scheduling", says=_PRIORITY),
    needless("smaller numbers always come first here", "--schedule-low-priority-values-first", takes=0),
    gone("requests are admitted while blocks are free, and preempted when they run out", "--schedule-conservativeness"),
    switch("scheduler.async_scheduling", "false", "--disable-overlap-schedule"),
    needless("prompts and answers always share a step", "--enable-mixed-chunk", takes=0),
    to("parallel.tensor_parallel_size", "--tensor-parallel-size", "--tp-size", "--tp"),
    to("parallel.pipeline_parallel_size", "--pipeline-parallel-size", "--pp-size", "--pp"),
    to("parallel.data_parallel_size", "--data-parallel-size", "--dp-size", "--dp"),
    switch("parallel.disable_custom_all_reduce", "true", "--disable-custom-all-reduce"),
    choice(
        "parallel.enable_expert_parallel",
        *("--expert-parallel-size", "--ep-size", "--ep"),
        values=_EXPERTS,
        only=tuple(_EXPERTS),
        says="the processes of `parallel.tensor_parallel_size` share the experts",
    ),
    switch("parallel.enable_expert_parallel", "true", "--enable-ep-moe"),
    gone(GATHERED_TOKENS, "--enable-deepep-moe", takes=0),
    switch("parallel.enable_eplb", "true", "--enable-eplb"),
    to("parallel.eplb_config.num_redundant_experts", "--ep-num-redundant-experts"),
    gone("two numbers here: `parallel.eplb_config` has the window and the interval", "--eplb-rebalance-num-iterations"),
    to("parallel.nnodes", "--nnodes"),
    to("parallel.node_rank", "--node-rank"),
    Counterpart(
        ("--dist-init-addr", "--nccl-init-addr"),
        "parallel.master_addr",
        after=re.compile(r"(.+):(\d+)"),
        second="parallel.master_port",
    ),
    gone("a request goes to the replica that has its prefix, or to the one with least work", "--load-balance-method"),
    gone(_ATTENTION, "--enable-dp-attention", takes=0),
    to("device.device", "--device"),
    to("server.host", "--host"),
    to("server.port", "--port"),
    to("server.api_key", "--api-key"),
    gone("one set of keys guards every route: `server.api_key`", "--admin-api-key"),
    to("model.served_model_name", "--served-model-name"),
    template("--chat-template"),
    to("server.root_path", "--fastapi-root-path"),
    to("server.ssl_keyfile", "--ssl-keyfile"),
    to("server.ssl_certfile", "--ssl-certfile"),
    to("server.ssl_ca_certs", "--ssl-ca-certs"),
    choice("server.log_level", "--log-level", values={"warn": "warning", "critical": "error"}),
    to("server.http_log_level", "--log-level-http"),
    switch("server.enable_log_requests", "true", "--log-requests"),
    gone("`server.max_log_len` bounds what is shown of a prompt", "--log-requests-level"),
    switch("server.enable_prompt_tokens_details", "true", "--enable-cache-report"),
    choice(
        "server.tool_call_parser",
        "--tool-call-parser",
        says="formats go by the names of this build",
        values={written: find(name).name for name in tool_names() for written in (name, name.replace("_", "-"))},
    ),
    choice(
        "structured_outputs.reasoning_parser",
        "--reasoning-parser",
        values={name.replace("_", "-"): name for name in reasoning_names() if "_" in name},
    ),
    choice("structured_outputs.backend", "--grammar-backend", values={"llguidance": "guidance"}),
    switch("structured_outputs.disable_any_whitespace", "true", "--constrained-json-disable-any-whitespace"),
    choice(
        "speculative.method",
        "--speculative-algorithm",
        "--speculative-algo",
        values={"EAGLE": "eagle", "EAGLE3": "eagle3", "NGRAM": "ngram"},
    ),
    to("speculative.model", "--speculative-draft-model-path", "--speculative-draft-model"),
    to("speculative.num_speculative_tokens", "--speculative-num-draft-tokens"),
    to("speculative.prompt_lookup_min", "--speculative-ngram-min-match-window-size"),
    to("speculative.prompt_lookup_max", "--speculative-ngram-max-match-window-size"),
    gone("drafts are one chain of tokens here", "--speculative-num-steps", "--speculative-eagle-topk"),
    switch("lora.enable_lora", "true", "--enable-lora"),
    to("lora.max_lora_rank", "--max-lora-rank"),
    to("lora.max_loras", "--max-loras-per-batch"),
    to("lora.max_cpu_loras", "--max-loaded-loras"),
    to("server.lora_modules", "--lora-paths", takes="many"),
    to("observability.otlp_traces_endpoint", "--otlp-traces-endpoint"),
    gone("naming `observability.otlp_traces_endpoint` switches traces on", "--enable-trace", takes=0),
    section("kv_events.enable_kv_cache_events", "--kv-events-config"),
    needless(_METRICS, "--enable-metrics", takes=0),
    needless("the server is ready only when it has been warmed", "--skip-server-warmup", takes=0),
    gone("a step that hangs shows in /readyz, and the engine's death ends or restarts it", "--watchdog-timeout"),
    gone("every token is streamed as soon as it is there", "--stream-interval"),
    gone("the log has one line for each finished request", "--decode-log-interval"),
    gone(_GPU, "--attention-backend", "--sampling-backend", "--mm-attention-backend", "--moe-runner-backend"),
    gone(_GPU, "--prefill-attention-backend", "--decode-attention-backend", "--torchao-config", "--base-gpu-id"),
    gone(_GPU, "--enable-p2p-check", "--enable-nan-detection", takes=0),
    gone(_COMPILED, "--enable-torch-compile", takes=0),
    gone(_COMPILED, "--torch-compile-max-bs"),
    gone("import that file as well: engine import FILE --from sglang", "--config"),
)

NOTES = {
    "server.host": "SGLang without --host serves this machine only, and so does this.",
    "server.port": "SGLang without --port listens on 30000; here it is 8000.",
}
