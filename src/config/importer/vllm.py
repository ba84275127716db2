"""What vLLM's command line and environment say beyond the options that exist here under the same names."""

from __future__ import annotations

from .counterparts import by_name, gone, needless, to

_GPU = "it tunes kernels of a GPU; `engine plan` says which kernels run here"
_NODES = "this build serves from one machine; run one deployment on each and put a balancer in front"

# Options of newer releases that no option here is called after.
TABLE = by_name(
    gone(_GPU, "--attention-backend", "--attention-config", "-ac", "--mamba-backend", "--all2all-backend"),
    gone(_GPU, "--moe-backend", "--kernel-config", "--optimization-level", "--performance-mode"),
    gone(_GPU, "--enable-flashinfer-autotune", "--no-enable-flashinfer-autotune", takes=0),
    gone(_NODES, "--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port"),
    gone("`model.dtype` says it for weights and activations", "--quantization-config"),
    gone("this build serves text", "--mm-encoder-attn-backend"),
    needless("this build serves text", "--language-model-only", takes=0),
    to("cache.gpu_memory_utilization", "--device-memory-utilization"),
)

NOTES = {
    "server.host": "vLLM without --host listens on every address; here it is this machine only. To serve others, set "
    "`server.host: 0.0.0.0` and `server.api_key`.",
}
