"""What quantisation changes in the logits of builtin:tiny, over its held-out text.

    PYTHONPATH=.dev:. python -m benchmarks.quantised_accuracy [--features avx512]

The text is dialogues of every kind that training never sampled (tools/tiny/evaluate.py). Prints, for each way to hold
and multiply the weights, the largest and the mean difference of a logit from those of float32, and the perplexity of
the answers; also for the checkpoints that `engine quantize` writes, whose codes are multiplied, with the largest
difference from their own numbers, computed by torch in float32. engine plan shows some of these: model/quantised.py.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import torch
from tokenizers import Tokenizer
from tools.tiny.evaluate import held_out
from tools.tiny.options import read_options
from tools.tiny.rendering import encode

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.config.cpu_features import wanted_level
from stoker.convert.encoders import Method
from stoker.convert.gguf_file import FILE_TYPES, convert_gguf, plan_gguf
from stoker.convert.quantised import convert, plan_conversion
from stoker.engine.kernels import select_kernels
from stoker.engine.layers.step_input import StepInput
from stoker.engine.models.registry import model_class
from stoker.engine.runner.kv_cache import KVCache
from stoker.engine.runner.loading import load_weights
from stoker.model.cache_groups import all_in_one
from stoker.model.quantised import OWN_CODES

MODEL = "builtin:tiny"
SEED, BLOCK = 20_260_000, 16
# Scheme of the weights, format of activations, of keys and values.
WAYS = (
    (None, None, None),
    (None, None, "int8"),
    *((scheme, act, None) for scheme in ("int8", "int4", "int4_pure") for act in (None, "int8")),
)


def logits_of(
    texts: list[list[int]],
    dtype: str,
    quantization: str | None,
    activations: str | None,
    kv_dtype: str | None,
    features: str,
    model: str = MODEL,
) -> Iterator[torch.Tensor]:
    """[tokens, vocabulary] in float32 for every text, each computed in one step. kv_dtype: None for `dtype`."""
    options = {"model": model, "dtype": dtype, "quantization": quantization}
    words = [word for name, value in options.items() if value for word in (f"--{name}", value)]
    deployment = load_deployment([], words)
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    spec, kind = resolved.model_spec, getattr(torch, dtype)
    kv_kind = getattr(torch, kv_dtype or dtype)
    held = quantization or (OWN_CODES if resolved.model_files.own_codes else None)
    kernels = select_kernels(
        "cpu", kind, spec.head_dims, features, kv_dtype=kv_kind, quantization=held, activations=activations
    )
    length = max(map(len, texts))
    built = model_class(spec)(spec, kernels, length, kind, torch.device("cpu"), quantization)
    load_weights(built, resolved)
    blocks = torch.arange(-(-length // BLOCK), dtype=torch.int32)
    groups = all_in_one(spec.num_layers)
    cache = KVCache(groups, len(blocks), BLOCK, spec.keeps.tensors, kv_kind)
    for text in texts:
        positions = torch.arange(len(text))
        step = StepInput(
            token_ids=torch.tensor(text),
            positions=positions,
            slot_mapping=positions,
            query_start=torch.tensor([0, len(text)], dtype=torch.int32),
            context_lens=torch.tensor([len(text)], dtype=torch.int32),
            block_tables=blocks[None, : -(-len(text) // BLOCK)].contiguous(),
            max_query_len=len(text),
            max_context_len=len(text),
        )
        yield built.logits(*built.forward(cache.by_layer([step]), cache.layers, None)).float()


def quantised_copy(method: Method, folder: Path) -> str:
    """The model as `engine quantize` writes it."""
    files = read_model_files(load_deployment([], ["--model", MODEL]))
    convert(plan_conversion(files, method), folder / method, lambda _: None)
    return str(folder / method)


def gguf_copy(file_type: str, folder: Path) -> str:
    files, file = read_model_files(load_deployment([], ["--model", MODEL])), folder / f"{file_type}.gguf"
    convert_gguf(plan_gguf(files, file_type, "qwen2"), file, lambda _: None)
    return str(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", default=wanted_level())
    parser.add_argument("--per-kind", type=int, default=12, help="dialogues of each kind")
    chosen = parser.parse_args()
    deployment = load_deployment([], ["--model", MODEL])
    tokenizer = Tokenizer.from_file(f"{read_model_files(deployment).model_path}/tokenizer.json")
    dialogues = [each for kind in held_out(read_options(), SEED + 1).values() for each in kind[: chosen.per_kind]]
    pairs = encode(tokenizer, dialogues)
    texts = [prompt + answer for prompt, answer in pairs]
    num_answers = sum(len(answer) for _, answer in pairs)
    print(f"{len(texts)} dialogues, {sum(map(len, texts))} tokens, {num_answers} of them in answers")
    print(
        "| weights | activations | keys and values | largest difference of a logit | mean | from its own numbers | "
        "perplexity |\n" + "|---" * 7 + "|"
    )
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        exact = list(logits_of(texts, "float32", None, None, None, chosen.features))
        written = {f"checkpoint {method}": quantised_copy(method, Path(folder)) for method in get_args(Method)}
        written |= {f"GGUF {each}": gguf_copy(each, Path(folder)) for each in FILE_TYPES}
        for name, model, dtype, quantization, activations, kv_dtype in (
            ("float32", MODEL, "float32", None, None, None),
            *((way[0] or "bfloat16", MODEL, "bfloat16", *way) for way in WAYS),
            *((name, model, "bfloat16", None, None, None) for name, model in written.items()),
        ):
            largest, total, count, loss = 0.0, 0.0, 0, 0.0
            found = logits_of(texts, dtype, quantization, activations, kv_dtype, chosen.features, model)
            own = logits_of(texts, "float32", None, None, None, "torch", model) if model != MODEL else exact
            own_largest = 0.0
            for (prompt, answer), reference, its_own, logits in zip(pairs, exact, own, found, strict=True):
                difference = (logits - reference).abs()
                own_largest = max(own_largest, float((logits - its_own).abs().max()))
                largest = max(largest, float(difference.max()))
                total, count = total + float(difference.double().sum()), count + difference.numel()
                first = len(prompt) - 1
                loss += float(
                    torch.nn.functional.cross_entropy(
                        logits[first : first + len(answer)].double(), torch.tensor(answer), reduction="sum"
                    )
                )
            perplexity = float(torch.tensor(loss / num_answers).exp())
            print(
                f"| {name} | {activations or dtype} | {kv_dtype or dtype} | {largest:.3f} | "
                f"{total / count:.4f} | {own_largest:.3f} | {perplexity:.4f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
