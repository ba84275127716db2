"""A plan as text: the result first, then the memory, how much fits, and what would help."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence

from ..config.plan.calibration import Calibration, error_in_per_cent
from ..config.plan.distribution import exchange_text, manifest_of
from ..config.plan.estimate import NOTHING, Range
from ..config.plan.kv import by_kind
from ..config.plan.plan import Plan
from ..config.plan.text import TextForms
from ..config.schema.types import format_about as about
from ..model.feed_forwards import Experts
from ..model.quantised import TWELVE_BITS
from .numa_view import place_text

_INDENT = 14
_NO_LIMIT = 1 << 30  # characters of a line
_KINDS = {
    "full": "{count} layers keep {size} per token",
    "window": "{count} layers keep {size} per token, of the last {window} tokens only",
    "latent": "{count} layers keep a latent of {size} per token",
    "state": "{count} layers keep a state of {size} per sequence",
    "cross": "{count} layers keep {size} per token of another input, {window} tokens",
}


def plan_text(
    plan: Plan,
    forms: TextForms,
    decided: Sequence[tuple[str, str, str]],
    name: str,
    screen: os.terminal_size | None = None,
) -> str:
    """screen: lines are wrapped for it, and a text that is longer than it ends with the result again."""
    width = screen.columns if screen is not None else _NO_LIMIT
    lines = result = _result(plan, name, width)
    for title, rows in (
        ("devices", _devices(plan)),
        ("model", _model(plan, forms)),
        ("memory", _memory(plan)),
        ("NUMA nodes", _numa(plan)),
        ("capacity", _capacity(plan)),
        ("speed (estimate)", _speed(plan)),
        ("kernels", list(plan.kernels.items())),
        ("decided for you", [(path, f"{value}  ({why})") for path, value, why in decided]),
        ("cheapest changes", _changes(plan)),
        ("notes", [("-", note) for note in plan.notes]),
    ):
        if rows:
            least = 3 if title in ("notes", "cheapest changes", "devices") else _INDENT
            column = max(least - 1, *(len(label) for label, _ in rows)) + 1
            is_table = title in ("devices", "capacity")
            lines = [*lines, "", title]
            for label, value in rows:
                lines += _wrapped(f"  {label:<{column}}{value}".rstrip(), column + 2, _NO_LIMIT if is_table else width)
    if screen is not None and len(lines) >= screen.lines:
        lines = [*lines, "", *result, *_wrapped(f"  {_summary(plan)}", 2, width)]
    return "\n".join(lines)


def _result(plan: Plan, name: str, width: int) -> list[str]:
    lines = _wrapped(f"{name or plan.model.name} on {plan.device.shown}: {plan.verdict}", 2, width)
    return [*lines, *_wrapped(f"  {plan.estimate.reason}", 2, width)] if plan.estimate.reason else lines


def _summary(plan: Plan) -> str:
    found = plan.estimate
    used = f"weights {about(found.weights_bytes)}, KV cache {about(found.kv_cache_bytes)}"
    return f"{used}; together about {about(found.peak.likely)} of {about(found.memory_bytes)}"


def _wrapped(line: str, indent: int, width: int) -> list[str]:
    """The line in parts of at most `width` characters, all but the first indented."""
    if len(line) <= width:
        return [line]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
        drop_whitespace=True,
    )


def _types(parts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The quantised types of the matrices of a GGUF file: a line for the parts of a layer that have the same."""
    same: dict[str, list[str]] = {}
    for part, dtypes in parts.items():
        several = ", ".join(f"{count} {name}" for name, count in sorted(dtypes.items()))
        same.setdefault(several if len(dtypes) > 1 else next(iter(dtypes)), []).append(part)
    return [f"{types}: {', '.join(named)}" for types, named in same.items()]


def form_rows(forms: TextForms) -> list[tuple[str, str]]:
    """The chat template, and what of answers is read."""
    if not forms.source:
        return [("chat template", "none found: /v1/chat/completions needs `server.chat_template`")]
    return [
        ("chat template", forms.source),
        ("tool calls", f"{forms.tool_calls}: {forms.tool_calls_why}"),
        ("reasoning", f"{forms.reasoning}: {forms.reasoning_why}"),
        *(("", f"warning: {warning}") for warning in forms.warnings),
    ]


