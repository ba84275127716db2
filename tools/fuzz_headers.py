"""Reads damaged headers of weight files, and lists every one that is not refused as it should be.

    python -m tools.fuzz_headers [--inputs 100000] [--seed 1]

Inputs are valid GGUF and safetensors files with a few changes: bits, numbers that are often handled wrongly in any
place, parts that are removed, repeated or inserted, and ends that are missing. Each file is read as `engine plan` reads
it. A file is read or refused by a ModelFilesError; any other exception is a mistake, and so is more memory than ten
times the file's size and a constant. Exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import struct
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gguf import GGUFWriter
from gguf.quants import GGMLQuantizationType, quantize
from numpy import zeros

from stoker.config import ModelFilesError
from stoker.config.checkpoint.gguf import read_gguf
from stoker.config.checkpoint.gguf_files import named_tokens, read_config
from stoker.config.checkpoint.layout import read_tensors
from stoker.config.plan.headers import read_stored_gguf
from stoker.model.config_json import ModelConfigError

_NUMBERS = (0, 1, 7, 8, 9, 13, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**62, 2**63, 2**64 - 1)
_CONSTANT_BYTES = 1 << 17  # of buffers for reading, whatever the file


def inputs(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Suffix and content of each file."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        sources = [(".gguf", _gguf(Path(folder))), (".safetensors", _safetensors())]
    for _ in range(count):
        suffix, source = chance.choice(sources)
        content = bytearray(source)
        for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
            _change(content, chance)
        yield suffix, bytes(content)


def problem(path: Path) -> str:
    """What is wrong with how a file is read; empty if nothing is."""
    tracemalloc.start()
    try:
        _read(path)
    except (ModelFilesError, ModelConfigError):
        pass
    except Exception as error:  # of any type: that is what is looked for
        return f"{type(error).__name__}: {error}"
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    allowed = 10 * path.stat().st_size + _CONSTANT_BYTES
    return f"{peak} bytes of memory; allowed: {allowed}" if peak > allowed else ""


def _read(path: Path) -> None:
    if path.suffix == ".safetensors":
        read_tensors(path.parent, [path.name])
        return
    header = read_gguf(path)
    named_tokens(header)
    with contextlib.suppress(ModelConfigError):
        read_config(path)
    read_stored_gguf(path)


def _change(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(max(1, len(content)))
    match chance.randrange(7):
        case 0 if content:
            content[at] ^= 1 << chance.randrange(8)
        case 1:
            size, code = chance.choice(((8, "<Q"), (4, "<I")))
            content[at : at + size] = struct.pack(code, chance.choice(_NUMBERS) % 2 ** (8 * size))
        case 2:
            del content[at : at + chance.choice((1, 4, 8, 64))]
        case 3:
            content[at:at] = content[at : at + chance.choice((1, 4, 8, 64))]
        case 4:
            del content[at:]
        case 5:
            content[at:at] = chance.randbytes(chance.choice((1, 8, 64)))
        case _:
            digits = str(chance.choice(_NUMBERS)).encode()  # in a text such as the header of safetensors
            content[at : at + len(digits)] = digits


def _gguf(folder: Path) -> bytes:
    writer = GGUFWriter(folder / "a.gguf", "qwen3")
    for key, value in {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 1,
        "feed_forward_length": 32,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": 16,
    }.items():
        writer.add_uint32(f"qwen3.{key}", value)
    writer.add_float32("qwen3.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", ["<|im_end|>", *"abcdefg", "ab"])
    writer.add_array("tokenizer.ggml.token_type", [3, *[1] * 8])
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 0)
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("rope_freqs.weight", zeros(8, "float32"))
    blocks = quantize(zeros((9, 32), "float32"), GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (folder / "a.gguf").read_bytes()


def _safetensors() -> bytes:
    entries = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    }
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + bytes(32)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began, found, counts = time.monotonic(), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for index, (suffix, content) in enumerate(inputs(arguments.inputs, arguments.seed)):
            path = Path(folder) / f"{index}{suffix}"
            path.write_bytes(content)
            counts[suffix] += 1
            if said := problem(path):
                found[said.replace(str(path), "FILE")[:200]] += 1
            path.unlink()
    for said, times in found.most_common(20):
        print(f"{times} x {said}")
    each = ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))
    print(f"{each}; {found.total()} mistakes; {time.monotonic() - began:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
