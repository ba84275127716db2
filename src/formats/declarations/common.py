"""What several declarations share."""

from __future__ import annotations

from ..format import ReasoningMarkers

THINK = ReasoningMarkers("<think>", "</think>")
