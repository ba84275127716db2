"""Whether llama.cpp computes what this engine computes from the GGUF files that `engine quantize` writes.

    python -m benchmarks.gguf_peer [--peer PYTHON]

PYTHON has the package llama-cpp-python, which need not be in the environment of the engine. For builtin:tiny and small
random models of each family, in each type: of 64 greedy tokens of the engine, how many llama.cpp gives before the first
other one, how many for the same context, and the largest difference of the logarithm of a token's probability.

llama.cpp rounds activations to 8 bits where the weights are quantised, and to 16 where they are not; the engine
computes in float32. Random models turn such a difference into another token sooner or later. So each file is compared
twice: as it is, and with its weights dequantised to float32 by llama.cpp, which then rounds nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stoker import LLM, SamplingParams
from stoker.cli.flags.writing import QuantizeFlags
from stoker.cli.quantize import run
from stoker.config.checkpoint.model_files import locate
from stoker.convert.gguf_file import FILE_TYPES

NUM_TOKENS = 64
PROMPT = "What does `--max-num-seqs` do? It limits"
SMALL: dict[str, Any] = {
    "vocab_size": 3072,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA_3},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "gemma3_text": {
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 64,
        "sliding_window": 16,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    },
}
_PEER = """
import json, sys
import numpy as np
import llama_cpp

file, prompt, tokens, text, whole = json.load(sys.stdin)
if whole:
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    assert llama_cpp.llama_model_quantize(file.encode(), whole.encode(), settings) == 0
    file = whole
llm = llama_cpp.Llama(file, n_ctx=512, n_batch=512, logits_all=True, verbose=False, type_k=0, type_v=0, n_threads=2)
text = llm.tokenize(text.encode(), add_bos=False, special=True)
llm.eval(prompt + tokens)
logits = np.array(llm.scores[len(prompt) - 1 : len(prompt) - 1 + len(tokens)], dtype=np.float64)
highest = logits.max(1, keepdims=True)
chosen = logits[np.arange(len(tokens)), tokens]
logprobs = chosen - highest[:, 0] - np.log(np.exp(logits - highest).sum(1))
llm.reset()
llm.eval(prompt)
free = []
while len(free) < len(tokens):
    free.append(int(np.argmax(llm.scores[llm.n_tokens - 1])))
    llm.eval(free[-1:])
json.dump({"text": text, "best": logits.argmax(1).tolist(), "logprobs": logprobs.tolist(), "free": free}, sys.stdout)
"""


def random_model(model_type: str, folder: Path) -> Path:
    """Write a random model with the vocabulary of builtin:tiny."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(model_type, **{**SMALL, **FAMILIES[model_type]})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name == "model.norm.weight":  # of either sign: a tied embedding would only repeat the last token
                weight.normal_(0, 2.0)
            elif weight.ndim > 1:  # so that each layer adds as much as it gets
                weight.normal_(0, 1 / math.sqrt(weight.shape[1]))
            else:
                weight.add_(0.2 * torch.randn_like(weight))
        for table in {model.get_input_embeddings(), model.get_output_embeddings()}:
            table.weight.mul_(torch.exp(0.5 * torch.randn(len(table.weight), 1)))  # so that few tokens are likely
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((locate("builtin:tiny") / name).read_bytes())
    return folder


def compare(file: Path, peer: str) -> dict[str, Any]:
    """Compare with llama.cpp, with the file as it is, and with the same in float32: whether the prompt has the same
    tokens; how many tokens are the same, up to the first other one and for the same context; and the largest
    difference."""
    with LLM(str(file), dtype="float32", max_model_len=512, max_num_seqs=1) as llm:
        prompt = llm.get_tokenizer().encode(PROMPT)
        sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
        answer = llm.generate([prompt], sampling, use_tqdm=False)[0].outputs[0]
    tokens = list(answer.token_ids)
    own = [each[token].logprob for each, token in zip(answer.logprobs, tokens, strict=True)]
    row: dict[str, Any] = {}
    for name, whole in (("as it is", None), ("float32", str(file.with_suffix(".f32.gguf")))):
        given = json.dumps([str(file), prompt, tokens, PROMPT, whole])
        done = subprocess.run([peer, "-c", _PEER], input=given, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout)
        pairs = list(zip(tokens, found["free"], strict=True))
        row["prompt"] = "same" if found["text"] == prompt else "differs"
        row[name] = (
            next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), NUM_TOKENS),
            sum(mine == theirs for mine, theirs in zip(tokens, found["best"], strict=True)),
            max(abs(mine - theirs) for mine, theirs in zip(own, found["logprobs"], strict=True)),
        )
    return row


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--peer", default=sys.executable, help="a Python that has llama-cpp-python")
    options.add_argument("--types", nargs="+", default=list(FILE_TYPES))
    chosen = options.parse_args()
    columns = "".join(f"{name:>8}" for name in ("greedy", "next", "logprob"))
    print(f"{'':30}{'as it is':>24}{'in float32':>24}\n{'model':14}{'type':8}{'prompt':>8}{columns}{columns}")
    with tempfile.TemporaryDirectory() as place:
        models = {"builtin:tiny": "builtin:tiny"}
        models |= {name: str(random_model(name, Path(place) / name)) for name in FAMILIES}
        for name, model in models.items():
            for file_type in chosen.types:
                file = Path(place) / f"{name.replace(':', '-')}-{file_type}.gguf"
                method, words = f"gguf:{file_type}", "qwen2"
                with contextlib.redirect_stdout(sys.stderr):
                    if run(QuantizeFlags(model, method, str(file), pre_tokenizer=words)):
                        sys.exit(f"{name}: not written")
                row = compare(file, chosen.peer)
                numbers = "".join(
                    f"{free:8}{following:8}{difference:8.4f}"
                    for free, following, difference in (row["as it is"], row["float32"])
                )
                print(f"{name:14}{file_type:8}{row['prompt']:>8}{numbers}", flush=True)


if __name__ == "__main__":
    main()
