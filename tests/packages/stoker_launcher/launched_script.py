"""What each rank of a launcher runs in test_launched.py.

Its argument is a JSON object; it prints a JSON object for each result.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from safetensors.torch import load_file

import stoker.builtin
from stoker import LLM, SamplingParams
from stoker.engine.api import CallError, Constraint

PROMPTS = ["Once upon a time", "The answer is", "def f(x):"]


def sampling() -> list[SamplingParams]:
    """Greedy, random with log-probabilities, and with a grammar, which is compiled before the first step."""
    return [
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=1, seed=3, max_tokens=9, n=2, logprobs=1, prompt_logprobs=0, stop=("e",)),
        SamplingParams(temperature=1, seed=5, max_tokens=7, constraint=Constraint("start: /[a-z]+ [0-9]+/")),
    ]


def results(llm: LLM) -> list[list[object]]:
    return [
        [one.token_ids, one.text, one.finish_reason, one.logprobs is not None, len(result.prompt_logprobs or ())]
        for result in llm.generate(PROMPTS, sampling(), use_tqdm=False)
        for one in result.outputs
    ]


def calls(llm: LLM) -> list[object]:
    """What the workers return, an error on one rank, and the results with other weights."""
    name = "model.embed_tokens.weight"
    table = load_file(Path(stoker.builtin.__file__).parent / "tiny" / "model.safetensors")[name]
    places = llm.collective_rpc("place")
    llm.collective_rpc("load", ({name: table.roll(1, 0)},))
    others = results(llm)
    errors = []
    for call in (("fails_on", (len(places) - 1,)), ("nothing",), ("thing",)):
        try:
            llm.collective_rpc(*call)
        except CallError as error:
            errors.append(str(error))
    llm.collective_rpc("load", ({name: table},))
    return [places, others, errors, results(llm)]


def main() -> None:
    given = json.loads(sys.argv[1])
    rank = os.environ.get("RANK", "")
    llm = LLM("builtin:tiny", dtype="float32", max_model_len=256, num_threads=1, **given["options"])
    tell("results", results(llm))
    if "worker_extension_cls" in given["options"]:
        tell("calls", calls(llm))
    if rank == given.get("leaves"):
        return
    own = given.get("own", {}).get(rank, {})
    prompts, params = own.get("prompts", PROMPTS), SamplingParams(**{"max_tokens": 200, **own.get("sampling", {})})
    for _ in range(given.get("more", 0)):
        llm.generate(prompts, params, use_tqdm=False)
    tell("done", rank)


def tell(what: str, value: object) -> None:
    line = json.dumps({what: value, "rank": os.environ.get("RANK")}) + "\n"
    os.write(sys.stdout.fileno(), line.encode())  # at once: ranks of torchrun share a pipe


if __name__ == "__main__":
    main()
