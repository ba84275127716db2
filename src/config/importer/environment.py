"""Environment variables of a launch: which of them are options here, and what the others are for."""

from __future__ import annotations

import re

from .counterparts import Counterpart, choice, gone, needless, to

_HUB = "this program reads it too"
_GPU = "it belongs to libraries of GPUs; set it for `engine up` too if it is one of CUDA's, torch's or Triton's"
_ONE = "there is one engine, so nothing has to be chosen"

VARIABLES: dict[str, Counterpart] = {
    "VLLM_API_KEY": to("server.api_key", "VLLM_API_KEY"),
    "SGLANG_API_KEY": to("server.api_key", "SGLANG_API_KEY"),
    "LLAMA_API_KEY": to("server.api_key", "LLAMA_API_KEY", commas=True),
    "VLLM_LOGGING_LEVEL": choice(
        "server.log_level",
        "VLLM_LOGGING_LEVEL",
        values={"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error"},
    ),
    "VLLM_BATCH_INVARIANT": choice("model.batch_invariant", "VLLM_BATCH_INVARIANT", values={"1": "true", "0": "false"}),
    "VLLM_CPU_KVCACHE_SPACE": to("cache.kv_cache_memory_bytes", "VLLM_CPU_KVCACHE_SPACE", unit="GiB"),
    "OMP_NUM_THREADS": to("device.num_threads", "OMP_NUM_THREADS"),
    "VLLM_CPU_OMP_THREADS_BIND": gone(
        "`device.numa_bind_cpus` names the cores of each process", "VLLM_CPU_OMP_THREADS_BIND"
    ),
    "VLLM_ATTENTION_BACKEND": gone("`engine plan` says which kernels run here", "VLLM_ATTENTION_BACKEND"),
    "VLLM_USE_V1": needless(_ONE, "VLLM_USE_V1"),
    "VLLM_WORKER_MULTIPROC_METHOD": needless(_ONE, "VLLM_WORKER_MULTIPROC_METHOD"),
    "VLLM_USE_MODELSCOPE": gone("models come from the Hugging Face hub or a folder", "VLLM_USE_MODELSCOPE"),
    "SGLANG_USE_MODELSCOPE": gone("models come from the Hugging Face hub or a folder", "SGLANG_USE_MODELSCOPE"),
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": gone(
        "`model.hf_overrides` says that a model is good for more", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    ),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": choice(
        "server.enable_lora_routes",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        values={**dict.fromkeys(("1", "true", "True"), "true"), **dict.fromkeys(("0", "false", "False"), "")},
    ),
    "VLLM_LORA_RESOLVER_CACHE_DIR": to("lora.resolver_folder", "VLLM_LORA_RESOLVER_CACHE_DIR"),
    "VLLM_LORA_RESOLVER_HF_REPO_LIST": gone(
        "`lora.modules` takes hub ids; requests do not choose repositories", "VLLM_LORA_RESOLVER_HF_REPO_LIST"
    ),
    "CUDA_VISIBLE_DEVICES": gone("set it for `engine up` too: it says which GPU is used", "CUDA_VISIBLE_DEVICES"),
    "HIP_VISIBLE_DEVICES": gone("`device.device` says where the model runs", "HIP_VISIBLE_DEVICES"),
}
_OTHERS = (
    (re.compile(r"HF_\w+|HUGGING_FACE_HUB_TOKEN|HUGGINGFACE_\w+|TRANSFORMERS_\w+"), needless(_HUB)),
    (re.compile(r"ENGINE__\w+"), needless("this program reads it; the manifest could say it instead")),
    (re.compile(r"(\w+_)?(proxy|PROXY)"), needless(_HUB)),
    (
        re.compile(r"(NCCL|CUDA|CUBLAS|PYTORCH|TORCH|TORCHINDUCTOR|TRITON|FLASHINFER|NVIDIA|HSA|ROCR?|GLOO)_\w+"),
        gone(_GPU),
    ),
)


def variable(name: str) -> Counterpart | None:
    """The counterpart of a variable; None for an unknown one."""
    if name in VARIABLES:
        return VARIABLES[name]
    return next((found for pattern, found in _OTHERS if pattern.fullmatch(name)), None)
