"""Writes docs/guide/parity.md from a run: `python -m tools.parity [FAMILY ...]`.

The results of a run are kept in record.json; a run of some families replaces theirs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.models.checkpoints import FAMILIES
from tests.models.test_logits import TOKENS

from .measure import MORE_ROUNDED, NUM_PROMPTS, NUM_ROUNDED, OUTLIER, compare

RECORD = Path(__file__).with_name("record.json")
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "parity.md"
_HEAD = """\
<!-- Written by `python -m tools.parity` from its last run; do not edit. -->

# Parity with transformers

Small random checkpoints of every family, made by transformers and compared with it.

- *logits*: the largest difference of a logit in float32, for 37 tokens in four chunks: with the C++ kernels, and with
  torch's.
- *bfloat16*: the root mean square error of a token's logits against float32, relative to that of transformers in
  bfloat16: the median over the {tokens} tokens of {rounded} prompts.
- *outliers*: how many of these tokens have an error that is more than {outlier} times the library's median: here, and
  in the library.
- *greedy*: the number of prompts, of {count} with 1 to 26 tokens, whose 24 tokens are equal. They run through the
  scheduler, with chunks of at most 11 tokens, mixed with decode steps, shared prefixes, and a cache so small that
  sequences are preempted.
- *mutation*: whether tokens differ when block tables are read in reverse, or states are not reset in a model without.
- *through transformers*: the same model with `model.model_impl: transformers`: the largest difference of a
  log-probability from a plain run of the library, and equal prompts; -: it is refused.

What differs on purpose: the library rounds Falcon's ALiBi to bfloat16, which changes logits by up to 0.6 for long
prompts, and this build does not. With `longrope` (Phi-3) the library has other factors for a batch of short sequences;
here all sequences have the factors of `model.max_model_len`, and a warning says so. The library never uses the long
factors of Phi-MoE, only its scale for long contexts; here both are used, as in the code published with the model.

An outlier is a token for which rounding changes a choice, of an expert or of what an index chooses, or a token after
such a one in its prompt. In glm4_moe, qwen3_moe, mixtral, minimax and nemotron_h, every token with other experts than
in float32 is an outlier, and there are no outliers before the first of them; in Phi-MoE, other experts may also come
within the tolerance of its router. Which tokens these are is chance: for one prompt, two experts of glm4_moe have the
scores 0.7352 and 0.7346 in float32, and 0.7363 and 0.7375 in bfloat16. The root mean square over such a prompt says
only which side rounded across a margin: 3.15 times the library's for this one, 0.16 to 1.64 times for eleven others.
It varies without choices too, in zamba2 from 0.63 to 1.38 times. So the column *bfloat16* is a median. In dots3 a
fifth of all tokens are outliers, and the median over six prompts is 0.71 to 1.14; so it has {more} prompts.

"""
_COLUMNS = [
    "family",
    "logits, C++",
    "logits, torch",
    "bfloat16",
    "outliers",
    "greedy",
    "mixed steps",
    "prefix hits",
    "preempted",
    "mutation",
    "through transformers",
    "run",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help=f"of {', '.join(FAMILIES)}; by default all")
    arguments = parser.parse_args()
    record: dict[str, dict[str, Any]] = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    versions = f"{datetime.date.today()}, torch {torch.__version__}, transformers {transformers.__version__}"
    for family in arguments.families or FAMILIES:
        record[family] = {**compare(family).as_dict(), "versions": versions}
        print(family, record[family], flush=True)
        kept = {name: record[name] for name in FAMILIES if name in record}
        RECORD.write_text(json.dumps(kept, indent=1) + "\n")
        PAGE.write_text(page(kept))
    return 0


def page(record: dict[str, dict[str, Any]]) -> str:
    rows = [_COLUMNS, ["---"] * len(_COLUMNS), *(_row(family, found) for family, found in record.items())]
    head = _HEAD.format(
        count=NUM_PROMPTS,
        rounded=NUM_ROUNDED,
        tokens=NUM_ROUNDED * len(TOKENS),
        outlier=OUTLIER,
        more=MORE_ROUNDED["dots3"],
    )
    return head + "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def _row(family: str, found: dict[str, Any]) -> list[object]:
    library = found.get("through_library")
    return [
        family,
        f"{found['largest_change']:.1e}",
        f"{found['largest_change_in_torch']:.1e}",
        f"{found['bfloat16']['error']:.2f}",
        f"{found['bfloat16']['outliers']}, {found['bfloat16']['library_outliers']}",
        f"{found['equal_prompts']} of {NUM_PROMPTS}",
        found["num_mixed_steps"],
        found["prefix_hits"],
        found["num_preemptions"],
        "found" if found["notices_mutation"] else "not found",
        f"{library['largest_change']:.1e}, {library['equal_prompts']} of {NUM_PROMPTS}" if library else "-",
        found["versions"],
    ]


if __name__ == "__main__":
    sys.exit(main())
