"""Sections whose options are not built yet. They exist so that their names are taken; any key in them is unknown."""

from __future__ import annotations

from .section import Section


class ParallelConfig(Section):
    """Several devices for one model. No options in this build."""


class CompilationConfig(Section):
    """Compilation and graph capture. No options in this build."""


class LoRAConfig(Section):
    """Adapters. No options in this build."""


class MultiModalConfig(Section):
    """Images, audio and video. No options in this build."""


class StructuredOutputsConfig(Section):
    """Constrained output. No options in this build."""


class SpeculativeConfig(Section):
    """Draft tokens. No options in this build."""


class KVTransferConfig(Section):
    """KV cache moved between instances. No options in this build."""


class KVEventsConfig(Section):
    """Events about KV blocks. No options in this build."""


class ObservabilityConfig(Section):
    """Traces and metrics beyond /metrics. No options in this build."""
