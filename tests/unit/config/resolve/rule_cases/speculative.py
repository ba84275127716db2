"""Rules about `speculative`: the command lines that break each one, and those that keep it."""

from __future__ import annotations

_DRAFTS = "--spec-method ngram"
_DUMMY = "--load-format dummy --skip-tokenizer-init"
_STATES, _MIXTURE, _LATENTS = (f"--model {name} {_DUMMY}" for name in ("STATES", "MIXTURE", "LATENTS"))
_PROCESSORS = '--logits-processors ["collections.OrderedDict"]'

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R541": (
        ["--model ENCODER --load-format dummy --skip-tokenizer-init --speculative-config.method ngram"],
        [
            "--model ENCODER --load-format dummy --skip-tokenizer-init",
            "--model ENCODER --load-format dummy --skip-tokenizer-init --speculative-config.method auto",
            "--speculative-config.method ngram",
        ],
    ),
    "R177": (
        [f"{_DRAFTS} -sc.prompt_lookup_min 5 -sc.prompt_lookup_max 4", f"{_DRAFTS} -sc.prompt_lookup_max 1"],
        [f"{_DRAFTS} -sc.prompt_lookup_min 5 -sc.prompt_lookup_max 5", _DRAFTS],
    ),
    "R515": (
        [
            f"{_DRAFTS} --device cuda",
            f"{_DRAFTS} -tp 2 --distributed-executor-backend external_launcher",
            f"{_DRAFTS} {_MIXTURE} -ep -dp 2",
            f"{_DRAFTS} -pcp 2",
            f"{_DRAFTS} -tp 4 -dcp 2",
            f"{_DRAFTS} -tp 2 {_PROCESSORS}",
        ],
        [
            *(_DRAFTS, f"{_DRAFTS} -tp 2", f"{_DRAFTS} -pp 2", f"{_DRAFTS} -dp 2", f"{_DRAFTS} {_PROCESSORS}"),
            *("--spec-method auto --device cuda", "--spec-method auto -pcp 2", "--device cuda"),
        ],
    ),
    "R526": (
        [f"{_DRAFTS} -sc.parallel_drafting true", "-sc.parallel_drafting true"],
        [f"{_DRAFTS} -sc.parallel_drafting false", _DRAFTS],
    ),
    "R525": (
        [f"{_DRAFTS} -sc.use_heterogeneous_vocab true", "-sc.use_heterogeneous_vocab true"],
        ["--spec-model MODEL -sc.use_heterogeneous_vocab true"],
    ),
    "R518": (
        ["--spec-method draft_model", "--spec-method eagle3"],
        ["--spec-method draft_model --spec-model MODEL", "--spec-model MODEL", "--spec-method ngram", ""],
    ),
    "R519": (
        [f"{_DRAFTS} --spec-model MODEL"],
        ["--spec-model MODEL", "--spec-method auto --spec-model MODEL", "--spec-method draft_model --spec-model MODEL"],
    ),
    "R520": (
        ["--spec-method eagle3 -pp 2", "--spec-method dflash -pp 2 -tp 2"],
        ["--spec-model MODEL -pp 2 -tp 2", "--spec-method eagle3 -tp 2", f"{_DRAFTS} -pp 2"],
    ),
    "R521": (
        [f"--spec-method mtp --model-impl transformers {_MIXTURE}"],
        [_DRAFTS, "--spec-method auto"],
    ),
    "R522": (
        ["--spec-model MODEL -sc.prompt_lookup_max 4", "--spec-model MODEL -sc.past_output_tokens 0"],
        ["--spec-model MODEL", f"{_DRAFTS} -sc.prompt_lookup_max 4"],
    ),
    "R517": (
        ["--spec-tokens 4", "--spec-method auto --device cuda --spec-tokens 4", "-sc.disable_by_batch_size 4"],
        ["", f"{_DRAFTS} --spec-tokens 4", "--spec-method auto --spec-tokens 4"],
    ),
}
