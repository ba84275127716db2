"""Estimates of `engine plan` against started engines: weights, KV cache, and process memory under full load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.deployment import serving
from tests.unit.config.plan.shapes import write_config

import stoker
from stoker.config.plan.calibration import entries

ENGINE = """
import json, sys
from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.config.plan.calibration import planned_memory
import stoker.engine.process
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.executor.build import build_core

def held():
    lines = open("/proc/self/status").read().splitlines()
    fields = dict(line.split(":", 1) for line in lines if line.startswith("Vm"))
    return int(fields["VmHWM"].split()[0]) * 1024

deployment = load_deployment([], sys.argv[1:])
resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
core = build_core(resolved)
info = core.info
length = resolved.scheduler.max_num_batched_tokens // resolved.scheduler.max_num_seqs
for number in range(resolved.scheduler.max_num_seqs):
    prompt = [(number + position) % 300 for position in range(length)]
    core.add(EngineRequest(request_id=str(number), inputs=RequestInputs(prompt, SamplingParams(max_tokens=2))))
while core.has_work:
    core.step()
cache = core._executor._steps._runner.loaded.cache
peak_now = held() + cache.num_untouched  # pages that idle time has not pre-faulted yet
started, peak = planned_memory(resolved)
print(json.dumps({
    "weights": info.weights_bytes, "planned_weights": resolved.memory.weights_bytes,
    "kv_cache": info.kv_cache_bytes, "planned_kv_cache": resolved.memory.kv_cache_bytes,
    "resident": info.resident_bytes, "planned_resident": started.likely,
    "peak": peak_now, "planned_peak": peak.likely, "low": peak.low, "high": peak.high,
}))
"""
MADE_UP = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 20000,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "eos_token_id": 5,
    "dtype": "bfloat16",
}


def measure(*words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", ENGINE, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow  # the test below compares one start with its plan
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the peak memory of a process")
@pytest.mark.parametrize(
    ("model", "dtype", "more"),
    [
        ("builtin:tiny", "bfloat16", ()),
        ("made-up", "bfloat16", ()),
        ("made-up", "float32", ()),
        ("made-up", "bfloat16", ("--quantization", "int8")),
        ("made-up", "bfloat16", ("-q", "int4")),
    ],
)
def test_an_engine_uses_the_memory_that_was_planned(
    tmp_path: Path, model: str, dtype: str, more: tuple[str, ...]
) -> None:
    """Weights within 1 %, the KV cache exactly, the process within 15 %, after the start and at its peak."""
    words = ["--model", model, "--dtype", dtype, "--max-num-seqs", "32", *more]
    if model == "made-up":
        folder = write_config(tmp_path / "model", MADE_UP)
        words = ["--model", str(folder), "--load-format", "dummy", "--skip-tokenizer-init", *words[2:]]
    found = measure(*words)
    assert found["weights"] == pytest.approx(found["planned_weights"], rel=0.01)
    assert found["kv_cache"] == found["planned_kv_cache"]
    assert found["planned_resident"] == pytest.approx(found["resident"], rel=0.15)
    assert found["planned_peak"] == pytest.approx(found["peak"], rel=0.15)
    assert found["low"] <= found["peak"] <= found["high"]


@pytest.mark.slow
def test_the_memory_of_each_start_is_stored_with_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    manifest = tmp_path / "deploy.yaml"
    manifest.write_text("model: {model: builtin:tiny}\ncache: {num_gpu_blocks_override: 64}\nserver: {port: 0}\n")
    with serving(manifest) as (server, _):
        shown = "".join(server.out)
    (entry,) = entries()
    assert (entry.model, entry.version) == ("builtin:tiny", stoker.__version__)
    assert entry.weights == pytest.approx(entry.planned_weights, rel=0.01)
    assert entry.kv_cache == entry.planned_kv_cache
    assert "of engine process, planned about" in shown
    if sys.platform == "linux":
        assert entry.peak is not None
        # The model is tiny, so this is mostly libraries, of which each start maps more or less.
        assert entry.planned_resident.likely == pytest.approx(entry.peak, rel=0.35)
