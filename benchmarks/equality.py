"""Compares greedy output of a served checkpoint with transformers' `generate`, at the shape of Qwen3-0.6B in float32.

    python -m benchmarks.equality           # `equality batch` compares the engine with itself: batch_invariant.py

Writes a checkpoint with random weights, serves it, sends 20 prompts concurrently and compares token by token. The
manifest exercises the difficult cases: prompts are computed in chunks, half of them share a prefix, and the KV cache is
too small for all sequences, so some are preempted. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from . import batch_invariant

MODEL = Path(__file__).parent / "models" / "qwen3-0.6b"
PORT = 8765
OUTPUT = 24
MANIFEST = """\
apiVersion: stoker/v1
kind: Deployment
model:
  model: {folder}
  skip_tokenizer_init: true
  dtype: float32
  max_model_len: 256
cache:
  num_gpu_blocks_override: 60
scheduler:
  max_num_seqs: 20
  max_num_batched_tokens: 64
server:
  port: {port}
"""


def make_prompts(vocab_size: int) -> list[list[int]]:
    rng = random.Random(0)
    shared = [rng.randrange(vocab_size) for _ in range(40)]
    prompts = []
    for index in range(20):
        own = [rng.randrange(vocab_size) for _ in range(rng.randint(5, 90))]
        prompts.append(shared + own if index % 2 else own)
    return prompts


def call(path: str, body: dict | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=900) as response:
        return response.read().decode()


def main() -> int:
    with tempfile.TemporaryDirectory() as work:
        folder, manifest = Path(work) / "model", Path(work) / "deploy.yaml"
        config = AutoConfig.from_pretrained(MODEL)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None
        model.save_pretrained(folder)
        prompts = make_prompts(config.vocab_size)
        expected = []
        with torch.inference_mode():
            for prompt in prompts:
                ids = torch.tensor([prompt])
                out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=OUTPUT, do_sample=False)
                expected.append(out[0, len(prompt) :].tolist())
        del model

        manifest.write_text(MANIFEST.format(folder=folder, port=PORT))
        command = [sys.executable, "-m", "stoker", "up", str(manifest)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            for line in server.stdout:
                print(line, end="")
                if line.startswith("ready"):
                    break
            started = time.monotonic()

            def ask(prompt: list[int]) -> list[int]:
                body = {"model": str(folder), "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0}
                answer = json.loads(call("/v1/completions", {**body, "ignore_eos": True, "return_token_ids": True}))
                return answer["choices"][0]["token_ids"]

            with ThreadPoolExecutor(len(prompts)) as pool:
                served = list(pool.map(ask, prompts))
            seconds = time.monotonic() - started
            counters = dict(re.findall(r"^stoker_(\w+)(?:\{.*\})? ([\d.e+]+)$", call("/metrics"), re.MULTILINE))
        finally:
            server.terminate()
            server.wait(timeout=60)
    equal = sum(a == b for a, b in zip(served, expected, strict=True))
    print(f"{equal} of {len(prompts)} prompts equal to transformers, {OUTPUT} tokens each, {seconds:.1f} s")
    print({name: value for name, value in counters.items() if "preempt" in name or "prefix" in name})
    return int(equal != len(prompts))


if __name__ == "__main__":
    sys.exit(batch_invariant.main(sys.argv[2:]) if sys.argv[1:2] == ["batch"] else main())
