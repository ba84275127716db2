"""The method of a quantised checkpoint from `quantization_config`, as the writing libraries put it there.

A method that the engine does not read is described too, with the reason: `engine plan` shows both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .config_json import shown
from .weight_methods import CheckpointMethod, Rule, WeightMethod, pattern_problem

_GPTQ_OF_AUTO_ROUND = {"auto_round:auto_gptq": "gptq", "auto_round:gptqmodel": "gptq_v2", "auto_round": "gptq_v2"}
_MXFP4_BLOCK, _NVFP4_BLOCK = (1, 32), (1, 16)
_FP8_OF_MODELOPT = {"FP8": (0, 0), "FP8_PER_CHANNEL_PER_TOKEN": (1, 0), "FP8_PB_WO": (128, 128), "MXFP8": (1, 32)}
_OTHERS_OF_MODELOPT = ("NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "MXFP4", "W8A16", "W8A8_SQ_PER_CHANNEL")
_TORCHAO_FLOATS = (
    "Float8WeightOnlyConfig",
    "Float8DynamicActivationFloat8WeightConfig",
    "Float8StaticActivationFloat8WeightConfig",
)
_TORCHAO_INTEGERS = (
    "Int8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8StaticActivationInt8WeightConfig",
)
_TORCHAO_GROUPS = {  # and the key of their groups
    "IntxWeightOnlyConfig": "granularity",
    "Int8DynamicActivationIntxWeightConfig": "weight_granularity",
}
_NOT_READ = {
    "hqq": "hqq writes a pickle of its own, and transformers 5 writes none",
    "quanto": "transformers 5 writes no such checkpoints",
}
_NO_METHODS = (None, "", "NONE")  # what modelopt writes for a layer, or a model, that is not quantised


class _NotRead(Exception):
    """The reason."""


def read_quantisation(config: Mapping[str, Any], text: Mapping[str, Any]) -> CheckpointMethod | None:
    """Read the method; None if nothing is quantised. config: the whole file; text: its part of the language model."""
    found = config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")
    if not isinstance(found, Mapping):
        return None
    named = found.get("quant_method") or found.get("quant_algo")
    name = _OTHER_NAMES.get(named, named) if isinstance(named, str) else "unknown"
    bits = _most_bits(name, found)
    if found.get("expert_dtype") is None and config.get("expert_dtype") is not None:  # where DeepSeek-V4 has it
        found = {**found, "expert_dtype": config["expert_dtype"]}
    reader = _READERS.get(name)
    if reader is None:
        reason = f"; {_NOT_READ[name]}" if name in _NOT_READ else ""
        problem = f"the quantisation method {shown(name)} is not supported{reason}"
        return CheckpointMethod(name=name, bits=bits, problem=problem)
    try:
        rules = (*_exceptions(found), *reader(found))
    except _NotRead as reason:
        return CheckpointMethod(name=name, bits=bits, problem=f"`quantization_config`: {reason}")
    return CheckpointMethod(name=name, bits=bits, rules=rules)


def _most_bits(method: str, found: Mapping[str, Any]) -> int:
    if method == "bitsandbytes":
        return 4 if found.get("load_in_4bit") or found.get("_load_in_4bit") else 8
    if method == "mxfp4":
        return 4
    if (bits := _bits(found.get("bits"))) is not None:
        return bits
    groups = found.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and (bits := _bits(weights.get("num_bits"))) is not None:
            return bits
    return 4 if "4" in method else 8


def _bits(value: Any) -> int | None:
    return value if type(value) is int and 1 <= value <= 64 else None


def _exceptions(found: Mapping[str, Any]) -> Iterator[Rule]:
    """Layers that are not quantised, under the keys of all writers."""
    for key in (
        "modules_to_not_convert",
        "ignored_layers",
        "llm_int8_skip_modules",
        "ignore",
        "exclude_modules",
        "exclude",
    ):
        names = found.get(key)
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _NotRead(f"`{key}` is {shown(names)}; it must be a list of names")
        yield from (_target(name, None, key) for name in names)


def _target(name: str, method: WeightMethod | None, key: str) -> Rule:
    """A name of compressed-tensors: of a layer, of a class of layers, or a regular expression."""
    if name.startswith("re:"):
        return _matching(name.removeprefix("re:"), method, key)
    if name in ("Linear", "LinearBase"):
        return Rule(kind="all", method=method)
    if "*" in name:
        return _matching(".*".join(re.escape(part) for part in name.split("*")) + "$", method, key)
    return Rule(kind="name", pattern=name, method=method)


def _matching(pattern: str, method: WeightMethod | None, key: str) -> Rule:
    if problem := pattern_problem(pattern):
        raise _NotRead(f"`{key}` has {shown(pattern)}, which {problem}")
    return Rule(kind="match", pattern=pattern, method=method)


def _one_of(found: Mapping[str, Any], key: str, known: tuple[Any, ...], default: Any = None) -> Any:
    value = found.get(key)
    value = default if value is None else value
    if not any(type(value) is type(each) and value == each for each in known):
        raise _NotRead(f"`{key}` is {shown(value)}; supported: {', '.join(map(str, known))}")
    return value


def _group(found: Mapping[str, Any], default: int | None = None) -> int:
    """Inputs that share a scale; 0 for all."""
    value = found.get("group_size")
    value = default if value is None else value
    if value == -1 and type(value) is int:
        return 0
    if type(value) is not int or not 1 <= value <= 1 << 20:
        raise _NotRead(f"`group_size` is {shown(value)}; it must be -1 or a number of inputs")
    return value


def _gptq(found: Mapping[str, Any]) -> Iterator[Rule]:
    key = "checkpoint_format" if found.get("checkpoint_format") is not None else "format"
    form = _one_of(found, key, ("gptq", "gptq_v2"), "gptq")
    adds_one = form == "gptq"

    def method(values: Mapping[str, Any]) -> WeightMethod:
        bits = _one_of(values, "bits", (2, 3, 4, 8))
        return WeightMethod(
            kind="gptq", bits=bits, block=(1, _group(values, 128)), is_symmetric=False, adds_one=adds_one
        )

    dynamic = found.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise _NotRead(f"`dynamic` is {shown(dynamic)}; it must be an object")
    for pattern, changes in dynamic.items():
        if pattern.startswith("-:"):
            yield _matching(pattern.removeprefix("-:"), None, "dynamic")
        elif isinstance(changes, Mapping):
            yield _matching(pattern.removeprefix("+:"), method({**found, **changes}), "dynamic")
        else:
            raise _NotRead(f"`dynamic` has {shown(changes)} for {shown(pattern)}; it must be an object")
    yield Rule(kind="all", method=method(found))


def _auto_round(found: Mapping[str, Any]) -> Iterator[Rule]:
    """Read auto-round, which packs as others do. `extra_config` has the layers that differ; 16 bits: unquantised."""
    packing = _one_of(found, "packing_format", (*_GPTQ_OF_AUTO_ROUND, "auto_round:auto_awq"))
    if packing in _GPTQ_OF_AUTO_ROUND:
        reader, own = _gptq, {**found, "checkpoint_format": _GPTQ_OF_AUTO_ROUND[packing]}
    else:
        reader, own = _awq, dict(found)
    _one_of(found, "data_type", ("int",), "int")
    extra = found.get("extra_config") or {}
    if not isinstance(extra, Mapping) or not all(isinstance(changes, Mapping) for changes in extra.values()):
        raise _NotRead("`extra_config` must be an object of objects")
    for name, changes in extra.items():
        bits = changes.get("bits")
        is_plain = type(bits) is int and bits >= 16
        method = None if is_plain else next(rule.method for rule in reader({**own, **changes}))
        yield _matching(name, method, "extra_config") if "*" in name else _target(name, method, "extra_config")
    yield from reader(own)


def _awq(found: Mapping[str, Any]) -> Iterator[Rule]:
    key = "bits" if found.get("bits") is not None else "w_bit"
    bits = _one_of(found, key, (4,))
    version = found.get("version")
    if version is not None and str(version).lower() != "gemm":
        raise _NotRead(f"`version` is {shown(version)}; supported: gemm")
    key = "group_size" if found.get("group_size") is not None else "q_group_size"
    group = _group({"group_size": found.get(key)}, 128)
    yield Rule(kind="all", method=WeightMethod(kind="awq", bits=bits, block=(1, group), is_symmetric=False))


def _compressed(found: Mapping[str, Any]) -> Iterator[Rule]:
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise _NotRead(f"`config_groups` is {shown(groups)}; it must name the quantised layers")
    for key in ("sparsity_config", "transform_config"):
        if (value := found.get(key)) and not (isinstance(value, Mapping) and value.get("format") == "dense"):
            raise _NotRead(f"`{key}` is not supported")
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("targets"), list):
            raise _NotRead(f"group {shown(name)} of `config_groups` must be an object with `targets`")
        weights = group.get("weights")
        if weights is None:
            continue
        if not isinstance(weights, Mapping):
            raise _NotRead(f"`weights` of group {shown(name)} is {shown(weights)}; it must be an object")
        own = group.get("format")
        form = own if own is not None else found.get("format")
        method = _compressed_method(weights, form, group.get("input_activations"))
        for target in group["targets"]:
            if not isinstance(target, str):
                raise _NotRead(f"`targets` of group {shown(name)} has {shown(target)}; it must be a name")
            yield _target(target, method, "targets")


def _compressed_method(weights: Mapping[str, Any], form: Any, inputs: Any) -> WeightMethod:
    kind, bits = _one_of(weights, "type", ("int", "float"), "int"), _bits(weights.get("num_bits"))
    if form == "mxfp4-pack-quantized":
        return WeightMethod(kind="mxfp4", bits=4, block=_MXFP4_BLOCK)
    if form == "nvfp4-pack-quantized":
        return WeightMethod(kind="nvfp4", bits=4, block=_NVFP4_BLOCK)
    block, symmetric = _strategy(weights), _one_of(weights, "symmetric", (True, False), True)
    match kind, form, bits:
        case "float", "float-quantized" | "naive-quantized" | "mxfp8-quantized", 8:
            return WeightMethod(kind="fp8", bits=8, block=block)
        case "int", "pack-quantized", 2 | 3 | 4 | 8:
            return WeightMethod(kind="packed", bits=bits, block=block, is_symmetric=symmetric)
        case "int", "int-quantized" | "naive-quantized", int() if bits <= 8:
            rounds = block == (1, 0) and symmetric and _are_rounded(inputs)
            return WeightMethod(kind="integers", bits=8, block=block, is_symmetric=symmetric, rounds_rows=rounds)
    raise _NotRead(f"weights of type {kind} in {bits} bits in the format {shown(form)} are not supported")


def _are_rounded(inputs: Any) -> bool:
    """Whether kernels round inputs as the checkpoint says; others stay in the model's dtype."""
    if not isinstance(inputs, Mapping):
        return False
    found = {"type": "int", "symmetric": True, **inputs}
    wanted = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
    return all(found.get(key) == value for key, value in wanted.items())


