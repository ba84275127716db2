"""Processes that compute one model together: what they exchange in a step. Tensor parallel, arXiv:1909.08053."""

from .context_parts import attending_in_parts
from .group import Ranks
from .prompt_parts import attending_to_all
from .shared_experts import SharedExperts

__all__ = ["Ranks", "SharedExperts", "attending_in_parts", "attending_to_all"]
