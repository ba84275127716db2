"""Options of `text-generation-launcher` (TGI) and what they are here. Spellings as of its release 3."""

from __future__ import annotations

from ..schema.refused.reasons import NO_WATERMARK, OWN_KERNELS, TRACE_NAME
from .counterparts import adapters, by_name, choice, gone, needless, switch, to

_REQUESTS = "requests have their own limits here: the guide on the HTTP API lists them"
_ONE_STEP = "`scheduler.max_num_batched_tokens` is the maximum of a step, prompts and answers together"
_TUNNEL = "put a reverse proxy or a tunnel of your own in front of the server"

TABLE = by_name(
    to("model.model", "--model-id"),
    to("model.revision", "--revision"),
    to("model.tokenizer", "--tokenizer-config-path", says="here: a folder with the tokenizer"),
    choice("model.dtype", "--dtype", values={}),
    to("model.quantization", "--quantize"),
    switch("model.trust_remote_code", "true", "--trust-remote-code"),
    to("model.max_model_len", "--max-total-tokens", says="prompt and answer together, as in TGI"),
    gone("`model.max_model_len` limits prompt and answer together", "--max-input-tokens", "--max-input-length"),
    gone("`model.rope_scaling` takes the keys of config.json", "--rope-scaling", "--rope-factor"),
    to("load.download_dir", "--huggingface-hub-cache"),
    gone("give the folder of the weights as the model", "--weights-cache-override"),
    choice("cache.kv_cache_dtype", "--kv-cache-dtype", values={"fp8_e4m3fn": "fp8"}),
    to(
        "cache.gpu_memory_utilization",
        "--cuda-memory-fraction",
        says="TGI's share is of the memory that is free; here it is of all of the GPU",
    ),
    gone("`cache.kv_cache_memory_bytes` sets the size of the KV cache", "--max-batch-total-tokens"),
    to("scheduler.max_num_seqs", "--max-batch-size"),
    to("scheduler.max_queued_requests", "--max-concurrent-requests", says="counts waiting requests only"),
    to("scheduler.max_num_batched_tokens", "--max-batch-prefill-tokens", says=_ONE_STEP),
    gone("prompts and answers always share a step", "--waiting-served-ratio", "--max-waiting-tokens"),
    to("scheduler.cuda_graph_sizes", "--cuda-graphs", commas=True),
    to("parallel.tensor_parallel_size", "--num-shard"),
    gone(
        "the number of processes says it: `parallel.tensor_parallel_size`",
        "--sharded",
    ),
    gone(
        "the processes of one machine find each other; `parallel.master_addr` and `master_port` are for several",
        *("--shard-uds-path", "--master-addr", "--master-port"),
    ),
    to("speculative.num_speculative_tokens", "--speculate"),
    to("server.host", "--hostname"),
    to("server.port", "-p", "--port"),
    gone("/metrics is served at the address of the API", "--prometheus-port"),
    to("server.api_key", "--api-key"),
    to("server.allowed_origins", "--cors-allow-origin", commas=True),
    to("server.max_request_bytes", "--payload-limit"),
    to("server.drain_timeout", "--graceful-termination-timeout"),
    switch("server.log_format", "json", "--json-output"),
    to("observability.otlp_traces_endpoint", "--otlp-endpoint"),
    gone(TRACE_NAME, "--otlp-service-name"),
    adapters("--lora-adapters", commas=True),
    needless("a request without a grammar does not pay for them", "--disable-grammar-support", takes=0),
    gone(_REQUESTS, "--max-best-of", "--max-stop-sequences", "--max-client-batch-size"),
    to("model.max_logprobs", "--max-top-n-tokens"),
    needless("`prompt_logprobs` needs no option", "--enable-prefill-logprobs", takes=0),
    needless("the tokenizer uses threads of its own", "--validation-workers"),
    needless("nothing about the use is sent anywhere", "--usage-stats"),
    gone(OWN_KERNELS, "--disable-custom-kernels", takes=0),
    gone(NO_WATERMARK, "--watermark-gamma", "--watermark-delta"),
    gone(_TUNNEL, "--ngrok", takes=0),
    gone(_TUNNEL, "--ngrok-authtoken", "--ngrok-edge"),
    needless("`engine collect-env` prints it", "-e", "--env", takes=0),
)

# TGI reads every option from a variable too: MAX_TOTAL_TOKENS is --max-total-tokens.
VARIABLES = {
    name.removeprefix("--").replace("-", "_").upper(): found for name, found in TABLE.items() if name.startswith("--")
}

NOTES = {
    "server.host": "TGI without --hostname listens on every address; here it is this machine only. To serve others, "
    "set `server.host: 0.0.0.0` and `server.api_key`.",
    "server.port": "TGI without --port listens on 3000, its images on 80; here it is 8000.",
}
