"""Rules about `load`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R080": (
        ["--safetensors-load-strategy eager --load-format dummy"],
        ["--safetensors-load-strategy eager", "--safetensors-load-strategy lazy --load-format dummy"],
    ),
    "R081": (["--pt-load-map-location.cuda:0 cpu"], ["", "--pt-load-map-location cpu", "--load-format dummy"]),
    "R082": (
        [
            "--model-loader-extra-config.num_threads 4",
            "--load-format dummy --model-loader-extra-config.deviatoin 0.1",
            "--load-format dummy --model-loader-extra-config.deviation 2",
            "--load-format dummy --model-loader-extra-config.pattern x",
        ],
        ["--load-format dummy --model-loader-extra-config.deviation 0.1", "--load-format dummy"],
    ),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {}
