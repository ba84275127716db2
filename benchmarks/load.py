"""How long loading the weights of a folder takes, beside reading its files with the same threads.

    PYTHONPATH=.dev:. python -m benchmarks.load FOLDER [--rounds 3] [--threads 2]

Each in a process of its own, in turn, files in the page cache:

    read    into one buffer of 1 MiB for each thread: the speed of reading
    fresh   into newly allocated memory: what any program does that keeps the weights
    load    the phase `weights` of a start of Stoker

A virtual machine may give free memory back to its host; the next access to it then waits for the host, up to 2 s a GB
where the access itself takes 0.08 s. So each process first allocates and frees as much as the files have, and a half.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_WAYS = ("read", "fresh", "load")
_PIECE = 1 << 20
_PAGE = 4096
_CONTEXT = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--way", choices=_WAYS, help="only this one, in this process")
    given = parser.parse_args()
    if given.way:
        print(json.dumps(_measure(given.way, _weight_files(given.folder), given.threads)))
        return
    size = sum(file.stat().st_size for file in _weight_files(given.folder))
    _measure("read", _weight_files(given.folder), given.threads)  # into the page cache
    for number in range(1, given.rounds + 1):
        seconds = {way: _in_process(way, given.folder, given.threads) for way in _WAYS}
        ratios = {f"load / {way}": round(seconds["load"] / seconds[way], 2) for way in ("read", "fresh")}
        times = {way: round(taken, 3) for way, taken in seconds.items()}
        print(json.dumps({"round": number, "gigabytes": round(size / 1e9, 2), **times, **ratios}), flush=True)


def _weight_files(folder: Path) -> list[Path]:
    found = [folder] if folder.is_file() else sorted(folder.glob("*.safetensors"))
    if not found:
        sys.exit(f"{folder} has no .safetensors file")
    return found


def _in_process(way: str, folder: Path, threads: int) -> float:
    command = [sys.executable, "-m", "benchmarks.load", str(folder), "--way", way, "--threads", str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _touch(files: list[Path]) -> None:
    size = sum(file.stat().st_size for file in files) * 3 // 2
    with _allocate(size) as memory:
        for at in range(0, size, _PAGE):
            memory[at] = 1


def _allocate(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _measure(way: str, files: list[Path], threads: int) -> float:
    """Seconds."""
    if way == "load":
        return _load(files, threads)
    _touch(files)
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: _read(*part, is_kept=way == "fresh"), _parts(files, threads)))
    return time.perf_counter() - begin


def _parts(files: list[Path], threads: int) -> list[tuple[Path, int, int]]:
    """File, first byte, number of bytes: every file in as many parts as there are threads."""
    return [
        (file, share * size // threads, (share + 1) * size // threads - share * size // threads)
        for file in files
        for size in (file.stat().st_size,)
        for share in range(threads)
    ]


def _read(file: Path, start: int, count: int, *, is_kept: bool) -> None:
    memory = _allocate(count if is_kept else _PIECE)
    with file.open("rb", buffering=0) as stream:
        for at in range(0, count, _PIECE):
            to = at if is_kept else 0
            os.preadv(stream.fileno(), [memoryview(memory)[to : to + min(_PIECE, count - at)]], start + at)


def _load(files: list[Path], threads: int) -> float:
    from stoker import LLM

    _touch(files)
    model = files[0] if files[0].suffix == ".gguf" else files[0].parent
    with LLM(str(model), skip_tokenizer_init=True, max_model_len=_CONTEXT, max_num_seqs=1, num_threads=threads) as llm:
        return llm.info.phases["weights"]


if __name__ == "__main__":
    main()
