"""Rules about `device`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. SMALL_CASES run on a machine that has too little.
"""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R210": (["--num-threads 5"], ["--num-threads 4"]),
    "R227": (["--device cuda"], ["--device cpu", "--device auto"]),
    "R434": (["--numa-bind", "--numa-bind-cpus 0-3"], ["", "--no-numa-bind"]),
    "R435": (
        [
            "--numa-bind --disable-frontend-multiprocessing",
            "--numa-bind-nodes 0 0 -dp 2 --data-parallel-backend ray",
            "--numa-bind -tp 2 --distributed-executor-backend ray",
            "--numa-bind -tp 2 --distributed-executor-backend external_launcher",
        ],
        ["--numa-bind -tp 2", "--disable-frontend-multiprocessing"],
    ),
    "R436": (
        [
            "--numa-bind-nodes 0 -tp 2",
            "--numa-bind-nodes 0 1",
            "--numa-bind-nodes 0 1 --numa-bind-cpus 0 1 2 -dp 2",
            "--no-numa-bind --numa-bind-nodes 0",
        ],
        ["--numa-bind-nodes 0 1 -tp 2", "--numa-bind-cpus 0 1 2 3 -tp 2 -dp 2", "--numa-bind -dp 2"],
    ),
}
NUMA_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R437": (
        [
            "--numa-bind-nodes 2",
            "--numa-bind-cpus 64",
            "--numa-bind-cpus 0-1 --num-threads 3",
            "--numa-bind-cpus 15-16",
            "--numa-bind -tp 2 --num-threads 33",
        ],
        [
            "--numa-bind-nodes 1 1 -tp 2",
            "--numa-bind-cpus 0-1 --num-threads 2",
            "--numa-bind-cpus 15-16 --numa-bind-nodes 1",
            "--numa-bind -tp 2 --num-threads 32",
        ],
    ),
    "R439": (
        ["--numa-bind", "--numa-bind-cpus 0-3 3-4 -dp 2"],
        [
            "--numa-bind -tp 2",
            "--numa-bind-nodes 0",
            "--numa-bind-cpus 0-3",
            "--numa-bind-cpus 0-3 4-5 --numa-bind-nodes 0 0 -dp 2",
        ],
    ),
}
GPU_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R436": (["--numa-bind"], ["--numa-bind --device cpu", "--numa-bind-nodes 0", ""]),
    "R286": (["--self-test"], ["--self-test --device cpu", ""]),
}
OLD_GPU_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R228": (["--device cuda"], ["--device cpu", "--device auto"]),
}
INTERPRETED_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R229": (["--device cuda"], ["--device cpu", "--device auto"]),
}
SMALL_CASES: dict[str, tuple[list[str], list[str]]] = {}
