"""Rules about `compilation`: the command lines that break each one, and those that keep it.

MODEL, FILE and so on stand for paths; see test_rules.py. GPU_CASES run on a machine with a GPU.
"""

from __future__ import annotations

CASES: dict[str, tuple[list[str], list[str]]] = {
    "R190": (
        [
            "--cuda-graph-sizes 1 2 -O.cudagraph_capture_sizes=[1,4]",
            "--cuda-graph-sizes 8 -O.cudagraph_capture_sizes=[8]",
        ],
        ["--cuda-graph-sizes 1 2 -O.cudagraph_capture_sizes=[2,1]", "--cuda-graph-sizes 8", ""],
    ),
}
GPU_CASES: dict[str, tuple[list[str], list[str]]] = {
    "R059": (
        [
            "--device cpu --cuda-graph-sizes 1 2",
            "--device cpu -O3",
            "--enforce-eager -O.cudagraph_capture_sizes=[1]",
            "-O0 --cuda-graph-sizes 8",
            "--batch-invariant --cuda-graph-sizes 8",
        ],
        ["--cuda-graph-sizes 1 2", "-O3", "--device cpu -O0", "--device cpu", "--enforce-eager"],
    ),
    "R119": (
        ["--cuda-graph-sizes 1 65 --max-num-seqs 64", "-O.cudagraph_capture_sizes=[300]"],
        ["--cuda-graph-sizes 1 64 --max-num-seqs 64", "--device cpu --cuda-graph-sizes 300", ""],
    ),
    "R354": (
        ["--enable-layerwise-nvtx-tracing", "--device cpu -O0 --enable-layerwise-nvtx-tracing"],
        ["-O0 --enable-layerwise-nvtx-tracing", "--enforce-eager --enable-layerwise-nvtx-tracing", "--device cpu"],
    ),
}
