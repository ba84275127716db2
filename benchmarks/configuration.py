"""Times the commands that load no model: python -m benchmarks.configuration.

Each row is a whole process, including interpreter start-up, as a user or a pre-commit hook runs it: the median of five
runs after one warm-up. Inputs are generated in a temporary folder: a manifest of 2,000 lines, and a model directory of
400 shards with real headers and sparse files for the weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.config.schema.options import options_of, sections
from stoker.config.yaml_writer import inline

RUNS = 5
NUM_LINES = 2_000
NUM_SHARDS = 400
SERVER = {
    "host",
    "uds",
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "log_config_file",
    "middleware",
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 16_384,
    "intermediate_size": 53_248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 128_000,
    "eos_token_id": 128_001,
    "dtype": "bfloat16",
}


@dataclass(frozen=True)
class Case:
    """One command; `target_s` is None if it has no target."""

    name: str
    arguments: tuple[str, ...]
    target_s: float | None


def cases(folder: Path) -> list[Case]:
    """Commands on the files that `prepare` writes to `folder`."""
    manifest, shards = str(folder / "deploy.yaml"), str(folder / "shards.yaml")
    return [
        Case("--help", ("--help",), 0.15),
        Case(f"validate, {NUM_LINES:,} lines", ("validate", manifest), 1.0),
        Case("explain --max-num-seqs", ("explain", "--max-num-seqs"), 0.3),
        Case("explain --all -o json", ("explain", "--all", "-o", "json"), None),
        Case("config --show-origin", ("config", manifest, "--show-origin"), None),
        Case(f"plan, {NUM_SHARDS} shards", ("plan", shards), 2.0),
        Case("completion of a flag", ("__complete", "2", "engine", "up", "--max-"), 0.2),
    ]


def prepare(folder: Path, num_lines: int = NUM_LINES, num_shards: int = NUM_SHARDS) -> None:
    (folder / "deploy.yaml").write_text(manifest_text(num_lines))
    write_shards(folder / "model", num_shards)
    (folder / "shards.yaml").write_text("model: {model: ./model, max_model_len: 8k}\n")


def manifest_text(num_lines: int) -> str:
    """Anchors, long lists, comments, and every option that can be combined with the others."""
    lines = ["# Written by benchmarks/configuration.py.", "apiVersion: stoker/v1", "kind: Deployment"]
    for section in sections():
        lines += [f"{section}:"] if any(_fits(option) for option in options_of(section)) else []
        for option in filter(_fits, options_of(section)):
            value = "builtin:tiny" if option.path == "model.model" else option.show(option.default)
            lines += [f"  # {option.description.partition('. ')[0][:100]}", f"  {option.name}: {inline(value)}"]
    for index in range(1 << 20):
        if len(lines) + 12 > num_lines:
            break
        lines += [
            f"# block {index}: kept for a later day",
            f"x-base-{index}: &base-{index}",
            f"  name: block-{index}",
            "  port: ${PORT:-8000}",
            f"x-block-{index}:",
            f"  <<: *base-{index}",
            "  origins:",
            *(f"    - https://{name}-{index}.example:8443" for name in ("chat", "app", "admin")),
            f"  notes: 'a text in quotes, with a # and a : in it, number {index}'",
            f"  nested: {{a: [1, 2.5, true, null], b: {{c: 0x1f, d: 30s}}, e: *base-{index}}}",
        ]
    return "\n".join([*lines, *["# the end"] * (num_lines - len(lines))]) + "\n"


def _fits(option: Any) -> bool:
    """Whether the option's default can be combined with all others."""
    is_allowed = option.status == "effective" and not option.is_secret and option.name not in SERVER
    return is_allowed and (option.path == "model.model" or option.default is not None)


def write_shards(folder: Path, num_shards: int) -> None:
    """A model of 405 billion parameters in many files, sparse after the header and of the size that it declares."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "tokenizer.json").write_text("{}")
    tensors = list(_tensors())
    per_shard = -(-len(tensors) // num_shards)
    index: dict[str, str] = {}
    for number in range(num_shards):
        name = f"model-{number + 1:05}-of-{num_shards:05}.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for tensor, shape in tensors[number * per_shard : (number + 1) * per_shard]:
            start, end = end, end + 2 * math.prod(shape)
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
            index[tensor] = name
        content = json.dumps(header).encode()
        with (folder / name).open("wb") as stream:
            stream.write(struct.pack("<Q", len(content)) + content)
            stream.truncate(8 + len(content) + end)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def _tensors() -> Iterator[tuple[str, list[int]]]:
    hidden, inner, keys = 16_384, 53_248, 1_024
    yield "model.embed_tokens.weight", [128_256, hidden]
    for layer in range(126):
        shapes = {
            "self_attn.q_proj": [hidden, hidden],
            "self_attn.k_proj": [keys, hidden],
            "self_attn.v_proj": [keys, hidden],
            "self_attn.o_proj": [hidden, hidden],
            "mlp.gate_proj": [inner, hidden],
            "mlp.up_proj": [inner, hidden],
            "mlp.down_proj": [hidden, inner],
            "input_layernorm": [hidden],
            "post_attention_layernorm": [hidden],
        }
        yield from ((f"model.layers.{layer}.{name}.weight", shape) for name, shape in shapes.items())
    yield "model.norm.weight", [hidden]
    yield "lm_head.weight", [128_256, hidden]


def measure(arguments: tuple[str, ...], runs: int = RUNS) -> tuple[float, float]:
    """Median wall-clock and processor seconds of a process. Load on the machine affects processor time less.

    Raises RuntimeError if the command fails.
    """
    command = [sys.executable, "-m", "stoker", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ENGINE_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode; without it each run would compile
    seconds: list[tuple[float, float]] = []
    for _ in range(runs + 1):
        start, cpu = time.perf_counter(), _cpu_seconds()
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        seconds.append((time.perf_counter() - start, _cpu_seconds() - cpu))
        if done.returncode not in (0, 4):  # 4: the plan does not fit on this machine, a valid result
            raise RuntimeError(f"{' '.join(arguments)} exited with {done.returncode}: {done.stderr[-1000:]}")
    clock, processor = zip(*seconds[1:], strict=True)
    return statistics.median(clock), statistics.median(processor)


def _cpu_seconds() -> float:
    """Processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", action="store_true", help="print records instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        found = [(case, *measure(case.arguments, options.runs)) for case in cases(Path(folder))]
    if options.json:
        records = [
            {"name": case.name, "seconds": seconds, "cpu_seconds": cpu, "target_s": case.target_s}
            for case, seconds, cpu in found
        ]
        print(json.dumps({"runs": options.runs, "load": os.getloadavg()[0], "cases": records}, indent=2))
        return 0
    print(f"{'engine ...':<28}{'median':>9}{'cpu':>9}{'target':>9}{'ratio':>8}")
    for case, seconds, cpu in found:
        target = f"{case.target_s:.2f} s" if case.target_s else "-"
        ratio = f"{seconds / case.target_s:.2f}" if case.target_s else "-"
        print(f"{case.name:<28}{seconds:>7.2f} s{cpu:>7.2f} s{target:>9}{ratio:>8}")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
