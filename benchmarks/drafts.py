"""Decoding with and without drafts, in the shape of a model, in turns in one process.

    python -m benchmarks.drafts [--model qwen3-0.6b] [--rows 1 4 16] [--lines 300] [--tokens 400] [--rounds 3]

The work is real text of this repository: a file, and the same file after some edits as the answer, where drafts pay;
and an answer in which nothing occurs twice, where they can only cost. Weights are random, so the answers are forced:
the model computes every step, and the sampler every token, which the text replaces.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the engine; read when torch is loaded

import tokenizers

from stoker.cli.bench.forced import ForcedEngine
from stoker.config import Resolved, load_deployment, read_machine_spec, read_model_files, resolve_deployment

ROOT = Path(__file__).parents[1]
EDITED = ROOT / "src" / "engine" / "core" / "step_planner.py"
RENAMED = {"draft": "step", "_columns": "_table", "prefills": "prompts"}


def resolved_of(model: Path) -> Resolved:
    manifest = {
        "apiVersion": "stoker/v1",
        "kind": "Deployment",
        "model": {"model": str(model), "skip_tokenizer_init": True, "max_model_len": 16384},
        "load": {"load_format": "dummy"},
        "cache": {"num_gpu_blocks_override": 4096},
        "speculative": {"method": "ngram"},
        "device": {"device": "cpu"},
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "deployment.yaml"
        file.write_text(json.dumps(manifest))
        deployment = load_deployment([file], env={})
    return resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())


def edited_file(num_lines: int, num_tokens: int) -> tuple[list[int], list[int]]:
    """A prompt with the first lines of the file, and the first tokens of these after the edits."""
    tokenizer = tokenizers.Tokenizer.from_file(str(ROOT / "src" / "builtin" / "tiny" / "tokenizer.json"))
    text = "".join(EDITED.read_text().splitlines(keepends=True)[:num_lines])
    after = text
    for old, new in RENAMED.items():
        after = after.replace(old, new)
    prompt = f"Rename {', '.join(RENAMED)} in this file.\n{text}\n"
    return tokenizer.encode(prompt).ids, tokenizer.encode(after).ids[:num_tokens]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    settings = resolved_of(ROOT / "benchmarks" / "models" / arguments.model)
    engine = ForcedEngine(settings)
    print("steps of tokens:", {size: f"{1e3 * seconds:.1f} ms" for size, seconds in engine.step_seconds.items()})
    prompt, answer = edited_file(arguments.lines, arguments.tokens)
    numbers, most = random.Random(0), settings.speculative.num_speculative_tokens
    vocab_size = min(settings.model_spec.vocab_size, 30_000)
    print(f"prompt of {len(prompt)} tokens")
    print("| work | rows | ms per token without | with | ratio | accepted |\n|---|---|---|---|---|---|")
    for work in ("edit", "new"):
        for rows in arguments.rows:
            answers = [
                answer if work == "edit" else numbers.sample(range(vocab_size), len(answer)) for _ in range(rows)
            ]
            found = [
                (engine.decode(prompt, answers, None), engine.decode(prompt, answers, engine.drafting(most)))
                for _ in range(arguments.rounds)
            ]
            without, with_drafts = (statistics.median(each[side].seconds for each in found) for side in (0, 1))
            ratio = statistics.median(each[0].seconds / each[1].seconds for each in found)
            millis = f"{1e3 * without:.1f} | {1e3 * with_drafts:.1f}"
            counts = found[-1][1].drafts
            accepted = "" if counts is None else f"{sum(counts.accepted)}/{counts.tokens}"
            print(f"| {work} | {rows} | {millis} | {ratio:.2f} | {accepted} |", flush=True)


if __name__ == "__main__":
    main()
