"""The cheapest changes that make a deployment fit. Each candidate is planned again, and offered if it fits."""

from __future__ import annotations

from collections.abc import Iterator

from ...model.record import Record
from ...model.tensor_parallel import tensor_parallel_problem
from ..schema.types import format_about as about
from .ask import Ask
from .devices import DeviceProfile, profiles
from .estimate import Estimate, Status, estimate, with_sizes
from .model import PlannedModel

MAX_CHANGES = 3
_DOUBT = 15  # added cost of a change after which the estimate is still uncertain
_GOOD: tuple[Status, ...] = ("fits", "fits with less context")


class Change(Record):
    """`what`: an option as written, or a description; `price`: its cost to the user; `outcome`: the new plan."""

    what: str
    price: str
    outcome: str
    is_in_build: bool
    option: str | None = None  # dotted path
    value: str | None = None


class Candidate(Record):
    cost: int  # rank: free changes first, new hardware last
    change: Change
    ask: Ask
    device: DeviceProfile
    model: PlannedModel | None = None  # another checkpoint of it


def cheapest_changes(model: PlannedModel, device: DeviceProfile, ask: Ask, found: Estimate) -> list[Change]:
    """Changes after which the model fits better, cheapest first, at most MAX_CHANGES; none if the deployment fits."""
    if found.status == "fits":
        return []
    offered: list[tuple[int, Change]] = []
    for candidate in _candidates(model, device, ask, found):
        again = estimate(candidate.model or model, candidate.device, candidate.ask)
        if _is_better(found, again):
            change = candidate.change.model_copy(update={"outcome": _outcome(again, candidate.ask)})
            offered.append((candidate.cost + (again.status not in _GOOD) * _DOUBT, change))
    offered.sort(key=lambda entry: entry[0])
    return [change for _, change in offered[:MAX_CHANGES]]


def _is_better(before: Estimate, after: Estimate) -> bool:
    if before.status == "fits with less context":
        return after.status == "fits"
    if before.status == "may not fit":
        return after.status in _GOOD
    return not after.is_blocked and after.max_model_len >= after.kv.block_size


def _outcome(again: Estimate, ask: Ask) -> str:
    kv = again.kv_cache_bytes
    number = again.kv.num_sequences(kv, again.max_model_len)
    number = min(number, ask.max_num_seqs) if again.state_bytes else number  # there are no more states than that
    sizes = f"weights {about(again.weights_bytes)}, KV cache {about(kv)}"
    return f"{again.status}: {sizes}, {number} sequence(s) of {again.max_model_len} tokens"


def _candidates(model: PlannedModel, device: DeviceProfile, ask: Ask, found: Estimate) -> Iterator[Candidate]:
    yield from _options(model, device, ask, found)
    if found.weights_bytes or ask.dtype == "float32":
        yield from _smaller_formats(model, device, ask)
    yield from _more_devices(model, device, ask)


def _options(model: PlannedModel, device: DeviceProfile, ask: Ask, found: Estimate) -> Iterator[Candidate]:
    if ask.kv_cache_bytes is not None or ask.num_kv_blocks is not None:
        free = ask.model_copy(update={"kv_cache_bytes": None, "num_kv_blocks": None})
        option = "cache.kv_cache_memory_bytes" if ask.num_kv_blocks is None else "cache.num_gpu_blocks_override"
        price = "fewer concurrent sequences, and a smaller prefix cache"
        yield _candidate(10, f"leave {option} to auto", price, free, device, option=option, value="auto")
    if ask.max_model_len is not None:
        freed = estimate(model, device, ask.model_copy(update={"max_model_len": None})).max_model_len
        length = freed if freed < 1024 else freed // 1024 * 1024
        if 0 < length < ask.max_model_len:
            price = f"prompt and answer together end at {length} tokens instead of {ask.max_model_len}"
            less = ask.model_copy(update={"max_model_len": length})
            cost = 20 if length * 4 >= ask.max_model_len else 45
            option = "model.max_model_len"
            yield _candidate(cost, f"{option}: {length}", price, less, device, option=option, value=str(length))
    if found.status == "fits with less context":
        length = model.limit
        price = f"{about(found.kv.to_admit(length))} for the KV cache instead of {about(found.kv_cache_bytes)}"
        whole = ask.model_copy(update={"max_model_len": length})
        option = "model.max_model_len"
        yield _candidate(5, f"{option}: {length}", price, whole, device, option=option, value=str(length))
    if found.status == "may not fit":
        for option, name, least in (
            ("scheduler.max_num_batched_tokens", "max_num_batched_tokens", max(ask.max_num_seqs, 256)),
            ("scheduler.max_num_seqs", "max_num_seqs", 1),
        ):
            if (smaller := _halved(model, device, ask, name, least)) is not None:
                price = "long prompts take more steps" if "tokens" in name else "fewer concurrent requests"
                value = getattr(smaller, name)
                yield _candidate(30, f"{option}: {value}", price, smaller, device, option=option, value=str(value))
        yield from _smaller_share(model, device, ask)
    if ask.memory_share < 0.95:
        option = "cache.gpu_memory_utilization"
        more = ask.model_copy(update={"memory_share": 0.95})
        price = "less room for other programs on the device"
        yield _candidate(25, f"{option}: 0.95", price, more, device, option=option, value="0.95")


