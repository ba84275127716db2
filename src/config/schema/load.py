"""Section `load`: how the checkpoint's files are found and read."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .section import Section, about


class LoadConfig(Section):
    """How weights get from disk into memory."""

    load_format: Literal["auto", "safetensors", "dummy"] = Field(
        "auto",
        description=(
            "Layout of the weight files. `dummy` invents random weights from config.json alone, for measuring speed "
            "and memory without a checkpoint; its answers mean nothing. `auto` is safetensors in this build."
        ),
        examples=["dummy"],
        json_schema_extra=about(
            reload="model",
            refused={
                "pt": "pickle files can run code; convert the checkpoint to safetensors",
                "npcache": "pickle files can run code; convert the checkpoint to safetensors",
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
