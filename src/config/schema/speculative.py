"""Section `speculative`: draft tokens that the model verifies.

None of its options is implemented: see the package `refused`.
"""

from __future__ import annotations

from typing import ClassVar

from .refused import with_refused
from .section import Section


@with_refused("speculative")
class SpeculativeConfig(Section):
    """Draft tokens."""

    json_flags: ClassVar[tuple[str, ...]] = ("--speculative-config", "-sc")
