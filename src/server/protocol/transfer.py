"""`kv_transfer_params`: prefill and decode on different servers, in the words of vLLM and llm-d.

1. A proxy sends a request with `do_remote_decode: true` and `max_tokens: 1` to the prefill server. The answer has
   `kv_transfer_params` once other engines can read the prompt's KV blocks.
2. It sends the request with these to the decode server, which reads the blocks and computes the rest.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator

from ...engine.api import StoredBlocks
from .errors import FieldError
from .wire import Integer, Wire

MAX_BLOCKS = 1 << 20
MAX_HASH_CHARS = 64


class KVTransferParams(Wire):
    """Fields that this server does not read are ignored, because other engines have more of them; fields that would
    change the prompt are refused.
    """

    do_remote_decode: bool | None = Field(None, description="another server is to read the blocks of this prompt")
    do_remote_prefill: bool | None = Field(None, description="another server has computed blocks of this prompt")
    remote_engine_id: str | None = Field(None, max_length=512, description="not read")
    remote_block_ids: list[Annotated[str, Field(max_length=MAX_HASH_CHARS)]] | None = Field(
        None, max_length=MAX_BLOCKS, fail_fast=True, description="block hashes, from the prefill server's answer"
    )
    remote_host: str | None = Field(None, max_length=255, description="where the blocks are")
    remote_port: Integer | None = Field(None, ge=0, le=65535, description="where the blocks are")

    prompt_token_ids: None = Field(None, description="refused: the prompt is that of the request")

    @field_validator("prompt_token_ids", mode="plain", json_schema_input_type=None)
    @classmethod
    def _own_prompt(cls, value: Any) -> None:
        if value:
            raise FieldError("is not supported here: the prompt is that of the request", code="unsupported_parameter")

    @field_validator("remote_block_ids")
    @classmethod
    def _hashes(cls, value: list[str] | None) -> list[str] | None:
        for index, name in enumerate(value or ()):
            if not _is_hex(name):
                raise FieldError("is no block of this engine: they are named by hashes", place=f"[{index}]")
        return value

    @property
    def source(self) -> StoredBlocks | None:
        """The blocks that can be read; None if the request names none."""
        if not self.do_remote_prefill or not self.remote_block_ids:
            return None
        hashes = tuple(map(bytes.fromhex, self.remote_block_ids))
        return StoredBlocks(hashes, self.remote_host or "", self.remote_port or 0)


def _is_hex(text: str) -> bool:
    try:
        return bool(text) and bytes.fromhex(text).hex() == text
    except ValueError:
        return False


def params_of(stored: StoredBlocks | None) -> dict[str, Any]:
    """Parameters for the decode server. stored: None if no block can be read."""
    stored = stored or StoredBlocks(())
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": f"{stored.host}:{stored.port}" if stored.host else None,
        "remote_block_ids": [block_hash.hex() for block_hash in stored.hashes],
        "remote_host": stored.host or None,
        "remote_port": stored.port or None,
        "tp_size": 1,
    }
