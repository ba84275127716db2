"""The declarations: one module for each way of writing calls."""

from __future__ import annotations

from ..format import Format
from . import hermes

DECLARATIONS: tuple[Format, ...] = (*hermes.FORMATS,)
