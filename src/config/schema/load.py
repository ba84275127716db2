"""Section `load`: how the checkpoint's files are found and read."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .refused import with_refused
from .section import Section, about
from .types import Flag, Text, Texts, means

_STREAMER = (
    "this build reads files from a folder; copy the checkpoint to this machine and write safetensors, which is faster "
    "from a local disk (docs/performance.md)"
)


@with_refused("load")
class LoadConfig(Section):
    """How weights are read from disk into memory."""

    load_format: Annotated[
        Literal["auto", "hf", "safetensors", "pt", "npcache", "sharded_state", "mistral", "gguf", "dummy"],
        means(hf="auto"),
    ] = Field(
        "auto",
        description=(
            "Format of the weight files. `auto` is safetensors or, if there are none, the files of torch; `hf` is "
            "another name of it. `pt` is "
            "torch's .bin and .pt, read as data, so that no code in them can run. `npcache` copies those once into "
            ".npy files, which other programs can map. `sharded_state` is what `engine save-sharded` writes, in both "
            "forms; `auto` recognises weights that were saved as they were loaded. "
            "`mistral` is consolidated safetensors, as `model.config_format` describes them. `gguf` is a GGUF file, "
            "whose header describes the model; `auto` takes the one of a directory without other weights. "
            "`dummy` creates random weights from config.json alone, in the codes of its `quantization_config` if it "
            "has one, to measure speed and memory without a checkpoint; its answers are meaningless."
        ),
        examples=["dummy"],
        json_schema_extra=about(
            refused={
                "tensorizer": (
                    "this build does not read tensorizer's files; write safetensors (docs/performance.md has the times "
                    "of both from a local disk)"
                ),
                "runai_streamer": _STREAMER,
                "runai_streamer_sharded": _STREAMER,
                "fastsafetensors": (
                    "its direct reads are for GPUs, and through host memory it is slower; write safetensors, which "
                    "reads the same files (docs/performance.md)"
                ),
                "bitsandbytes": "write auto or safetensors, which read checkpoints that bitsandbytes has quantised",
            },
        ),
    )
    download_dir: Text | None = Field(
        None,
        description=(
            "Folder for downloaded models. Unset, the hub's own cache (HF_HOME) is used and shared with other "
            "programs; a separate folder is easier to move and to delete."
        ),
        examples=["/var/cache/stoker"],
        json_schema_extra=about(kind="path"),
    )
    safetensors_load_strategy: Literal["lazy", "eager"] = Field(
        "lazy",
        description=(
            "How safetensors files are read. `lazy` reads each tensor when the model needs it, which suits local "
            "disks. `eager` reads a whole file at a time, which suits network file systems and needs memory for that "
            "file in addition to the model."
        ),
        examples=["eager"],
    )
    model_loader_extra_config: dict[str, Any] = Field(
        {},
        description=(
            "Settings of the loader that `load_format` selects; the loader checks them. sharded_state: `pattern`, the "
            "pattern of file names. npcache: `folder`, where the .npy files are written if not next to the model. "
            "dummy: `deviation`, the standard deviation of the random weights."
        ),
        examples=[{"pattern": "model-rank-{rank}-part-{part}.safetensors"}],
    )
    ignore_patterns: Texts = Field(
        ("original/*",),
        description=(
            "Files of the model that are neither downloaded nor read, as glob patterns. The default skips the second "
            "copy of the weights that some repositories contain. A list in a file replaces the default; each further "
            "flag adds a pattern."
        ),
        examples=[["original/*", "*.bin"]],
        json_schema_extra=about(repeats=True),
    )
    use_tqdm_on_load: Flag = Field(
        True,
        description=(
            "Show the progress of reading the weights in the start-up phase `weights`. Only where standard error is a "
            "terminal; logs contain no progress."
        ),
        json_schema_extra=about(reload="process"),
    )
    pt_load_map_location: Literal["cpu"] | dict[str, Any] = Field(
        "cpu",
        description=(
            "Where the tensors of torch files are loaded, by the device they were saved from. `cpu` accepts tensors of "
            "all devices. A mapping accepts those of the devices it names (and of cpu) and refuses the others, so that "
            "an unexpected checkpoint is noticed. Safetensors files store no devices."
        ),
        examples=["cpu", {"cuda:0": "cpu"}],
        json_schema_extra=about(json_schema={"type": "object", "additionalProperties": {"const": "cpu"}}),
    )
