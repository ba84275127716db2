"""Writes docs/guide/model-sizes.md: `engine plan` for well-known models: `python -m tools.model_sizes`.

The models are those of tests/unit/config/plan/shapes.py: config.json and the published number of parameters.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.unit.config.deployments import MACHINE
from tests.unit.config.plan.shapes import NATIVE, SHAPES, write_config

from stoker.config.examine import report_on
from stoker.config.plan.devices import DeviceProfile, machine_of, profiles
from stoker.config.plan.model import read_model
from stoker.config.plan.plan import make_plan

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "model-sizes.md"
MODELS = {  # of SHAPES or NATIVE -> for people
    "qwen3.5-27b": "Qwen3.5-27B",
    "qwen3-30b-a3b": "Qwen3-30B-A3B",
    "gemma-4-12b": "Gemma 4 12B",
    "gemma-4-31b": "Gemma 4 31B",
    "gemma-4-e4b": "Gemma 4 E4B",
    "gpt-oss-20b": "gpt-oss-20b",
    "deepseek-v3": "DeepSeek V3",
    "glm-4.7-flash": "GLM-4.7-Flash",
    "nemotron-3-nano-30b-a3b": "Nemotron 3 Nano",
    "lfm2-1.2b": "LFM2-1.2B",
    "granite-4.0-h-small": "Granite 4.0 H Small",
    "minimax-m2": "MiniMax-M2",
    "kimi-k2": "Kimi K2",
    "llama-4-scout": "Llama 4 Scout",
}
CPU = DeviceProfile(
    name="cpu",
    title="2 cores with AVX512-BF16, 24 GiB",
    kind="cpu",
    memory=23 << 30,
    bandwidth_gb_per_s=28,
    bf16_tflops=0.5,
    keeps_twelve_bits=True,
)
DEVICES = (profiles()["h100-80gb"], profiles()["h200"], CPU)
_HEAD = """\
<!-- Written by `python -m tools.model_sizes`; do not edit. -->

# What well-known models need

`engine plan` from the config.json of each model, without its weights: bfloat16, all other options at their defaults.

- *parameters*: counted from config.json, and those that a token uses; the difference from the published number.
- *cache*: what all layers of a kind keep: for each token, for the tokens of a window, or of a sequence of any length.
- *devices*: the longest context and the size of the KV cache, or why it does not fit. GPUs are planned, not
  measured: [Models and hardware](models-and-hardware.md#gpus).

"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(page(Path(folder)))
    return 0


def page(folder: Path) -> str:
    head = ["model", "architecture", "parameters", "weights", "cache", *(device.shown for device in DEVICES)]
    rows = [_row(folder, name, shown) for name, shown in MODELS.items()]
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---" for _ in head], *rows)]
    return _HEAD + "\n".join(lines) + "\n"


def _row(folder: Path, name: str, shown: str) -> list[str]:
    config, published, *_ = (NATIVE | SHAPES)[name]
    model = write_config(folder / name, config)
    plans = [_plan(model, device) for device in DEVICES]
    found = plans[0]["model"]
    counted, active = found["num_parameters"], found["num_active_parameters"]
    return [
        shown,
        f"`{found['architecture']}`",
        f"{_billions(counted)}{f', {_billions(active)} used' * (active < counted)}; {counted / published - 1:+.1%}",
        _gib(plans[0]["memory"]["weights_bytes"]),
        _cache(plans[0]["kv_cache"]["layers"]),
        *map(_fit, plans),
    ]


def _plan(model: Path, device: DeviceProfile) -> dict[str, Any]:
    words = ["--model", str(model), "--load-format", "dummy", "--skip-tokenizer-init"]
    report = report_on([], words, machine_of(device, MACHINE), is_elsewhere=True)
    assert report.deployment is not None
    assert report.decisions is not None
    return make_plan(read_model(report.deployment), device, report.decisions).as_dict()


def _cache(layers: Sequence[dict[str, Any]]) -> str:
    """What all layers of each kind keep."""
    sums: dict[tuple[str, int], int] = defaultdict(int)
    for each in layers:
        sums[each["kind"], each["window"]] += each["count"] * each["bytes"]
    return "; ".join(_kept(kind, window, count) for (kind, window), count in sums.items())


def _kept(kind: str, window: int, count: int) -> str:
    if kind == "state":
        return f"{count / 2**20:.1f} MiB a sequence"
    return f"{count / 2**10:.1f} KiB a token" + f" up to {window}" * (kind == "window")


def _fit(plan: dict[str, Any]) -> str:
    memory = plan["memory"]
    if not plan["max_model_len"]:
        return f"no: {plan['reason']}"
    return f"{plan['max_model_len']:,} tokens; {_gib(memory['kv_cache_bytes'])} of cache"


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f}B"


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


if __name__ == "__main__":
    sys.exit(main())
