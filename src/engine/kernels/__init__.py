"""Kernels: one op per file, each with a plain torch reference; a KernelSet binds one implementation to every op."""

from .attention_variant import AttentionVariant
from .block_index import BlockKeys
from .compressed_attention import Compression
from .experts import ExpertGate, ExpertWeights, GroupedExpert, PackedExpert, PackedExperts
from .gated_delta import GatedDeltaWeights
from .grouped import Grouped, GroupScales
from .head_variant import PLAIN_HEADS, HeadVariant
from .hyper_connections import Connection
from .kernel_set import KernelSet
from .kimi_delta import KimiDeltaWeights
from .linear import PackedLinear
from .ngram_rows import NGramHashes
from .norm_parts import PartNormWeights
from .paged_attention import AttentionStep, SlotsOfRanks
from .quantised import Integers
from .rg_lru import RgLruWeights
from .rms_norm_gated import RMSNormGatedWeights
from .route_experts import ExpertCopies, Routing
from .select_kernels import select_kernels
from .selective_scan import SelectiveScanWeights
from .state_space import StateSpaceWeights

__all__ = [
    "PLAIN_HEADS",
    "AttentionStep",
    "AttentionVariant",
    "BlockKeys",
    "Compression",
    "Connection",
    "ExpertCopies",
    "ExpertGate",
    "ExpertWeights",
    "GatedDeltaWeights",
    "GroupScales",
    "Grouped",
    "GroupedExpert",
    "HeadVariant",
    "Integers",
    "KernelSet",
    "KimiDeltaWeights",
    "NGramHashes",
    "PackedExpert",
    "PackedExperts",
    "PackedLinear",
    "PartNormWeights",
    "RMSNormGatedWeights",
    "RgLruWeights",
    "Routing",
    "SelectiveScanWeights",
    "SlotsOfRanks",
    "StateSpaceWeights",
    "select_kernels",
]
