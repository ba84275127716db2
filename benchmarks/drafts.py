"""Decoding with and without drafts, in the shape of a model, in turns in one process.

    python -m benchmarks.drafts [--model qwen3-0.6b] [--rows 1 4 16] [--lines 300] [--tokens 400] [--rounds 3]
    python -m benchmarks.drafts --draft qwen3-0.6b-eagle3 --acceptance 0.7 0.0 [--rows 1 4 16 64]

The work is real text of this repository: a file, and the same file after some edits as the answer, where drafts pay;
and an answer in which nothing occurs twice, where they can only cost. Weights are random, so the answers are forced:
the model computes every step, and the sampler every token, which the text replaces. What a network drafts is the
text too, but for a share of the tokens that is chosen at random: drafts are accepted as often as `--acceptance` says.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the engine; read when torch is loaded

import tokenizers

from stoker.cli.bench.forced import ForcedEngine
from stoker.config import Resolved, load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.runner.model_drafts import ModelDrafts

ROOT = Path(__file__).parents[1]
EDITED = ROOT / "src" / "engine" / "core" / "step_planner.py"
RENAMED = {"draft": "step", "_columns": "_table", "prefills": "prompts"}


class Measured:
    def __init__(self, model: str, draft: str | None = None) -> None:
        """draft: a folder of benchmarks/models with a network that drafts; None for the text of a request."""
        self._folder = tempfile.TemporaryDirectory()
        models = ROOT / "benchmarks" / "models"
        self.settings = self._resolved(models / model, None if draft is None else models / draft)
        self.acceptance, self._random = 1.0, random.Random(0)
        self.engine = ForcedEngine(self.settings)
        if self.engine.runner.drafts is not None:
            self._spoil(self.engine.runner.drafts)

    def _spoil(self, drafts: ModelDrafts) -> None:
        """Drafts, which the sampler has made those of the text, are accepted with the given probability."""
        draft, table = drafts._draft, self.engine.runner.slots

        def spoilt(slots: Any, counts: Any) -> None:
            draft(slots, counts)
            for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
                first = int(table.num_tokens[slot])
                for place in range(first, first + count):
                    table.token_ids[slot, place] += self._random.random() >= self.acceptance

        drafts._draft = spoilt  # type: ignore[method-assign]

    def _resolved(self, model: Path, draft: Path | None) -> Resolved:
        manifest = {
            "apiVersion": "stoker/v1",
            "kind": "Deployment",
            "model": {"model": str(model), "skip_tokenizer_init": True, "max_model_len": 16384},
            "load": {"load_format": "dummy"},
            "cache": {"num_gpu_blocks_override": 4096},
            "speculative": {"method": "ngram"} if draft is None else {"model": str(draft)},
            "device": {"device": "cpu"},
        }
        file = Path(self._folder.name) / "deployment.yaml"
        file.write_text(json.dumps(manifest))
        deployment = load_deployment([file], env={})
        return resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())

    def seconds(self, prompt: list[int], answers: list[list[int]], *, drafts: bool) -> tuple[float, str]:
        """Seconds per token of each answer, after all prompts are computed, and what became of the drafts."""
        drafting = self.engine.drafting(self.settings.speculative.num_speculative_tokens) if drafts else None
        found = self.engine.decode(prompt, answers, drafting, temperature=1.0)
        counts = found.drafts
        return found.seconds, "" if counts is None else f"{sum(counts.accepted)}/{counts.tokens}"


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
    parser.add_argument("--draft", help="folder of benchmarks/models with what drafts")
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.7, 0.0], help="of what a network drafts")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    measured = Measured(arguments.model, arguments.draft)
    print(
        "steps of tokens:", {size: f"{1e3 * seconds:.1f} ms" for size, seconds in measured.engine.step_seconds.items()}
    )
    prompt, answer = edited_file(arguments.lines, arguments.tokens)
    numbers = random.Random(0)
    vocab_size = min(measured.settings.model_spec.vocab_size, 30_000)
    print(f"prompt of {len(prompt)} tokens")
    works: tuple[str | float, ...] = ("edit", "new")
    if arguments.draft is not None:
        print("drafts:", {size: f"{1e3 * seconds:.2f} ms" for size, seconds in measured.engine.draft_seconds.items()})
        works = tuple(arguments.acceptance)
    print("| work | rows | ms per token without | with | ratio | accepted |\n|---|---|---|---|---|---|")
    for work in works:
        for rows in arguments.rows:
            answers = [numbers.sample(range(vocab_size), len(answer)) if work == "new" else answer for _ in range(rows)]
            measured.acceptance = work if isinstance(work, float) else 1.0
            found = [
                (measured.seconds(prompt, answers, drafts=False), measured.seconds(prompt, answers, drafts=True))
                for _ in range(arguments.rounds)
            ]
            without, with_drafts = (statistics.median(each[side][0] for each in found) for side in (0, 1))
            ratio = statistics.median(each[0][0] / each[1][0] for each in found)
            millis = f"{1e3 * without:.1f} | {1e3 * with_drafts:.1f}"
            print(f"| {work} | {rows} | {millis} | {ratio:.2f} | {found[-1][1][1]} |", flush=True)


if __name__ == "__main__":
    main()
