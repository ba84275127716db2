"""Write the checkpoints of the recipes that are named, or of all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .base import write_base
from .record import BASE

ROOT = Path(__file__).parents[2]
HOME = BASE.parent
TORCH = "torch>=2.11,<2.14"
PACKAGES = {
    "compressed_tensors": (TORCH, "llmcompressor==0.14.*"),
    "gptqmodel": ("gptqmodel==7.7.*", "transformers==5.23.*", "accelerate"),  # needs a newer torch
    "modelopt": (TORCH, "nvidia-modelopt[hf]==0.47.*"),
    "auto_round": (TORCH, "auto-round==0.16.*", "transformers==5.23.*"),
    "torchao": (TORCH, "torchao==0.18.*", "transformers==5.23.*", "accelerate"),
    "quark": (TORCH, "amd-quark==0.13.*", "transformers==5.23.*"),
    "bitsandbytes": (TORCH, "transformers==5.23.*", "accelerate", "bitsandbytes"),
}
# The second: on two cores GPTQModel starts fewer workers than it asks for.
VARIABLES = {"CUDA_VISIBLE_DEVICES": "", "GPTQMODEL_CPU_WORKERS": "2"}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in PACKAGES]:
        print(f"no recipe {unknown[0]!r}; there are: {', '.join(PACKAGES)}", file=sys.stderr)
        return 2
    write_base(BASE)
    for name in names or PACKAGES:
        python = _environment(name)
        command = [str(python), "-m", f"tools.writers.recipes.{name}"]
        variables = {**os.environ, **VARIABLES, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, env=variables, cwd=HOME)  # some write logs where they are started
    return 0


def _environment(name: str) -> Path:
    """The interpreter of a recipe's environment, created again when a version in PACKAGES changes."""
    folder = HOME / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(PACKAGES[name])
    if not stamp.exists() or stamp.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES[name]], check=True)
        stamp.write_text(wanted)
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
