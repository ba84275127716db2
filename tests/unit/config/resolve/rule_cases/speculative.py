"""Rules about `speculative`: the command lines that break each one, and those that keep it."""

from __future__ import annotations

_DRAFTS = "--spec-method ngram"
_PROCESSORS = '--logits-processors ["collections.OrderedDict"]'

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R177": (
        [f"{_DRAFTS} -sc.prompt_lookup_min 5 -sc.prompt_lookup_max 4", f"{_DRAFTS} -sc.prompt_lookup_max 1"],
        [f"{_DRAFTS} -sc.prompt_lookup_min 5 -sc.prompt_lookup_max 5", _DRAFTS],
    ),
    "R515": (
        [
            f"{_DRAFTS} --device cuda",
            f"{_DRAFTS} -tp 2 --distributed-executor-backend external_launcher",
            f"{_DRAFTS} --model MIXTURE -ep -dp 2",
            f"{_DRAFTS} -pcp 2",
            f"{_DRAFTS} -tp 4 -dcp 2",
            f"{_DRAFTS} -tp 2 {_PROCESSORS}",
        ],
        [
            *(_DRAFTS, f"{_DRAFTS} -tp 2", f"{_DRAFTS} -pp 2", f"{_DRAFTS} -dp 2", f"{_DRAFTS} {_PROCESSORS}"),
            *("--spec-method auto --device cuda", "--spec-method auto -pcp 2", "--device cuda"),
        ],
    ),
    "R517": (
        ["--spec-tokens 4", "--spec-method auto --model STATES --spec-tokens 4", "-sc.disable_by_batch_size 4"],
        ["", f"{_DRAFTS} --spec-tokens 4", "--spec-method auto --spec-tokens 4"],
    ),
}
