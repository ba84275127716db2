"""Options of `text-embeddings-router` (TEI) and what they are here. Spellings as of its release 1.9."""

from __future__ import annotations

from ..schema.refused.reasons import TRACE_NAME
from .counterparts import by_name, choice, gone, needless, switch, to

_PROMPTS = "requests name a prompt of the model: `prompt_name`"
_POOLING = {"cls": "CLS", "mean": "MEAN", "last-token": "LAST"}

TABLE = by_name(
    to("model.model", "--model-id"),
    to("model.revision", "--revision"),
    to("model.served_model_name", "--served-model-name"),
    choice("model.dtype", "--dtype", values={}),
    choice(
        "model.pooler_config.pooling_type",
        "--pooling",
        values=_POOLING,
        only=tuple(_POOLING),
        says="SPLADE is read from the files of the model",
    ),
    gone("the layers after the pool are read from modules.json of the model", "--dense-path"),
    gone(_PROMPTS, "--default-prompt-name", "--default-prompt"),
    needless("texts are cut on the routes of TEI, unless a request has `truncate: false`", "--auto-truncate",
             takes="maybe"),
    to("load.download_dir", "--huggingface-hub-cache"),
    to("model.hf_token", "--hf-api-token", "--hf-token"),
    to("scheduler.max_num_batched_tokens", "--max-batch-tokens"),
    to("scheduler.max_num_seqs", "--max-batch-requests"),
    to("scheduler.max_queued_requests", "--max-concurrent-requests", says="counts waiting texts only"),
    gone("requests have their own limits here: the guide on the HTTP API lists them", "--max-client-batch-size"),
    needless("the tokenizer uses threads of its own", "--tokenization-workers"),
    to("server.host", "--hostname"),
    to("server.port", "-p", "--port"),
    to("server.uds", "--uds-path"),
    to("server.api_key", "--api-key"),
    to("server.max_request_bytes", "--payload-limit"),
    to("server.allowed_origins", "--cors-allow-origin", commas=True),
    switch("server.log_format", "json", "--json-output"),
    needless("a log line has no spans", "--disable-spans", takes="maybe"),
    to("observability.otlp_traces_endpoint", "--otlp-endpoint"),
    gone(TRACE_NAME, "--otlp-service-name"),
    gone("/metrics is served at the address of the API", "--prometheus-port"),
)  # fmt: skip

# TEI reads every option from a variable too: MAX_BATCH_TOKENS is --max-batch-tokens.
VARIABLES = {
    name.removeprefix("--").replace("-", "_").upper(): found for name, found in TABLE.items() if name.startswith("--")
}

NOTES = {
    "server.host": "TEI without --hostname listens on every address; here it is this machine only. To serve others, "
    "set `server.host: 0.0.0.0` and `server.api_key`.",
    "server.port": "TEI without --port listens on 3000, its images on 80; here it is 8000.",
}
