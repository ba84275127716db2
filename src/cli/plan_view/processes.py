"""Rows of a plan about replicas and processes: what they share, and where they are."""

from __future__ import annotations

from ...config.plan.estimate import NOTHING
from ...config.plan.plan import Plan
from ...config.schema.types import format_about as about
from ...model.feed_forwards import Experts
from ..numa_view import place_text


def process_rows(plan: Plan) -> list[tuple[str, str]]:
    """How many compute, and what each of them has."""
    is_as_written, has_several = plan.distribution is None, plan.num_replicas > 1 or plan.num_on_ray > 0
    return [
        *([("replicas", _replicas(plan))] if has_several and is_as_written else []),
        *([("experts", _shared_experts(plan))] if plan.sharing is not None else []),
        *([("processes", _processes(plan))] if plan.ask.num_devices > 1 and is_as_written else []),
        *([("nodes", _nodes(plan))] if plan.num_nodes > 1 else []),
    ]


def _replicas(plan: Plan) -> str:
    """How many there are, and what all need."""
    shared = "a GPU each" if plan.device.is_gpu else "an equal share of this machine each"
    needed = sum([plan.estimate.peak] * plan.num_replicas * plan.ask.num_devices, start=NOTHING)
    if plan.num_on_ray:
        there = f"{plan.num_replicas} on a machine like this one, which need {needed.shown}"
        return f"{plan.num_on_ray}, on the machines of Ray; decided for {there}; all other numbers are of one"
    return f"{plan.num_replicas}, {shared}; together {needed.shown}; all other numbers are of one"


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


def _nodes(plan: Plan) -> str:
    """Ranks of the processes on each node."""
    each = plan.ask.num_devices // plan.num_nodes
    ranges = (range(node * each, (node + 1) * each) for node in range(plan.num_nodes))
    return "; ".join(
        f"node {node} has rank {ranks[0]}" + (f" to {ranks[-1]}" if each > 1 else "")
        for node, ranks in enumerate(ranges)
    )


def numa_rows(plan: Plan) -> list[tuple[str, str]]:
    """NUMA node and cores of each process, and the memory that the processes of a node need."""
    if plan.numa is None:
        return []
    rows = [(each.name, place_text(each.node, each.cores)) for each in plan.numa.processes]
    for node in plan.numa.nodes:
        left, is_one = node.available_bytes - node.needed.likely, node.num_processes == 1
        said = f"{about(node.available_bytes)} free; " + ("1 process" if is_one else f"{node.num_processes} processes")
        if node.needed.high:
            rest = f"{'leaves' if left >= 0 else 'lacks'} about {about(abs(left))}"
            said += f", which {'needs' if is_one else 'need'} {node.needed.shown}; {rest}"
        rows.append((f"node {node.number}", said))
    return rows
