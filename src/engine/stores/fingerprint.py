"""fingerprint: which engines can read each other's KV blocks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ...config import Resolved

FORMAT = "stoker blocks 2"
_ENDS_BYTES = 1 << 20  # of the start and the end of each weight file
_NUM_SAMPLES, _SAMPLE_BYTES = 64, 4096  # spread evenly between them


def fingerprint(resolved: Resolved) -> str:
    """Equal only for engines that compute the same keys and values and store them in the same layout.

    Weight files count with their size, a mebibyte of each end, and samples between: reading them whole would take as
    long as loading them, and their times differ between machines. Raises OSError.
    """
    model, cache, files = resolved.model, resolved.cache, resolved.model_files
    parts = [
        *(FORMAT, resolved.model_spec, resolved.cache_groups, model.dtype, model.quantization, files.config_json),
        *(cache.kv_cache_dtype, cache.block_size, cache.prefix_caching_hash_algo, resolved.device.device),
        *(files.weight_format, model.seed if files.weight_format == "dummy" else None),
    ]
    digest = hashlib.sha256("\n".join(map(repr, parts)).encode("utf-8", "surrogatepass"))
    for name in files.weight_files:
        path = Path(files.model_path) / name
        size = path.stat().st_size
        digest.update(f"\n{name} {size}\n".encode("utf-8", "surrogatepass"))
        with path.open("rb") as file:
            digest.update(file.read(_ENDS_BYTES))
            for number in range(1, _NUM_SAMPLES + 1):
                file.seek(size * number // (_NUM_SAMPLES + 1))
                digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _ENDS_BYTES))
            digest.update(file.read(_ENDS_BYTES))
    return digest.hexdigest()[:32]
