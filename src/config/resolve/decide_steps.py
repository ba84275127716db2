"""What `auto` becomes in the sections `scheduler` and `compilation`: the limits of a step, and captured graphs."""

from __future__ import annotations

from ..auto_values import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
from ..graph_sizes import usual_sizes, written_sizes
from .decisions import Decisions
from .described_model import ModelFiles


def decide_scheduler(done: Decisions) -> None:
    device = done.device.device
    if done.is_auto("scheduler.max_num_seqs"):
        done.decide("scheduler.max_num_seqs", MAX_NUM_SEQS[device], "R102", f"the default for {device}")
    if done.is_auto("scheduler.max_num_batched_tokens") and done.computes_in_chunks:
        decide_batched_tokens(done, 0)
    _partial_prefills(done)
    if done.is_auto("scheduler.async_scheduling"):
        reason = "the device computes while the CPU plans" if device == "cuda" else "a CPU computes with all its cores"
        if done.topology.num_stages > 1:
            reason = "the stages of the model compute different steps"
        done.decide("scheduler.async_scheduling", device == "cuda" or done.topology.num_stages > 1, "R123", reason)
    _graphs(done)


def decide_drafts(done: Decisions, model_files: ModelFiles) -> None:
    draft = model_files.draft
    if draft is not None and (done.speculative.method is None or done.is_auto("speculative.method")):
        found = draft.draft.kind
        reason = "the checkpoint has a layer for it" if found == "mtp" else "what `speculative.model` holds"
        reads_layers = bool(draft.draft.read_layers)
        if not (done.is_auto("speculative.method") and _why_no_drafts(done, model_files, reads_layers=reads_layers)):
            done.decide("speculative.method", "draft_model" if found == "model" else found, "R518", reason)
            return
    if done.is_auto("speculative.method"):
        reason = _why_no_drafts(done, model_files)
        done.decide("speculative.method", None if reason else "ngram", "R515", reason or "nothing is loaded for it")


def _why_no_drafts(done: Decisions, model_files: ModelFiles, *, reads_layers: bool = False) -> str:
    """What `speculative.method: auto` does not draft for; empty if it does. reads_layers: of a network."""
    topology = done.topology
    reasons = (
        (done.device.device == "cuda", "this build drafts on CPUs"),
        (not model_files.spec.generates, "the model generates no tokens"),
        (topology.is_launched, "all processes of a launcher plan the same steps"),
        (topology.num_sharing_experts > 1 and model_files.spec.has_experts, "replicas compute steps in common"),
        (topology.num_prompt_groups > 1 or topology.num_context_parts > 1, "several processes share a sequence"),
        (topology.num_stages > 1 and reads_layers, "other stages have the layers that it reads"),
        (topology.num_ranks > 1 and bool(done.model.logits_processors), "processors are in one process"),
    )
    return next((reason for is_so, reason in reasons if is_so), "")


def _graphs(done: Decisions) -> None:
    """Sizes written under either name, without sizes that no step can have; else the usual sizes."""
    path, other = "scheduler.cuda_graph_sizes", "compilation.cudagraph_capture_sizes"
    seqs, sizes = done.scheduler.max_num_seqs, done.scheduler.cuda_graph_sizes
    reason = why_no_graphs(done, done.device.device)
    if done.is_auto("compilation.level"):
        done.decide("compilation.level", 0 if reason else 3, "R189", reason or "graphs are captured")
    if reason:
        done.decide(path, (), "R118", reason)
    elif sizes:
        done.put(path, written_sizes(sizes, seqs))
    elif sizes := done.compilation.cudagraph_capture_sizes:
        done.decide(path, tuple(size for size in sorted(set(sizes)) if size <= seqs), "R190", f"as {other} says")
    else:
        done.decide(path, usual_sizes(seqs), "R118", f"the usual sizes up to max_num_seqs, {seqs}")


def why_no_graphs(done: Decisions, device: str) -> str:
    """Why no graphs are captured on `cpu` or `cuda`; empty if they are. A level that `auto` chose is not a reason."""
    if device != "cuda":
        return "graphs belong to CUDA devices"
    if done.model.enforce_eager:
        return "model.enforce_eager asks for single operations"
    if done.model.batch_invariant:
        return "model.batch_invariant has no graphs on a GPU"
    if done.model_files is not None and not done.model_files.spec.generates:
        return "the model generates no tokens"
    if done.topology.num_stages > 1:
        return "the stages of a pipeline exchange through the host"
    is_off = done.is_written("compilation.level") and done.compilation.level == 0
    return "compilation.level is 0" if is_off else ""


def _partial_prefills(done: Decisions) -> None:
    """Allow as many partially computed prompts as running sequences, so that only a written limit delays a prompt."""
    partial, long = "scheduler.max_num_partial_prefills", "scheduler.max_long_partial_prefills"
    if done.is_auto(partial):
        if done.scheduler.enable_chunked_prefill:
            done.decide(partial, done.scheduler.max_num_seqs, "R112", "as many as scheduler.max_num_seqs")
        else:
            done.decide(partial, 1, "R112", "without chunked prefill none is computed in part")
    if done.is_auto(long):
        done.decide(
            long,
            done.scheduler.max_num_partial_prefills,
            "R113",
            f"as many as {partial}: short prompts do not overtake long ones",
        )


def decide_batched_tokens(done: Decisions, longest_prompt: int) -> None:
    """Enough for one token of each sequence and, if prompts are computed whole, for the longest one."""
    device, seqs = done.device.device, done.scheduler.max_num_seqs
    base = MAX_NUM_BATCHED_TOKENS[device]
    if longest_prompt > max(base, seqs):
        tokens, reason = longest_prompt, f"the longest prompt must fit in one step: {done.why_whole}"
    elif seqs > base:
        tokens, reason = seqs, "one token of each of max_num_seqs sequences"
    else:
        tokens, reason = base, f"the default for {device}"
    done.decide("scheduler.max_num_batched_tokens", tokens, "R103", reason)
