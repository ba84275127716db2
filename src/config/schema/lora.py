"""Section `lora`: low-rank adapters on top of a model.

None of its options is implemented: see the package `refused`.
"""

from __future__ import annotations

from .refused import with_refused
from .section import Section


@with_refused("lora")
class LoRAConfig(Section):
    """Adapters that requests may select."""