def _model(plan: Plan, forms: TextForms) -> list[tuple[str, str]]:
    model, spec = plan.model, plan.model.spec
    sparse = f", {_count(model.num_active_parameters)} of them per token" if spec.has_experts else ""
    rows = [
        ("architecture", f"{spec.architecture or spec.model_type}, {spec.num_layers} layers"),
        ("parameters", f"{_count(model.num_parameters)}{sparse} ({model.weights_source})"),
    ]
    stored = model.stored
    if stored is not None and stored.num_bytes:
        dtypes = ", ".join(f"{name} {about(size)}" for name, size in sorted(stored.num_bytes.items()))
        becomes = "as stored" if stored.bytes_in(plan.ask.dtype) == stored.total_bytes else f"become {plan.ask.dtype}"
        rows.append(("stored", f"{dtypes}; {becomes}"))
        rows += [("", line) for line in _types(stored.parts)]
    if model.files is not None and model.files.state is not None:
        rows.append(("stored", f"sharded state: {model.files.state.shown}"))
    context = f"{plan.estimate.max_model_len} tokens" if plan.estimate.max_model_len else "does not fit"
    rows.append(("context", f"{context}; the model supports {model.limit}"))
    return rows + form_rows(forms)


def _memory(plan: Plan) -> list[tuple[str, str]]:
    found, ask = plan.estimate, plan.ask
    stored = plan.model.files.stored_as if plan.model.files is not None else ()
    parts = f" on each of {ask.num_devices} devices" if ask.num_devices > 1 else ""
    free = "" if plan.device.is_gpu else " free"
    as_free = ", as far as it is free" * (found.budget_bytes < int(ask.memory_share * found.memory_bytes))
    share = f"{ask.memory_share:g} of it{as_free}, {about(found.budget_bytes)}, to use"
    rows = [
        *([("replicas", _replicas(plan))] if _has_several(plan) and plan.distribution is None else []),
        *([("experts", _shared_experts(plan))] if plan.sharing is not None else []),
        *([("processes", _processes(plan))] if plan.ask.num_devices > 1 and plan.distribution is None else []),
        *([("nodes", _nodes(plan))] if plan.num_nodes > 1 else []),
        ("device", f"{about(found.memory_bytes)}{free}; {share}"),
        ("weights", f"{about(found.weights_bytes)} in {_format(plan)}{parts}"),
        *_offloaded(plan),
        *(
            ("", f"{each.num_matrices} matrices: {each.method}, {about(each.num_bytes)} in the files")
            for each in stored
        ),
        *([("states", _states(plan))] if found.state_bytes else []),
        *_blocks_beside(plan),
        *([("experts", f"{about(found.moving_bytes)} while they move")] if found.moving_bytes else []),
        ("KV cache", f"{about(found.kv_cache_bytes)} in {ask.kv_dtype}{_tokens(plan)}"),
    ]
    for kind, count, size, window in by_kind(plan.model.spec, ask.kv_dtype, ask.state_dtype):
        if kind in _KINDS:
            rows.append(("", _KINDS[kind].format(count=count, size=about(size), window=window)))
    rows += [
        ("activations", f"{_range(found.activations)} in a step of {ask.max_num_batched_tokens} tokens (estimate)"),
        ("process", f"{_range(found.process)} for libraries and tables (estimate)"),
    ]
    if found.grammars.high:
        rows.append(("grammars", f"{_range(found.grammars)} for the vocabulary of structured outputs (estimate)"))
    if found.graphs.high:
        name, of = ("CUDA graphs", "") if plan.device.is_gpu else ("graphs", " for captured steps")
        rows.append((name, f"{_range(found.graphs)}{of} (estimate)"))
    left = plan.device.room.free_bytes - found.peak.likely
    rows.append(("together", f"{_range(found.peak)}; {'leaves' if left >= 0 else 'lacks'} about {about(abs(left))}"))
    return rows


