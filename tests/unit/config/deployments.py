"""Deployments from texts, and a machine that does not change from day to day."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.config import ConfigError, Deployment, MachineSpec, load_deployment
from stoker.config.resolve.gpu import interpreted_gpu
from stoker.config.resolve.machine_spec import GpuSpec
from stoker.config.resolve.numa_nodes import NumaNode

GIB = 1 << 30
MACHINE = MachineSpec(
    system="Linux",
    architecture="x86_64",
    num_cores=4,
    total_memory_bytes=16 * GIB,
    available_memory_bytes=8 * GIB,
    cpu_flags=("avx2", "avx512_bf16"),
    no_gpu="this machine is made up",
)
H200 = GpuSpec(
    name="NVIDIA H200",
    total_memory_bytes=139 * GIB,
    available_memory_bytes=138 * GIB,
    compute_capability=(9, 0),
)
WITH_GPU = MACHINE.model_copy(update={"gpu": H200, "no_gpu": ""})
INTERPRETING = MACHINE.model_copy(update={"gpu": interpreted_gpu(16 * GIB, 8 * GIB)})
TWO_SOCKETS = MACHINE.model_copy(  # of 16 cores with two hyperthreads each
    update={
        "num_cores": 64,
        "total_memory_bytes": 128 * GIB,
        "available_memory_bytes": 76 * GIB,
        "numa_nodes": tuple(
            NumaNode(
                number=number,
                cpus=tuple(sorted((*range(first, first + 16), *range(first + 32, first + 48)))),
                cores=tuple((cpu, cpu + 32) for cpu in range(first, first + 16)),
                total_memory_bytes=64 * GIB,
                available_memory_bytes=available * GIB,
                may_use_memory=True,
            )
            for number, first, available in ((0, 0, 48), (1, 16, 28))
        ),
    }
)


def load(folder: Path, text: str, *words: str, env: dict[str, str] | None = None, **more: Any) -> Deployment:
    """The deployment that `text`, as a file in `folder`, and these words make."""
    file = folder / "deploy.yaml"
    file.write_text(text)
    return load_deployment([file], words, env or {}, **more)


def findings(folder: Path, text: str, *words: str, env: dict[str, str] | None = None) -> list[str]:
    """Codes of everything that is wrong with it."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *words, env=env)
    return [finding.code for finding in caught.value.diagnostics]


def message(folder: Path, text: str, *words: str, env: dict[str, str] | None = None) -> str:
    """What is said about it, with the file's folder left out."""
    with pytest.raises(ConfigError) as caught:
        load(folder, text, *words, env=env)
    return str(caught.value).replace(f"{folder}/", "")
