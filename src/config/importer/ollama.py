"""Instructions of an Ollama Modelfile and what they are here.

An instruction becomes one word: `PARAMETER num_ctx 4096`. Its name is the part before its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..schema.refused.reasons import ADAPTER_BY_FOLDER, DRAFT_MODEL_OF_OLLAMA
from .counterparts import Counterpart, Read, by_name, choice, gone, needless, read_value, to
from .words import literal

_REQUESTS = "requests say it themselves; `model.override_generation_config` holds what a request leaves out"
_CLIENT = "clients send the messages of a chat, the system message too"
_LAYERS = "the whole model is on one device; `device.device` says which"
_PAGES = "weights are read once into memory of this process"
_LIBRARY = (
    "a name in Ollama's library: set `model.model` to the repository of the same model on the Hugging Face hub, with "
    "safetensors"
)
_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(?=\S)")
_HUB = re.compile(r"(?:https?://)?(?:hf\.co|huggingface\.co)/(.+)")
_PARAMETER = "PARAMETER "

TABLE = by_name(
    Counterpart(("FROM",), "model.model"),
    gone("the chat template of the model is used; Ollama's templates are in another language than Jinja", "TEMPLATE"),
    gone(_CLIENT, "SYSTEM", "MESSAGE"),
    gone(ADAPTER_BY_FOLDER, "ADAPTER"),
    needless("a licence is not part of a deployment", "LICENSE"),
    needless("it is about releases of Ollama", "REQUIRES"),
    to("model.max_model_len", "PARAMETER num_ctx"),
    choice("model.seed", "PARAMETER seed", values={"-1": "", "0": ""}),
    *(
        to(f"model.override_generation_config.{key}", f"{_PARAMETER}{name}")
        for key, name in {
            "temperature": "temperature",
            "top_k": "top_k",
            "top_p": "top_p",
            "min_p": "min_p",
            "repetition_penalty": "repeat_penalty",
        }.items()
    ),
    choice(
        "model.override_generation_config.max_new_tokens", "PARAMETER num_predict", values={"-1": "", "-2": ""}
    ),  # no limit; up to the context: both are what happens without it
    to("device.num_threads", "PARAMETER num_thread"),
    to("scheduler.max_num_batched_tokens", "PARAMETER num_batch", says="all tokens of a step"),
    gone("requests send `stop`; the model's own end of a turn always ends an answer", "PARAMETER stop"),
    gone(
        _REQUESTS,
        *(f"{_PARAMETER}{name}" for name in ("repeat_last_n", "presence_penalty", "frequency_penalty", "typical_p")),
        *(f"{_PARAMETER}{name}" for name in ("mirostat", "mirostat_eta", "mirostat_tau", "tfs_z", "penalize_newline")),
    ),
    gone(_LAYERS, *(f"{_PARAMETER}{name}" for name in ("num_gpu", "main_gpu", "low_vram", "num_gqa"))),
    gone("`device.numa_bind` keeps a process on a node", "PARAMETER numa"),
    gone("a context that is full ends the answer; nothing is dropped from it", "PARAMETER num_keep"),
    gone(DRAFT_MODEL_OF_OLLAMA, "PARAMETER draft_num_predict"),
    needless(_PAGES, "PARAMETER use_mmap", "PARAMETER use_mlock"),
    needless("`cache.kv_cache_dtype` is the format of the KV cache", "PARAMETER f16_kv"),
)

NOTES = {
    "server.port": "Ollama listens on 11434; here it is 8000. Its own API under /api does not exist here: clients use "
    "the OpenAI API under /v1, which Ollama has too.",
}


def instructions_of(text: str) -> list[str]:
    """The instructions of a Modelfile, comments left out. A text between triple quotes may have several lines."""
    found: list[str] = []
    at = 0
    while at < len(text):
        end = text.find("\n", at) % (len(text) + 1)
        line = text[at:end]
        quote = line.find('"""')
        if quote >= 0 and not line.lstrip().startswith("#"):
            closing = text.find('"""', at + quote + 3)
            closing = len(text) if closing < 0 else closing
            name, content = text[at : at + quote], text[at + quote + 3 : closing]
            after = text.find("\n", closing)
            found.append(f"{name.strip()} {content}")
            at = len(text) if after < 0 else after + 1
            continue
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(line.strip())
        at = end + 1
    return [literal(instruction) for instruction in found]


def reads_of(instructions: Sequence[str]) -> Iterator[Read]:
    """Every instruction with its counterpart."""
    for instruction in instructions:
        match = _INSTRUCTION.match(instruction)
        name, value = (match[1].upper(), instruction[match.end() :]) if match else (instruction, "")
        if name == "PARAMETER":
            key, _, value = value.partition(" ")
            name = f"{_PARAMETER}{key.lower()}"
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        found = _model(value) if name == "FROM" else TABLE.get(name)
        if found is None:
            yield Read((f"{name} {value}".strip(),))
            continue
        first = value.splitlines()[0][:60] if value else ""
        shown = f"{name} {first}{'...' if first != value else ''}".strip()
        yield read_value(found, name, value, (shown,))


def _model(value: str) -> Counterpart:
    """FROM names a model of Ollama's library, a repository of the hub, a file or a folder."""
    if _HUB.fullmatch(value):
        return replace(TABLE["FROM"], values={}, after=_HUB)
    if value.startswith((".", "/", "~")) or value.endswith((".gguf", ".safetensors")):
        return TABLE["FROM"]
    return gone(_LIBRARY, "FROM")
