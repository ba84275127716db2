"""Names of programs and images, and what each says about a server: it is one, runs one, or only names one."""

from __future__ import annotations

import re
from typing import Literal

Engine = Literal["vllm", "sglang", "llama.cpp", "tgi", "tei", "infinity", "ollama", "stoker"]

MODULES: dict[str, Engine] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "sglang.srt.server": "sglang",
}
IMAGES: tuple[tuple[re.Pattern[str], Engine], ...] = (
    (re.compile(r"sglang"), "sglang"),
    (re.compile(r"llama[-.]?cpp|llama-server"), "llama.cpp"),
    (re.compile(r"text-embeddings-inference|\btei\b"), "tei"),
    (re.compile(r"michaelf34/infinity|infinity[-_]emb"), "infinity"),
    (re.compile(r"text-generation-inference|tgi"), "tgi"),
    (re.compile(r"vllm"), "vllm"),
)
SUBCOMMANDS: dict[tuple[str, str], Engine] = {
    ("vllm", "serve"): "vllm",
    ("infinity_emb", "v2"): "infinity",
    ("sglang", "serve"): "sglang",
    ("engine", "serve"): "stoker",
    ("stoker", "serve"): "stoker",
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONTAINERS = ("docker", "podman", "nerdctl")
# Programs that say something about a program or move its file, and do not run it.
ONLY_NAME = _names(
    """
    echo printf grep egrep fgrep rg pgrep pkill killall kill pidof which whereis type hash man cat test [ [[ ls ll
    cp mv ln rm chmod chown chgrp install mkdir touch stat file ldd strip patchelf readlink realpath find sed awk
    head tail tee less tar unzip setcap cmake make ninja pip pip3 apt apt-get dnf yum apk brew git curl wget
    systemctl service journalctl alias supervisorctl launchctl rsync scp unset cd pushd trap lsof ps
    """
)
# Programs that do the same wherever in a command they stand.
ONLY_NAME_ANYWHERE = _names("pgrep pkill killall pidof which systemctl journalctl cmake ldd chmod")
# Commands of docker and of docker compose that start nothing.
ONLY_NAME_IN_CONTAINERS = _names(
    """
    rm stop start restart kill logs inspect pull push build ps images rmi tag cp wait port stats top attach pause
    unpause rename update up down
    """
)
# Commands that run a word as a command line: ssh HOST 'vllm serve ...'.
RUN_TEXTS = _names("ssh tmux screen su runuser eval parallel pdsh script flock watch exec")
# Wrappers that set no variables of their own.
KEEP_VARIABLES = _names(
    """
    numactl taskset nice ionice chrt stdbuf setsid time timeout watch flock uv uvx pipx poetry pipenv pixi conda
    mamba micromamba python python3 xvfb-run ssh tmux screen su runuser systemd-run srun mpirun nsys ncu catchsegv
    tini apptainer singularity eval bash sh script dumb-init perf strace
    """
)
# Options and programs that set variables without naming them.
SUPPLIES = re.compile(r"env-?file|env-?host|dotenv|secret|vault", re.IGNORECASE)
