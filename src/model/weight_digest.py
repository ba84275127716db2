"""weight_digest: distinguishes weights without reading them whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_ENDS_BYTES = 1 << 20  # of the start and the end of each file
_NUM_SAMPLES, _SAMPLE_BYTES = 64, 4096  # spread evenly between them


def weight_digest(folder: Path, names: Iterable[str]) -> str:
    """Digest of the name and size of each file, a mebibyte of each end, and samples between: 64 hexadecimal digits.

    Reading files whole would take as long as loading them, and their times differ between machines. Raises OSError.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        with (folder / name).open("rb") as file:
            size = file.seek(0, 2)
            digest.update(f"\n{name} {size}\n".encode("utf-8", "surrogatepass"))
            file.seek(0)
            digest.update(file.read(_ENDS_BYTES))
            for number in range(1, _NUM_SAMPLES + 1):
                file.seek(size * number // (_NUM_SAMPLES + 1))
                digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _ENDS_BYTES))
            digest.update(file.read(_ENDS_BYTES))
    return digest.hexdigest()