def _devices(plan: Plan) -> list[tuple[str, str]]:
    """Numbers of devices that hold the model, and the one that was chosen."""
    found = plan.distribution
    if found is None:
        return []
    heads = ("tensor", "pipeline", "replicas", "weights each", "KV cache each", "context", "sequences", "exchange")
    rows = [("", "".join(f"{head:>{_column(head)}}" for head in heads))]
    for index, placement in enumerate(found.placements):
        cells = (
            placement.tensor_parallel_size,
            placement.pipeline_parallel_size,
            placement.data_parallel_size,
            about(placement.weights_bytes),
            about(placement.kv_cache_bytes) if placement.max_model_len else "-",
            placement.max_model_len or "-",
            placement.num_sequences or "-",
            _share(placement.of_decode),
        )
        shown = "".join(f"{cell:>{_column(head)}}" for head, cell in zip(heads, cells, strict=True))
        rows.append((">" if index == found.chosen else "", shown))
    chosen = found.shown
    rows.append(("", ""))
    if found.chosen is not None:
        rows.append(("", f"parallel: {{{manifest_of(chosen)}}}"))
    rows.append(("", found.why))
    if found.obstacle is not None:
        rows.append(("", f"tensor parallel goes no further: {found.obstacle}"))
    rows += [("", line) for line in exchange_text(chosen.exchange)]
    if chosen.of_prefill is not None:
        rows.append(("", f"they take {_share(chosen.of_prefill)} of a full step of a prompt (estimate)"))
    rows.append(("", "exchange: share of a decode step of one sequence (estimate); all below is of one device"))
    return rows


def _column(head: str) -> int:
    return max(12, len(head) + 2)


def _share(share: tuple[float, float] | None) -> str:
    return "-" if share is None else f"{share[0]:.0%} to {share[1]:.0%}"


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


def _has_several(plan: Plan) -> bool:
    return plan.num_replicas > 1 or plan.num_on_ray > 0


def _blocks_beside(plan: Plan) -> list[tuple[str, str]]:
    found = plan.estimate
    where = " in pinned memory of the host, not counted here" if found.is_on_host else ""
    sizes = (("for others", found.transfer_bytes), ("offloaded", found.kept_bytes))
    return [(name, f"{about(size)} of KV blocks{where}") for name, size in sizes if size]


def _replicas(plan: Plan) -> str:
    """How many there are, and what all need."""
    shared = "a GPU each" if plan.device.is_gpu else "an equal share of this machine each"
    needed = sum([plan.estimate.peak] * plan.num_replicas * plan.ask.num_devices, start=NOTHING)
    if plan.num_on_ray:
        there = f"{plan.num_replicas} on a machine like this one, which need {_range(needed)}"
        return f"{plan.num_on_ray}, on the machines of Ray; decided for {there}; all other numbers are of one"
    return f"{plan.num_replicas}, {shared}; together {_range(needed)}; all other numbers are of one"


def _shared_experts(plan: Plan) -> str:
    """Experts that replicas share."""
    sharing, spec = plan.sharing, plan.model.spec
    assert sharing is not None, "each replica has all experts"
    block = next(layer.feed_forward for layer in spec.layers if isinstance(layer.feed_forward, Experts))
    return (
        f"{_own_experts(block, block.num_replicas)} in each replica; {sharing.num_exchanges} exchanges a step through "
        f"shared memory, {about(sharing.bytes_per_token)} a token"
    )


def _processes(plan: Plan) -> str:
    """Processes that compute one replica."""
    blocks = (layer.feed_forward for layer in plan.model.spec.layers)
    placed = next((each for each in blocks if isinstance(each, Experts) and each.placement != "divided"), None)
    parts, stages = plan.ask.tensor_parallel_size, plan.ask.pipeline_parallel_size
    staged = f" in {stages} stages" * (stages > 1)
    groups = plan.ask.prefill_context_parallel_size
    prompts = f", in {groups} groups of {parts} with all weights" * (min(groups, parts) > 1)
    prompts += ", which share the tokens of prompts" * (groups > 1)
    shared = plan.ask.decode_context_parallel_size
    kept = f", {shared} of which share the tokens of each sequence" * (shared > 1)
    experts = "" if placed is None else f", each with {_own_experts(placed, parts)}"
    together = f"{plan.ask.num_devices} compute a model together{staged}{prompts}{kept}{experts}"
    return f"{together}; all other numbers are of one"


