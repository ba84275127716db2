"""fingerprint: which engines can read each other's KV blocks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ...config import Resolved
from ...model.weight_digest import weight_digest

FORMAT = "stoker blocks 2"


def fingerprint(resolved: Resolved) -> str:
    """Fingerprint, equal only for engines that compute the same keys and values and store them in the same layout.

    Weights count as weight_digest says. Raises OSError.
    """
    model, cache, files = resolved.model, resolved.cache, resolved.model_files
    parts = [
        *(FORMAT, resolved.model_spec, resolved.cache_groups, model.dtype, model.quantization, files.config_json),
        *(cache.kv_cache_dtype, cache.block_size, cache.prefix_caching_hash_algo, resolved.device.device),
        _computed_scales(resolved),
        *(files.weight_format, model.seed if files.weight_format == "dummy" else None),
        weight_digest(Path(files.model_path), files.weight_files),
    ]
    if resolved.lora.enable_lora and resolved.lora.lora_target_modules:
        parts.append(repr(sorted(resolved.lora.lora_target_modules)))  # the same adapter gives other keys and values
    holders, is_whole = resolved.block_holders
    if not is_whole:
        parts.append(holders)
    return hashlib.sha256("\n".join(map(repr, parts)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _computed_scales(resolved: Resolved) -> tuple[int, ...]:
    """What the scales of an fp8 cache depend on, if the model computes them when it is loaded."""
    cache, model = resolved.cache, resolved.model
    if not cache.calculate_kv_scales or cache.kv_cache_dtype != "fp8":
        return ()
    return model.seed, model.max_model_len, resolved.scheduler.max_num_batched_tokens
