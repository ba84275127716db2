"""Section `structured_outputs`: output constrained by a grammar, and reasoning separate from the answer.

None of its options is implemented yet: see refused.py.
"""

from __future__ import annotations

from typing import ClassVar

from .refused import with_refused
from .section import Section


@with_refused("structured_outputs")
class StructuredOutputsConfig(Section):
    """Constrained output and reasoning."""

    json_flags: ClassVar[tuple[str, ...]] = ("--structured-outputs-config",)