def _strategy(weights: Mapping[str, Any]) -> tuple[int, int]:
    group = weights.get("group_size")
    default = "tensor" if group is None else "channel" if group == -1 else "group"
    match _one_of(weights, "strategy", ("tensor", "channel", "group", "block"), default):
        case "tensor":
            return 0, 0
        case "channel":
            return 1, 0
        case "group":
            return 1, _group(weights)
    return _block(weights.get("block_structure"), "block_structure")


def _block(value: Any, key: str) -> tuple[int, int]:
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(type(size) is int and 1 <= size <= 1 << 16 for size in value)
    ):
        return value[0], value[1]
    raise _NotRead(f"`{key}` is {shown(value)}; it must be two numbers")


def _fp8(found: Mapping[str, Any]) -> Iterator[Rule]:
    _one_of(found, "fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    _one_of(found, "activation_scheme", ("static", "dynamic"), "dynamic")
    block = found.get("weight_block_size")
    if _one_of(found, "expert_dtype", ("fp8", "fp4"), "fp8") == "fp4":  # of DeepSeek-V4; those of all tokens are in fp8
        experts = WeightMethod(kind="mxfp4", bits=4, block=_MXFP4_BLOCK, codes="weight")
        yield Rule(kind="match", pattern=r".*\.experts\.", method=experts)
    yield Rule(
        kind="all",
        method=WeightMethod(kind="fp8", bits=8, block=None if block is None else _block(block, "weight_block_size")),
    )


def _mxfp4(found: Mapping[str, Any]) -> Iterator[Rule]:
    """The rule of gpt-oss: only its experts are quantised, whatever the list of exceptions says."""
    yield Rule(kind="match", pattern=r".*\.experts\.", method=WeightMethod(kind="mxfp4", bits=4, block=_MXFP4_BLOCK))


def _modelopt(found: Mapping[str, Any]) -> Iterator[Rule]:
    """config.json has the keys at the top, `hf_quant_config.json` in a separate object."""
    if found.get("quant_algo") == "MIXED_PRECISION":
        layers = found.get("quantized_layers")
        if not isinstance(layers, Mapping) or not all(isinstance(values, Mapping) for values in layers.values()):
            raise _NotRead("`quantized_layers` must be an object of objects where `quant_algo` is MIXED_PRECISION")
        for name, values in layers.items():
            yield _target(name, _modelopt_method(values), "quantized_layers")
    else:
        yield Rule(kind="all", method=_modelopt_method(found))


def _modelopt_method(values: Mapping[str, Any]) -> WeightMethod | None:
    """Read the names of one program of NVIDIA's. With pre_quant_scale a layer's inputs have scales too."""
    named = values.get("quant_algo")
    if named in _NO_METHODS:
        return None
    algorithm = named.upper() if isinstance(named, str) else named
    match _one_of({"quant_algo": algorithm}, "quant_algo", (*_FP8_OF_MODELOPT, *_OTHERS_OF_MODELOPT)):
        case name if name in _FP8_OF_MODELOPT:
            return WeightMethod(kind="fp8", bits=8, block=_FP8_OF_MODELOPT[name])
        case "MXFP4":
            return WeightMethod(kind="mxfp4", bits=4, block=_MXFP4_BLOCK, codes="weight")
        case "W8A16" | "W8A8_SQ_PER_CHANNEL":
            return WeightMethod(kind="integers", bits=8, block=(1, 0))
    group = _group(values, 32 if algorithm == "W4A8_NVFP4_FP8" else 16)
    return WeightMethod(kind="nvfp4", bits=4, block=(1, group), codes="weight")


def _torchao(found: Mapping[str, Any]) -> Iterator[Rule]:
    """Read the class of the library's configuration; each stores codes that are not packed for one kind of hardware."""
    default = _object(_object(found, "quant_type"), "default")
    values = _object(default, "_data")
    kind = _one_of(default, "_type", (*_TORCHAO_FLOATS, *_TORCHAO_INTEGERS, *_TORCHAO_GROUPS))
    if kind in _TORCHAO_FLOATS:
        method = WeightMethod(kind="fp8", bits=8)
    elif kind in _TORCHAO_INTEGERS:
        method = WeightMethod(kind="integers", bits=8, block=(1, 0), is_symmetric=False)
    else:
        _one_of(_object(values, "intx_packing_format"), "_data", ("UNPACKED_TO_INT8",))
        granularity = _object(_object(values, _TORCHAO_GROUPS[kind]), "_data")
        group = _group(granularity, -1)
        method = WeightMethod(kind="integers", bits=8, block=(1, group), is_symmetric=False)
    yield Rule(kind="all", method=method)


def _quark(found: Mapping[str, Any]) -> Iterator[Rule]:
    export = found.get("export") or {}
    if isinstance(export, Mapping):
        _one_of(export, "weight_format", ("real_quantized",), "real_quantized")
        _one_of(export, "pack_method", ("reorder",), "reorder")
    layers = found.get("layer_quant_config") or {}
    if not isinstance(layers, Mapping) or not all(isinstance(values, Mapping) for values in layers.values()):
        raise _NotRead("`layer_quant_config` must be an object of objects")
    if found.get("layer_type_quant_config"):
        raise _NotRead("`layer_type_quant_config` is not supported")
    for name, values in layers.items():
        yield _target(name, _quark_method(values), "layer_quant_config")
    yield Rule(kind="all", method=_quark_method(_object(found, "global_quant_config")))


def _quark_method(values: Mapping[str, Any]) -> WeightMethod | None:
    if values.get("weight") is None:
        return None
    weight = _object(values, "weight")
    scheme = _one_of(weight, "qscheme", ("per_tensor", "per_channel", "per_group"))
    block = (0, 0) if scheme == "per_tensor" else (1, 0)
    match _one_of(weight, "dtype", ("fp8_e4m3", "int8", "uint4", "fp4")), scheme:
        case "fp8_e4m3", "per_tensor" | "per_channel":
            return WeightMethod(kind="fp8", bits=8, block=block)
        case "int8", "per_tensor" | "per_channel":
            symmetric = _one_of(weight, "symmetric", (True, False), True)
            return WeightMethod(kind="integers", bits=8, block=block, is_symmetric=symmetric)
        case "uint4", "per_group":
            return WeightMethod(kind="awq", bits=4, block=(1, _group(weight)), is_symmetric=False)
        case "fp4", "per_group":
            _one_of(weight, "scale_format", ("e8m0",))
            _one_of(weight, "group_size", (32,))
            return WeightMethod(kind="mxfp4", bits=4, block=_MXFP4_BLOCK, codes="weight")
        case dtype, _:
            raise _NotRead(f"weights of dtype {dtype} with `qscheme` {scheme} are not supported")


def _object(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = found.get(key)
    if not isinstance(value, Mapping):
        raise _NotRead(f"`{key}` is {shown(value)}; it must be an object")
    return value


def _bitsandbytes(found: Mapping[str, Any]) -> Iterator[Rule]:
    if found.get("load_in_4bit") or found.get("_load_in_4bit"):
        _one_of(found, "bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
        storage = found.get("bnb_4bit_quant_storage")
        if storage not in (None, "uint8"):
            raise _NotRead(f"`bnb_4bit_quant_storage` is {shown(storage)}; supported: uint8")
        yield Rule(kind="all", method=WeightMethod(kind="bnb_4bit", bits=4))
    else:
        yield Rule(kind="all", method=WeightMethod(kind="bnb_int8", bits=8, block=(1, 0)))


_READERS = {
    "auto-round": _auto_round,
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "torchao": _torchao,
    "quark": _quark,
}
_OTHER_NAMES = {"modelopt_fp4": "modelopt", "modelopt_mxfp8": "modelopt"}
