"""Converts a checkpoint and its tokenizer to OpenVINO's IR with optimum's exporter.

    python -m benchmarks.peers.convert.openvino CHECKPOINT FOLDER bf16|int8|int4

bf16 keeps the checkpoint's weights; int8 is per channel, int4 symmetric in groups of 128 with 8 bits for the embedding.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FORMATS = {
    "bf16": [],
    "int8": ["--weight-format", "int8"],
    "int4": ["--weight-format", "int4", "--sym", "--group-size", "128", "--ratio", "1.0"],
}


def write(checkpoint: Path, folder: Path, kind: str) -> None:
    tool = Path(sys.executable).with_name("optimum-cli")
    export = [str(tool), "export", "openvino", "--model", str(checkpoint), "--task", "text-generation-with-past"]
    subprocess.run([*export, *FORMATS[kind], str(folder)], check=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
