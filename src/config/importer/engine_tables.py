"""Options of the other engines and their counterparts here, and what each does by default that is different."""

from __future__ import annotations

from collections.abc import Mapping

from . import infinity, llama_cpp, ollama, sglang, tei, tgi, vllm
from .counterparts import Counterpart
from .program_names import Engine

TABLES: dict[Engine, Mapping[str, Counterpart]] = {
    "vllm": {},
    "sglang": sglang.TABLE,
    "llama.cpp": llama_cpp.TABLE,
    "tgi": tgi.TABLE,
    "tei": tei.TABLE,
    "infinity": infinity.TABLE,
    "ollama": ollama.TABLE,
    "stoker": {},
}
NOTES: dict[str, Mapping[str, str]] = {
    "vllm": vllm.NOTES,
    "sglang": sglang.NOTES,
    "llama.cpp": llama_cpp.NOTES,
    "tgi": tgi.NOTES,
    "tei": tei.NOTES,
    "infinity": infinity.NOTES,
    "ollama": ollama.NOTES,
    "stoker": {},
}