def _smaller_share(model: PlannedModel, device: DeviceProfile, ask: Ask) -> Iterator[Candidate]:
    """Reduce the share of memory on a CPU, which covers weights and KV cache only: more is left for everything else."""
    for percent in range(int(ask.memory_share * 100) // 5 * 5, 25, -5):
        less = ask.model_copy(update={"memory_share": percent / 100})
        if less.memory_share < ask.memory_share and estimate(model, device, less).status in _GOOD:
            option, value = "cache.gpu_memory_utilization", f"{percent / 100:g}"
            price = "a smaller KV cache: fewer concurrent sequences"
            yield _candidate(12, f"{option}: {value}", price, less, device, option=option, value=value)
            return


def _halved(model: PlannedModel, device: DeviceProfile, ask: Ask, name: str, least: int) -> Ask | None:
    """Halves a value until the deployment fits; None if it never does."""
    value = getattr(ask, name) // 2
    while value >= least:
        smaller = ask.model_copy(update={name: value})
        if estimate(model, device, smaller).status in _GOOD:
            return smaller
        value //= 2
    return None


def _smaller_formats(model: PlannedModel, device: DeviceProfile, ask: Ask) -> Iterator[Candidate]:
    if ask.dtype == "float32" and device.has_bfloat16:
        half = ask.model_copy(update={"dtype": "bfloat16", "kv_dtype": "bfloat16"})
        price = "three significant digits instead of seven; weights and KV cache take half"
        yield _candidate(15, "model.dtype: bfloat16", price, half, device, option="model.dtype", value="bfloat16")
    if ask.kv_dtype == "bfloat16" and not device.is_gpu and device.is_in_build:
        less = ask.model_copy(update={"kv_dtype": "int8"})
        price = "hardly any loss; half the KV cache"
        yield _candidate(
            40, "cache.kv_cache_dtype: int8", price, less, device, option="cache.kv_cache_dtype", value="int8"
        )
    elif ask.kv_dtype not in ("fp8", "int8", "float32"):
        less = ask.model_copy(update={"kv_dtype": "fp8"})
        price = "small losses in long contexts; half the KV cache"
        if device.is_in_build and device.fp8_tflops is not None:
            yield _candidate(
                40, "cache.kv_cache_dtype: fp8", price, less, device, option="cache.kv_cache_dtype", value="fp8"
            )
        else:
            yield _candidate(40, "an 8-bit KV cache", price, less, device, is_in_build=False)
    if model.spec.quantization is None and ask.quantization is None:
        if device.fp8_tflops is not None:
            price = "almost no loss in quality; needs a checkpoint in FP8"
            yield _checkpoint(50, "weights in FP8", price, "fp8", model, device, ask)
        elif not device.is_gpu or device.has_bfloat16:
            yield _quantised("int8", "weights in int8", model, device, ask)
        yield _quantised("int4", "weights in 4 bits (AWQ or GPTQ)", model, device, ask)
    elif ask.quantization == "int8":
        yield _quantised("int4", "weights in 4 bits", model, device, ask)


def _quantised(scheme: str, what: str, model: PlannedModel, device: DeviceProfile, ask: Ask) -> Candidate:
    """what: the description of the change where this build cannot make it."""
    price = "a small loss in quality" if scheme == "int8" else "a loss in quality that depends on the model"
    if not device.is_gpu and model.files is not None:
        less = ask.model_copy(update={"quantization": scheme})
        option, cost = "model.quantization", 16 if scheme == "int8" else 41
        return _candidate(cost, f"{option}: {scheme}", price, less, device, option=option, value=scheme)
    bits = "4" if scheme == "int4" else "8"
    price += f"; needs a checkpoint in {bits} bits"
    return _checkpoint(51 if scheme == "int8" else 55, what, price, scheme, model, device, ask)


def _checkpoint(
    cost: int, what: str, price: str, form: str, model: PlannedModel, device: DeviceProfile, ask: Ask
) -> Candidate:
    """Another checkpoint of the model, counted as this build holds it; one that it cannot run by its stored bytes."""
    if (other := model.in_form(form)) is not None:
        return _candidate(cost, what, price, ask, device, model=other, is_in_build=device.is_in_build)
    less = ask.model_copy(update={"quantization": form})
    return _candidate(cost, what, price, less, device, is_in_build=False)


def _more_devices(model: PlannedModel, device: DeviceProfile, ask: Ask) -> Iterator[Candidate]:
    if device.is_gpu:
        for count in (2, 4, 8):
            if tensor_parallel_problem(model.spec, count):
                continue
            more = with_sizes(model, device, ask, tensor_parallel_size=count)
            if estimate(model, device, more).status in _GOOD:
                price = f"{count} devices instead of one; --devices {count} plans for them"
                what = f"parallel.tensor_parallel_size: {count}"
                is_ours = device.is_in_build and model.is_native
                option, value = "parallel.tensor_parallel_size", str(count)
                yield _candidate(60 + count, what, price, more, device, is_in_build=is_ours, option=option, value=value)
                break
        for profile in profiles().values():
            if profile.memory > device.memory and estimate(model, profile, ask).status in _GOOD:
                what, is_ours = f"one {profile.shown}", profile.is_in_build
                yield _candidate(64, what, "a bigger device", ask, profile, is_in_build=is_ours)
                break
    else:
        size = device.memory
        while size < 4 << 40:
            size = round(size * 1.1)
            bigger = device.model_copy(update={"memory": size})
            if estimate(model, bigger, ask).status in _GOOD:
                what = f"a machine with {about(-(-size // 2**30) * 2**30)} of free memory"
                yield _candidate(70, what, "another machine, or fewer programs on this one", ask, bigger)
                break


def _candidate(
    cost: int,
    what: str,
    price: str,
    ask: Ask,
    device: DeviceProfile,
    *,
    model: PlannedModel | None = None,
    is_in_build: bool = True,
    option: str | None = None,
    value: str | None = None,
) -> Candidate:
    change = Change(what=what, price=price, outcome="", is_in_build=is_in_build, option=option, value=value)
    return Candidate(cost=cost, change=change, ask=ask, device=device, model=model)
