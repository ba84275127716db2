"""Section `load`: how the checkpoint's files are found and read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .section import Section, about
from .types import Flag, Texts

_OTHER_LIBRARY = "this build reads files from a folder by itself; copy the checkpoint here and take safetensors"


class LoadConfig(Section):
    """How weights get from disk into memory."""

    load_format: Literal["auto", "safetensors", "pt", "npcache", "sharded_state", "dummy"] = Field(
        "auto",
        description=(
            "Layout of the weight files. `auto` takes safetensors and, where there are none, torch's files. `pt` is "
            "torch's .bin and .pt, read as data, so that no code in them can run; `npcache` copies those once into "
            ".npy files, which other programs can map; `sharded_state` is one process's files of a sharded save. "
            "`dummy` invents random weights from config.json alone, for measuring speed and memory without a "
            "checkpoint; its answers mean nothing."
        ),
        examples=["dummy"],
        json_schema_extra=about(
            reload="model",
            refused={
                "tensorizer": _OTHER_LIBRARY,
                "runai_streamer": _OTHER_LIBRARY,
                "bitsandbytes": "take the unquantised checkpoint; `model.quantization: int8` or int4 makes it smaller",
                "gguf": "GGUF files are not read; take the model's safetensors",
                "mistral": "consolidated files are not read; take the repository's safetensors shards",
            },
        ),
    )
    download_dir: str | None = Field(
        None,
        min_length=1,
        description=(
            "Folder for downloaded models. Unset, the hub's own cache (HF_HOME) is used and shared with other "
            "programs; a folder of its own is easier to move and to delete."
        ),
        examples=["/var/cache/stoker"],
        json_schema_extra=about(reload="model", kind="path"),
    )
    safetensors_load_strategy: Literal["lazy", "eager"] = Field(
        "lazy",
        description=(
            "How safetensors files are read. `lazy` reads each tensor when its place in the model is ready, which "
            "suits local disks; `eager` reads a whole file in one go, which suits network file systems and needs "
            "memory for that file beside the model."
        ),
        examples=["eager"],
        json_schema_extra=about(reload="model"),
    )
    model_loader_extra_config: dict[str, Any] = Field(
        {},
        description=(
            "Settings of the loader that `load_format` selects, checked by it. sharded_state: `pattern`, the names of "
            "the files; npcache: `folder`, where the .npy files go if not beside the model; dummy: `deviation`, the "
            "spread of the random weights."
        ),
        examples=[{"pattern": "model-rank-{rank}-part-{part}.safetensors"}],
        json_schema_extra=about(reload="model"),
    )
    ignore_patterns: Texts = Field(
        ("original/*",),
        description=(
            "Files of the model that are neither downloaded nor read, as glob patterns. The default passes over the "
            "second copy of the weights that some repositories keep; your own list replaces it, and each further flag "
            "adds a pattern."
        ),
        examples=[["original/*", "*.bin"]],
        json_schema_extra=about(reload="model", repeats=True),
    )
    use_tqdm_on_load: Flag = Field(
        True,
        description=(
            "Show how much of the weights is read while the model loads, behind the phase `weights`. Only where "
            "standard error is a terminal; logs get no progress."
        ),
        examples=[False],
        json_schema_extra=about(reload="process"),
    )
    pt_load_map_location: Literal["cpu"] | dict[str, Any] = Field(
        "cpu",
        description=(
            "Where the tensors of torch's files go, by the device they were saved from. `cpu` takes all of them; a "
            "mapping takes those of the devices it names (and of cpu) and refuses the rest, so that a checkpoint from "
            "elsewhere is noticed. Safetensors name no devices."
        ),
        examples=["cpu", {"cuda:0": "cpu"}],
        json_schema_extra=about(reload="model"),
    )
