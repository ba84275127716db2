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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the engine; read when torch is loaded

import tokenizers
import torch

from stoker.config import Resolved, load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.executor.scheduler import draft_settings, scheduler_settings
from stoker.engine.executor.step_times import draft_times, step_times
from stoker.engine.runner.load_runner import host_parts, load_runner
from stoker.engine.runner.model_drafts import ModelDrafts
from stoker.engine.runner.sample_head import SampleHead
from stoker.engine.sampling.sampler import Sampled, Sampler
from stoker.engine.spec_decode.step_times import DraftTimes

ROOT = Path(__file__).parents[1]
EDITED = ROOT / "src" / "engine" / "core" / "step_planner.py"
RENAMED = {"draft": "step", "_columns": "_table", "prefills": "prompts"}


class Forced(Sampler):
    """Samples as always, and puts the tokens of `answers` in the place of what was sampled."""

    answers: Sequence[Sequence[int]] = ()  # by the seed of the request

    def sample(self, logits: torch.Tensor, slots: Any, lengths: Any, token_table: Any) -> Sampled:
        found = super().sample(logits, slots, lengths, token_table)
        places = (lengths - self.table.num_prompt_tokens[slots]).tolist()
        for row, (seed, place) in enumerate(zip(self.table.seed[slots].tolist(), places, strict=True)):
            if place < len(self.answers[seed]):
                found.token_ids[row] = self.answers[seed][place]
        return found


class Measured:
    def __init__(self, model: str, draft: str | None = None) -> None:
        """draft: a folder of benchmarks/models with a network that drafts; None for the text of a request."""
        self._folder = tempfile.TemporaryDirectory()
        models = ROOT / "benchmarks" / "models"
        self.settings = self._resolved(models / model, None if draft is None else models / draft)
        self.acceptance, self._random = 1.0, random.Random(0)
        self.sampler: Forced | None = None

        def head(made: Any) -> SampleHead:
            self.sampler = Forced(made.slots.sampling, made.loaded.kernels)
            return SampleHead(made, self.sampler)

        self.runner = load_runner(self.settings, host_parts(head))
        assert self.sampler is not None
        self.sampler.answers = [[]]
        self.runner.warm_up()
        self.times = DraftTimes()
        self.measured = step_times(self.runner, self.runner.execute)
        self.times.steps.measure(self.measured)
        if self.runner.drafts is not None:
            self.of_drafts = draft_times(self.runner, self.runner.execute)
            self.times.drafts.measure(self.of_drafts)
            self._spoil(self.runner.drafts)

    def _spoil(self, drafts: ModelDrafts) -> None:
        """Drafts, which the sampler has made those of the text, are accepted with the given probability."""
        draft, table = drafts._draft, self.runner.slots

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
        assert self.sampler is not None
        self.sampler.answers = answers
        drafting = draft_settings(self.settings, self.times) if drafts else None
        scheduler = Scheduler(scheduler_settings(self.settings, drafting=drafting))
        for seed, answer in enumerate(answers):
            sampling = SamplingParams(temperature=1.0, seed=seed, max_tokens=len(answer), ignore_eos=True)
            scheduler.add(EngineRequest(request_id=str(seed), inputs=RequestInputs(prompt, sampling)))
        began, num_before, num_answers = 0.0, 0, 0
        begun: set[str] = set()
        while scheduler.has_work:
            plan = scheduler.schedule()
            assert plan is not None, "work is left and none of it was scheduled"
            started = time.perf_counter()
            result = self.runner.execute(plan)
            outputs = list(scheduler.finish_step(plan, result, time.perf_counter() - started))
            num_answers += sum(len(output.token_ids) for output in outputs)
            begun |= {output.request_id for output in outputs}
            if not began and len(begun) == len(answers):
                began, num_before = time.perf_counter(), num_answers
        seconds = (time.perf_counter() - began) / ((num_answers - num_before) / len(answers))
        counts = scheduler.stats().drafts
        return seconds, "" if counts is None else f"{sum(counts.accepted)}/{counts.tokens}"


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
    print("steps of tokens:", {size: f"{1e3 * seconds:.1f} ms" for size, seconds in measured.measured.items()})
    prompt, answer = edited_file(arguments.lines, arguments.tokens)
    numbers = random.Random(0)
    vocab_size = min(measured.settings.model_spec.vocab_size, 30_000)
    print(f"prompt of {len(prompt)} tokens")
    works: tuple[str | float, ...] = ("edit", "new")
    if arguments.draft is not None:
        print("drafts:", {size: f"{1e3 * seconds:.2f} ms" for size, seconds in measured.of_drafts.items()})
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
