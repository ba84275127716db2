"""Writes a model as one GGUF file, tensor by tensor; the file is there completely or not at all.

Which matrix gets which type follows llama.cpp's own mixtures, so a file takes as much memory as llama.cpp's files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

from ..config import ModelFilesError
from ..config.checkpoint.chat_templates import templates_in
from ..config.checkpoint.layout import read_tensors
from ..config.checkpoint.match import tensors_of
from ..config.checkpoint.stored import BLOCKS, bytes_of
from ..config.resolve.described_model import ModelFiles
from ..engine.runner.weights import Checkpoint
from ..model.config_json import ModelConfigError
from ..model.gguf import Architecture
from ..model.gguf_header import architecture_of, header_of
from ..vocabulary.files import TokenizerError
from ..vocabulary.gguf_keys import tokenizer_keys
from .gguf_blocks import encode
from .target import check_generates, written_whole

FILE_TYPES = {  # what --to names -> the type of most matrices, and llama.cpp's number of the mixture
    "f16": ("F16", LlamaFileType.MOSTLY_F16),
    "bf16": ("BF16", LlamaFileType.MOSTLY_BF16),
    "q8_0": ("Q8_0", LlamaFileType.MOSTLY_Q8_0),
    "q4_0": ("Q4_0", LlamaFileType.MOSTLY_Q4_0),
    "q4_k_m": ("Q4_K", LlamaFileType.MOSTLY_Q4_K_M),
    "q5_k_m": ("Q5_K", LlamaFileType.MOSTLY_Q5_K_M),
    "q6_k": ("Q6_K", LlamaFileType.MOSTLY_Q6_K),
}
_INSTEAD = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # of rows that are no multiple of a K type's block
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_SAMPLING = {  # the engine's name -> key
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


@dataclass(frozen=True, slots=True)
class GgufConversion:
    """What will be written: decided from headers, before anything is. types: GGUF's name of a tensor -> its type."""

    files: ModelFiles
    file_type: str
    checkpoint: Checkpoint
    architecture: Architecture
    values: Mapping[str, Any]
    factors: Mapping[str, list[float]]
    sources: Mapping[str, str]  # GGUF's name of a tensor -> that of the model
    types: Mapping[str, str]

    @property
    def bytes_before(self) -> int:
        return sum(tensor.num_bytes for tensor in self.checkpoint.tensors.values())

    @property
    def bytes_after(self) -> int:
        """Bytes of the tensors that will be written."""
        tensors = self.checkpoint.tensors
        return sum(bytes_of(dtype, tensors[self.sources[name]].num_elements) for name, dtype in self.types.items())

    def count(self) -> dict[str, int]:
        """Type -> number of matrices."""
        found: dict[str, int] = {}
        for name, dtype in self.types.items():
            if len(self.checkpoint.tensors[self.sources[name]].shape) > 1:
                found[dtype] = found.get(dtype, 0) + 1
        return found


def plan_gguf(files: ModelFiles, file_type: str, pre_tokenizer: str | None = None) -> GgufConversion:
    """Raises ModelFilesError for a model that cannot be written, TokenizerError for such a tokenizer.

    pre_tokenizer: see tokenizer_keys.
    """
    folder, spec = Path(files.model_path), files.spec
    if files.weight_format == "gguf" or spec.quantization is not None:
        was = "a GGUF file" if spec.quantization is None else f"already quantised ({spec.quantization.name})"
        raise ModelFilesError(f"{folder}: {was}; start from the original checkpoint", code="M304")
    check_generates(files)
    try:
        architecture = architecture_of(spec)[1]
        values, factors = header_of(spec)
    except ModelConfigError as error:
        raise ModelFilesError(f"{folder}: {error}", code=error.code) from None
    tensors = tensors_of(folder, read_tensors(folder, files.weight_files), spec)
    sources = {architecture.written_name(each): each for each in tensors}
    types = {
        own: _type(own, tensors[source].shape, FILE_TYPES[file_type][0], file_type, spec.num_layers, spec.is_tied)
        for own, source in sources.items()
    }
    values = {
        **values,
        "general.type": "model",
        "general.name": folder.name,
        "general.file_type": int(FILE_TYPES[file_type][1]),
        "general.quantization_version": 2,
        **_sampling(files.sampling_defaults),
        **_vocabulary(files, pre_tokenizer),
    }
    return GgufConversion(files, file_type, Checkpoint(folder, tensors), architecture, values, factors, sources, types)