def _own_experts(placed: Experts, parts: int) -> str:
    own = -(-(placed.count + (placed.redundant or 0)) // parts)
    copies = f" and {placed.redundant} redundant ones" if placed.redundant else ""
    return f"{own} of {placed.count} experts{copies}"


def _numa(plan: Plan) -> list[tuple[str, str]]:
    """NUMA node and cores of each process, and the memory that the processes of a node need."""
    if plan.numa is None:
        return []
    rows = [(each.name, place_text(each.node, each.cores)) for each in plan.numa.processes]
    for node in plan.numa.nodes:
        left, is_one = node.available_bytes - node.needed.likely, node.num_processes == 1
        said = f"{about(node.available_bytes)} free; " + ("1 process" if is_one else f"{node.num_processes} processes")
        if node.needed.high:
            rest = f"{'leaves' if left >= 0 else 'lacks'} about {about(abs(left))}"
            said += f", which {'needs' if is_one else 'need'} {_range(node.needed)}; {rest}"
        rows.append((f"node {node.number}", said))
    return rows


def _nodes(plan: Plan) -> str:
    """Ranks of the processes on each node."""
    each = plan.ask.num_devices // plan.num_nodes
    ranges = (range(node * each, (node + 1) * each) for node in range(plan.num_nodes))
    return "; ".join(
        f"node {node} has rank {ranks[0]}" + (f" to {ranks[-1]}" if each > 1 else "")
        for node, ranks in enumerate(ranges)
    )


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
    kept = found.num_states - seqs
    reused = f", and {kept} kept for prefixes that are reused" if kept else ""
    return f"{about(found.state_bytes)} for {seqs} sequences{reused}"


def _tokens(plan: Plan) -> str:
    kv = plan.estimate.kv
    per_token = kv.token_bytes
    if not per_token:
        return ""
    if kv.windows:
        return f", {about(per_token)} a token"
    held = kv.num_parts * plan.estimate.kv_cache_bytes // per_token
    return f" = {held} tokens of {about(per_token)}" + f", of which it keeps 1 in {kv.num_parts}" * (kv.num_parts > 1)


def _capacity(plan: Plan) -> list[tuple[str, str]]:
    found = plan.capacity
    if not found.sequences:
        return []
    longest = list(found.longest.items())
    return [
        ("context", "  ".join(f"{length:>8}" for length in found.sequences)),
        ("sequences", "  ".join(f"{count:>8}" for count in found.sequences.values())),
        ("", ""),
        ("sequences", "  ".join(f"{count:>8}" for count, _ in longest)),
        ("context each", "  ".join(f"{length:>8}" for _, length in longest)),
    ]


def _speed(plan: Plan) -> list[tuple[str, str]]:
    speed = plan.speed
    if speed is None:
        return []
    at = f"at {speed.context} tokens of context"
    return [
        ("decode", f"{_rate(speed.decode_one)} tokens/s, one sequence {at}"),
        ("", f"{_rate(speed.decode_all)} tokens/s, {speed.num_seqs} sequences together"),
        ("prefill", f"{_rate(speed.prefill)} tokens/s"),
    ]


def _changes(plan: Plan) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for number, change in enumerate(plan.changes, 1):
        here = "" if change.is_in_build else " [not in this build]"
        rows += [(f"{number}.", f"{change.what}{here}"), ("", f"price: {change.price}"), ("", change.outcome)]
    if not rows and plan.estimate.status == "does not fit":
        rows.append(("", "no single change that was tried makes it fit: use a smaller model"))
    return rows


def calibration_text(found: Sequence[Calibration]) -> str:
    """Estimate and measurement of every start, and the error in per cent."""
    lines = [f"{'date':<26}{'model':<28}{'dtype':<10}{'what':<11}{'planned':>12}{'measured':>12}{'error':>9}"]
    for entry in found:
        head = f"{entry.date:<26}{entry.model[-26:]:<28}{entry.dtype:<10}"
        for what, planned, measured in (
            ("weights", entry.planned_weights, entry.weights),
            ("KV cache", entry.planned_kv_cache, entry.kv_cache),
            ("resident", entry.planned_resident.likely, entry.resident),
            ("start peak", entry.planned_resident.likely, entry.peak),
        ):
            error = error_in_per_cent(planned, measured)
            said = "-" if measured is None else about(measured)
            off = "-" if error is None else f"{error:+.1f} %"
            lines.append(f"{head}{what:<11}{about(planned):>12}{said:>12}{off:>9}")
            head = " " * 64
    return "\n".join(lines)


def _range(sizes: Range) -> str:
    return f"{about(sizes.low)} to {about(sizes.high)}, likely {about(sizes.likely)}"


def _rate(rate: tuple[float, float]) -> str:
    return f"{_round(rate[0])} to {_round(rate[1])}"


def _round(number: float) -> str:
    if number < 10:
        return f"{number:.1f}"
    scale = 10 ** (len(str(int(number))) - 2)
    return f"{round(number / scale) * scale:,}"


def _count(number: int) -> str:
    for scale, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= scale:
            return f"{number / scale:.2f}{unit}"
    return str(number)
