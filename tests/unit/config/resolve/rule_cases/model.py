"""Rules about `model`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

import json


def _longrope(trained: int) -> str:
    """A value of hf_overrides without spaces."""
    factors = {"short_factor": [1, 1, 1, 1], "long_factor": [2, 2, 2, 2]}
    rope = {"rope_type": "longrope", **factors, "original_max_position_embeddings": trained}
    return json.dumps({"rope_scaling": rope}, separators=(",", ":"))


CASES: dict[str, tuple[list[str], list[str]]] = {
    "R542": (
        [
            "--pooler-config.max_embed_len 5",
            "--pooler-config.enable_chunked_processing true",
            "--pooler-config.returned_token_ids [1]",
            "--pooler-config.enable_flash_late_interaction true",
        ],
        ["", "--pooler-config.pooling_type MEAN"],
    ),
    "R543": (
        [
            f"--pooler-config.{name} true"
            for name in ("normalize", "softmax", "activation", "logit_bias", "logit_scale")
        ],
        ["", "--pooler-config.use_activation true"],
    ),
    "R544": (
        [
            "--pooler-config.pooling_type MEAN --pooler-config.seq_pooling_type CLS",
            "--pooler-config.pooling_type LAST --pooler-config.seq_pooling_type MEAN",
        ],
        [
            "--pooler-config.pooling_type MEAN --pooler-config.seq_pooling_type MEAN",
            "--pooler-config.pooling_type MEAN",
        ],
    ),
    "R394": (
        ["--enable-sleep-mode --disable-frontend-multiprocessing", "--enable-sleep-mode --api-server-count 2"],
        ["--enable-sleep-mode", "--enable-sleep-mode -dp 2"],
    ),
    "R395": (["--sleep-after 10m"], ["--sleep-after 10m --enable-sleep-mode"]),
    "R396": (
        ["--sleep-level 1 --enable-sleep-mode", "--sleep-level 1"],
        ["--sleep-level 1 --sleep-after 10m --enable-sleep-mode"],
    ),
    "R055": (["--skip-tokenizer-init --chat-template {{x}}"], ["--skip-tokenizer-init", "--chat-template {{x}}"]),
    "R057": (["--max-logprobs -1"], ["--max-logprobs 0"]),
    "R062": (["--disable-sliding-window"], ["", "--no-disable-sliding-window"]),
    "R498": (
        [f"--hf-overrides {_longrope(64)}"],
        ["", f"--hf-overrides {_longrope(64)} --max-model-len 64", f"--hf-overrides {_longrope(4096)}"],
    ),
    "R065": (
        ["--rope-theta 5"],
        ["", "--rope-theta 10000", "--rope-theta 5 --rope-scaling.rope_type yarn", "--hf-overrides.rope_theta 5"],
    ),
    "R281": (
        [
            "--rope-theta 5 --hf-overrides.rope_theta 6",
            "--rope-theta 5 --hf-overrides.rope_parameters.rope_theta 6",
            "--rope-scaling.rope_type yarn --hf-overrides.rope_scaling.rope_type linear",
        ],
        [
            "--rope-theta 5 --hf-overrides.rope_theta 5",
            "--rope-scaling.rope_type yarn --hf-overrides.rope_scaling.factor 4",
            "--rope-theta 5 --hf-overrides.max_position_embeddings 90",
        ],
    ),
    "R282": (
        ["--rope-scaling.factor 4", "--rope-scaling.rope_type yearn"],
        ["", "--rope-scaling.rope_type yarn", "--rope-scaling.type linear --rope-scaling.factor 2"],
    ),
    "R202": (
        ["--num-gpu-blocks-override 31 --max-model-len 512", "--kv-cache-memory-bytes 32KiB --max-model-len 512"],
        ["--num-gpu-blocks-override 32 --max-model-len 512", "--num-gpu-blocks-override 31"],
    ),
    "R330": (
        ["--config-format hf --load-format mistral"],
        ["", "--config-format hf", "--config-format hf --load-format safetensors"],
    ),
    "R205": (["--max-model-len 513"], ["--max-model-len 512", "--max-model-len -1"]),
    "R207": (["--max-model-len 1"], ["--max-model-len 2"]),
    "R242": (
        ["--logits-processor-pattern a(b", "--logits-processor-pattern [z-a]"],
        ["", "--logits-processor-pattern mine[.:].*"],
    ),
    "R243": (
        ["--logits-processors mine", "--logits-processors my.logits:One my-logits:Two"],
        ["--logits-processors my.logits:One my.logits.Two", ""],
    ),
    "R231": (["--dtype float16", "--dtype half", "--kv-cache-dtype float16"], ["--dtype float", "--dtype bfloat16"]),
    "R285": (
        ["--activation-quantization int8"],
        [
            "",
            "--quantization int4",
            "--quantization int8 --activation-quantization int8",
            "--activation-quantization none",
        ],
    ),
    "R284": (
        [
            '--logits-processor-settings {"a.b:C":{}}',
            '--logits-processors a.b.C --logits-processor-settings {"a.b:C":{}}',
        ],
        ["", '--logits-processors a.b:C --logits-processor-settings {"a.b:C":{}}', "--logits-processors a.b:C"],
    ),
    "R216": (
        ["--revision main", "--tokenizer-revision main", "--hf-token x", "--download-dir /nowhere"],
        ["", "--model Qwen/none --revision main", "--tokenizer Qwen/none --hf-token x"],
    ),
    "R217": (
        ["--skip-tokenizer-init --tokenizer a/b", "--skip-tokenizer-init --tokenizer-mode hf"],
        ["--tokenizer MODEL", "--skip-tokenizer-init", "--skip-tokenizer-init --tokenizer MODEL"],
    ),
    "R299": (
        ["--model-impl transformers --batch-invariant"],
        ["--batch-invariant", "--model-impl transformers"],
    ),
    "R300": (
        ['--model-impl transformers --hf-overrides {"architectures":["OddForCausalLM"]}'],
        ["", "--model-impl transformers"],
    ),
    "R302": (
        [
            "--model Qwen/none --trust-remote-code --model-impl transformers",
            "--model Qwen/none --trust-remote-code --model-impl transformers --code-revision main",
        ],
        [
            f"--model Qwen/none --trust-remote-code --model-impl transformers --code-revision {'0f' * 20}",
            "--trust-remote-code --model-impl transformers",
            "--model Qwen/none",
        ],
    ),
    "R303": (
        ["--code-revision main", "--code-revision main --trust-remote-code", "--model Qwen/none --code-revision main"],
        ["", f"--model Qwen/none --trust-remote-code --code-revision {'0f' * 20}"],
    ),
    "R304": (["--trust-remote-code --model-impl transformers"], ["", "--no-trust-remote-code"]),
    "R218": (["--hf-overrides.rope_thetta 1"], ["--hf-overrides.rope_theta 1"]),
}
GPU_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R298": (["--model-impl transformers"], ["", "--model-impl transformers --device cpu"]),
    "R232": (["--quantization int8"], ["--quantization int8 --device cpu", ""]),
    "R233": (["--batch-invariant"], ["--batch-invariant --device cpu", ""]),
    "R236": (["--logits-processors a.b:C"], ["--logits-processors a.b:C --device cpu", ""]),
}
INTERPRETED_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R230": (
        ["--device cuda --dtype bfloat16", "--device cuda --kv-cache-dtype bfloat16"],
        ["--device cuda", "--device cuda --dtype half", "--dtype bfloat16"],
    ),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R204": (["--gpu-memory-utilization 0.01"], ["", "--num-gpu-blocks-override 32"]),
    "R206": (
        ["--max-model-len 512 --gpu-memory-utilization 0.5"],
        ["--max-model-len 512", "--gpu-memory-utilization 0.5"],
    ),
    "R209": (
        ["--dtype bfloat16 --load-format dummy --hf-overrides.dtype float32"],
        ["", "--dtype bfloat16", "--dtype float32"],
    ),
}