def convert_gguf(conversion: GgufConversion, target: Path, progress: Callable[[int], None]) -> None:
    """Writes the file `target`, which does not exist.

    progress: called with the number of bytes of the source that have been converted since its last call.
    Raises ModelFilesError for weights that cannot be read, OSError if there is no space.
    """
    with written_whole(target, conversion.bytes_after) as made:
        writer = GGUFWriter(made, conversion.values["general.architecture"])
        try:
            _write(writer, conversion, progress)
        finally:
            writer.close()
        with made.open("rb") as stream:
            os.fsync(stream.fileno())


def _write(writer: GGUFWriter, conversion: GgufConversion, progress: Callable[[int], None]) -> None:
    tensors = conversion.checkpoint.tensors
    for key, value in conversion.values.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, numbers in conversion.factors.items():
        writer.add_tensor_info(name, (len(numbers),), np.dtype(np.float32), 4 * len(numbers))
    for name, dtype in conversion.types.items():
        stored, kind = tensors[conversion.sources[name]], GGMLQuantizationType[dtype]
        size = bytes_of(dtype, stored.num_elements)
        writer.add_tensor_info(name, stored.shape, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for numbers in conversion.factors.values():
        writer.write_tensor_data(np.array(numbers, np.float32))
    for name, dtype in conversion.types.items():
        source = conversion.sources[name]
        values = torch.empty(tensors[source].shape, dtype=torch.float32)
        conversion.checkpoint.read(source, values)
        values = _arranged(conversion, name, values)
        rows = encode(values.view(1, -1) if values.ndim == 1 else values, dtype)
        writer.write_tensor_data(np.ascontiguousarray(rows))
        progress(tensors[source].num_bytes)


def _arranged(conversion: GgufConversion, name: str, values: torch.Tensor) -> torch.Tensor:
    """Arrange values as llama.cpp does: rows of queries and keys by rotated pairs, and whole weights of norms."""
    attention = conversion.files.spec.attention
    assert attention is not None
    part = name.split(".")[-2]
    if conversion.architecture.has_pairs and part in ("attn_q", "attn_k"):
        heads = attention.num_heads if part == "attn_q" else attention.num_kv_heads
        return values.view(heads, 2, -1, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
    if conversion.architecture.has_whole_norms and part.endswith("norm"):
        return values + 1
    return values


def _type(name: str, shape: tuple[int, ...], wanted: str, file_type: str, num_layers: int, is_tied: bool) -> str:
    """Type of a tensor; the mixtures come from llama.cpp's llama_tensor_get_type."""
    if len(shape) < 2:
        return "F32"
    is_output = name == (_EMBEDDING if is_tied else _OUTPUT)
    has_more_bits = is_output or (file_type in ("q4_k_m", "q5_k_m") and _has_more_bits(name, num_layers))
    if has_more_bits and wanted in BLOCKS and wanted != "Q8_0":
        wanted = "Q6_K"
    for _ in range(2):
        if wanted in BLOCKS and shape[-1] % BLOCKS[wanted][0]:
            wanted = _INSTEAD.get(wanted, "F16")
    return wanted


def _has_more_bits(name: str, num_layers: int) -> bool:
    """Values and the output of the MLP, in the first and the last eighth of the layers, and in every third between."""
    if not name.endswith((".attn_v.weight", ".ffn_down.weight")):
        return False
    layer, eighth = int(name.split(".")[1]), num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _sampling(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling defaults of the header: top_k is a whole number, the others are not."""
    found = {key: defaults[name] for name, key in _SAMPLING.items() if defaults.get(name) is not None}
    return {f"general.sampling.{key}": int(value) if key == "top_k" else float(value) for key, value in found.items()}


def _vocabulary(files: ModelFiles, pre_tokenizer: str | None) -> dict[str, Any]:
    if files.tokenizer_path is None:
        raise TokenizerError(f"{files.model_path}: has no tokenizer, which a GGUF file holds too")
    folder = Path(files.tokenizer_path)
    keys = tokenizer_keys(folder, files.spec.vocab_size, files.eos_token_ids, pre_tokenizer)
    templates = templates_in(folder)
    for name, template in templates.items():
        key = "tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}"
        keys[key] = template.text
    if others := [name for name in templates if name != "default"]:
        keys["tokenizer.chat_templates"] = others
    return keys


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int() if value >= 0:
            writer.add_uint32(key, value)
        case int():
            writer.add_int32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, list(value))
