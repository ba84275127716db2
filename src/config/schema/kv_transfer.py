"""Section `kv_transfer`: transfer of KV cache between engines.

None of its options is implemented yet: see refused.py.
"""

from __future__ import annotations

from typing import ClassVar

from .refused import with_refused
from .section import Section


@with_refused("kv_transfer")
class KVTransferConfig(Section):
    """Transfer of KV cache between engines."""

    json_flags: ClassVar[tuple[str, ...]] = ("--kv-transfer-config",)
