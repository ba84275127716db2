"""Section `multimodal`: images, audio and video in prompts.

None of its options is implemented: see the package `refused`.
"""

from __future__ import annotations

from .refused import with_refused
from .section import Section


@with_refused("multimodal")
class MultiModalConfig(Section):
    """Media in prompts. This build serves text."""
