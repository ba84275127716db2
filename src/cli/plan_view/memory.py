"""Rows of a plan about the memory of a device, by use."""

from __future__ import annotations

from ...config.auto_values import past_output_bytes
from ...config.plan.estimate import draft_logit_rows
from ...config.plan.kv import by_kind
from ...config.plan.plan import Plan
from ...config.schema.types import format_about as about
from ...model.quantised import TWELVE_BITS

_MAX_ADAPTERS = 4  # of which a plan shows the names
_KINDS = {
    "full": "{count} layers keep {size} per token",
    "window": "{count} layers keep {size} per token, of the last {window} tokens only",
    "latent": "{count} layers keep a latent of {size} per token",
    "latent window": "{count} layers keep a latent of {size} per token, of the last {window} tokens only",
    "state": "{count} layers keep a state of {size} per sequence",
    "cross": "{count} layers keep {size} per token of another input, {window} tokens",
}


def memory_rows(plan: Plan) -> list[tuple[str, str]]:
    found, ask = plan.estimate, plan.ask
    stored = plan.model.files.stored_as if plan.model.files is not None else ()
    parts = f" on each of {ask.num_devices} devices" if ask.num_devices > 1 else ""
    free = "" if plan.device.is_gpu else " free"
    as_free = ", as far as it is free" * (found.budget_bytes < int(ask.memory_share * found.memory_bytes))
    share = f"{ask.memory_share:g} of it{as_free}, {about(found.budget_bytes)}, to use"
    has_cache = bool(found.kv_cache_bytes) or plan.model.spec.generates
    rows = [
        ("device", f"{about(found.memory_bytes)}{free}; {share}"),
        ("weights", f"{about(found.weights_bytes)} in {_format(plan)}{parts}"),
        *_offloaded(plan),
        *(
            ("", f"{each.num_matrices} matrices: {each.method}, {about(each.num_bytes)} in the files")
            for each in stored
        ),
        *([("states", _states(plan))] if found.state_bytes else []),
        *(
            [("", f"{about(found.drafted_bytes)} at most, from which rejected drafts are taken back")]
            if found.drafted_bytes
            else []
        ),
        *_blocks_beside(plan),
        *([("adapters", _adapters(plan))] if found.adapter_bytes else []),
        *([("experts", f"{about(found.moving_bytes)} while they move")] if found.moving_bytes else []),
        *([("KV cache", f"{about(found.kv_cache_bytes)} in {ask.kv_dtype}{_tokens(plan)}")] if has_cache else []),
    ]
    for kind, count, size, window in by_kind(plan.model.spec, ask.kv_dtype, ask.state_dtype):
        key = "latent window" if kind == "latent" and window else kind
        if key in _KINDS:
            rows.append(("", _KINDS[key].format(count=count, size=about(size), window=window)))
    rows += [
        ("activations", f"{found.activations.shown} in a step of {ask.max_num_batched_tokens} tokens (estimate)"),
        ("process", f"{found.process.shown} for libraries and tables (estimate)"),
    ]
    if found.grammars.high:
        rows.append(("grammars", f"{found.grammars.shown} for the vocabulary of structured outputs (estimate)"))
    if found.drafts.high:
        rows.append(("drafts", _drafts(plan)))
    if found.graphs.high:
        name, of = ("CUDA graphs", "") if plan.device.is_gpu else ("graphs", " for captured steps")
        rows.append((name, f"{found.graphs.shown}{of} (estimate)"))
    left = plan.device.room.free_bytes - found.peak.likely
    rows.append(("together", f"{found.peak.shown}; {'leaves' if left >= 0 else 'lacks'} about {about(abs(left))}"))
    return rows


def _offloaded(plan: Plan) -> list[tuple[str, str]]:
    offload = plan.estimate.weight_offload
    if offload is None:
        return []
    size, link = about(offload.host_bytes), plan.device.host_link_gb_per_s
    seconds = offload.host_bytes / (link * 1e9)
    places = f"{offload.num_places} places for them on the device are counted above"
    layers, steps = f"{len(offload.layers)} of {plan.model.spec.num_layers} layers", 1 / seconds
    return [
        ("", f"{size} more, {layers}, in host memory; {places}"),
        ("", f"copied in every step: {1000 * seconds:.0f} ms at {link:g} GB/s, so at most {steps:.1f} steps a second"),
    ]


def _blocks_beside(plan: Plan) -> list[tuple[str, str]]:
    found = plan.estimate
    where = " in pinned memory of the host, not counted here" if found.is_on_host else ""
    sizes = (("for others", found.transfer_bytes), ("offloaded", found.kept_bytes))
    return [(name, f"{about(size)} of KV blocks{where}") for name, size in sizes if size]


def _adapters(plan: Plan) -> str:
    ask = plan.ask
    named = plan.model.files.adapters if plan.model.files is not None else ()
    shown = ", ".join(f"{each.name} of rank {each.max_rank}" for each in named[:_MAX_ADAPTERS])
    more = f" and {len(named) - _MAX_ADAPTERS} more" if len(named) > _MAX_ADAPTERS else ""
    size = (
        f"{about(plan.estimate.adapter_bytes)} for {ask.num_adapters} of rank {ask.adapter_rank}, and one that is read"
    )
    return f"{size}; at the start {shown}{more}" if named else size


def _drafts(plan: Plan) -> str:
    ask = plan.ask
    rows = f"{draft_logit_rows(ask)} more rows of logits" if draft_logit_rows(ask) else ""
    past = f"{about(past_output_bytes(ask.past_output_tokens))} of earlier answers" if ask.past_output_tokens else ""
    parts = [part for part in (rows, "captured steps", "tokens of sequences", past) if part]
    return f"{plan.estimate.drafts.shown}: {', '.join(parts)} (estimate)"


def _rest(plan: Plan) -> str:
    """What is not a matrix with codes."""
    is_compressed = plan.ask.held_in == TWELVE_BITS
    return f"others in {plan.ask.dtype}" + f", matrices among them kept in {TWELVE_BITS}" * is_compressed


def _format(plan: Plan) -> str:
    if plan.ask.quantization is None and plan.ask.codes_layout and plan.model.files and plan.model.files.own_codes:
        return f"the checkpoint's own codes, {_rest(plan)}"
    if plan.ask.held_in == TWELVE_BITS:
        return f"{plan.ask.dtype} kept in {TWELVE_BITS}, exactly"
    if plan.ask.quantization is not None:
        return f"{plan.ask.quantization}, norms and embeddings in {plan.ask.dtype}"
    if plan.model.files is None and plan.model.spec.quantization is not None:
        return plan.model.spec.quantization.name
    return plan.ask.dtype


def _states(plan: Plan) -> str:
    found, seqs = plan.estimate, plan.ask.max_num_seqs
    kept = found.num_kept_states
    reused = f", and {kept} kept for prefixes that are reused" if kept else ""
    twice = ", two of each because of drafts" * plan.ask.has_drafts
    return f"{about(found.state_bytes)} for {seqs} sequences{twice}{reused}"


def _tokens(plan: Plan) -> str:
    kv = plan.estimate.kv
    per_token = kv.token_bytes
    if not per_token:
        return ""
    if kv.windows:
        return f", {about(per_token)} a token"
    held = kv.num_parts * plan.estimate.kv_cache_bytes // per_token
    return f" = {held} tokens of {about(per_token)}" + f", of which it keeps 1 in {kv.num_parts}" * (kv.num_parts > 1)
