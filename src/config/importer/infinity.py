"""Options of `infinity_emb v2` (Infinity) and what they are here. Spellings as of its release 0.0.78."""

from __future__ import annotations

from .counterparts import by_name, choice, gone, needless, switch, to

_OWN = "this build computes the model itself, from its safetensors files"
_POOLING = {"cls": "CLS", "mean": "MEAN"}

TABLE = by_name(
    to("model.model", "--model-id"),
    to("model.served_model_name", "--served-model-name"),
    to("model.revision", "--revision"),
    choice("model.dtype", "--dtype", values={}, only=("auto", "float16", "bfloat16", "float32")),
    choice(
        "model.pooler_config.pooling_type",
        "--pooling-method",
        values={**_POOLING, "auto": ""},
        only=(*_POOLING, "auto"),
    ),
    switch("model.trust_remote_code", "true", "--trust-remote-code"),
    switch("model.trust_remote_code", "false", "--no-trust-remote-code"),
    choice("device.device", "--device", values={"auto": ""}, only=("auto", "cpu", "cuda")),
    gone("`device` and its number of replicas choose the GPUs", "--device-id"),
    to("scheduler.max_num_seqs", "--batch-size"),
    needless(_OWN, "--engine"),
    needless(_OWN, "--compile", "--no-compile", "--bettertransformer", "--no-bettertransformer", takes=0),
    needless(_OWN, "--onnx-disable-optimize", "--no-onnx-disable-optimize", takes=0),
    needless(_OWN, "--onnx-do-not-prefer-quantized", "--no-onnx-do-not-prefer-quantized", takes=0),
    gone("requests choose the form of a vector: `encoding_format`, `embedding_types`", "--embedding-dtype"),
    needless("the engine is warmed up before it serves", "--model-warmup", "--no-model-warmup", takes=0),
    needless("a vector is computed again for each request", "--vector-disk-cache", "--no-vector-disk-cache", takes=0),
    needless("batches are counted in tokens", "--lengths-via-tokenize", "--no-lengths-via-tokenize", takes=0),
    gone("start it and stop it: nothing else loads a model ahead", "--preload-only", "--no-preload-only", takes=0),
    to("server.host", "--host"),
    to("server.port", "--port"),
    to("server.api_key", "--api-key"),
    to("server.root_path", "--proxy-root-path"),
    gone("every route has its path here; /v1/embeddings and /embeddings are the same", "--url-prefix"),
    needless("a path with a slash at its end is a 404", "--redirect-slash"),
    switch("server.allowed_origins", "*", "--permissive-cors"),
    needless("a web page of another site is not served", "--no-permissive-cors", takes=0),
    choice("server.log_level", "--log-level", values={"critical": "critical", "trace": "debug"}),
)

# Infinity reads every option from a variable too: INFINITY_BATCH_SIZE is --batch-size.
VARIABLES = {
    "INFINITY_" + name.removeprefix("--").replace("-", "_").upper(): found
    for name, found in TABLE.items()
    if found.takes == 1
}

NOTES = {
    "server.host": "Infinity without --host listens on every address; here it is this machine only. To serve others, "
    "set `server.host: 0.0.0.0` and `server.api_key`.",
    "server.port": "Infinity without --port listens on 7997; here it is 8000.",
}
