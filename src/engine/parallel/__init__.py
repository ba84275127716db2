"""Processes that compute one model together: what they exchange in a step. Tensor parallel, arXiv:1909.08053."""

from .context_parts import attending_in_parts
from .group import Ranks

__all__ = ["Ranks", "attending_in_parts"]
