"""Attacks with files: a model's folder and manifests that are broken, endless, or no files at all."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from .catalogue import Catalogue, Scene
from .server import manifest
from .starts import MODEL_FILES, Limits, change_json, copy_model, model_start, start

CATALOGUE = Catalogue("files")
GIB = 1 << 30
Mutate = Callable[[Path, Random], None]


def _fifo(path: Path, _: Random) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _link(target: str, path: Path, _: Random) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _folder(path: Path, _: Random) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _socket(path: Path, _: Random) -> None:
    path.unlink(missing_ok=True)
    here = os.open(path.parent, os.O_RDONLY)  # the path of a socket may have 107 characters
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def _truncated(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(1, path.stat().st_size))


def _sparse(path: Path, _: Random) -> None:
    """100 GiB of zeros after the content, which take no disk."""
    path.touch()
    os.truncate(path, 100 * GIB)


def _flipped(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(20):
        content[random.randrange(min(len(content), 4000))] = random.randrange(256)
    path.write_bytes(content)


def _written(content: bytes, path: Path, _: Random) -> None:
    path.write_bytes(content)


MUTATIONS: dict[str, Mutate] = {
    "fifo": _fifo,
    "endless-device": partial(_link, "/dev/zero"),
    "memory-device": partial(_link, "/proc/self/mem"),
    "link-loop": lambda path, random: _link(path.name, path, random),
    "folder": _folder,
    "socket": _socket,
    "truncated": _truncated,
    "sparse": _sparse,
    "flipped-bytes": _flipped,
    "empty": partial(_written, b""),
    "deep": partial(_written, b"[" * 200_000),
}
NEEDED = ("config.json", "model.safetensors", "tokenizer.json")
FOR_ALL = ("fifo", "endless-device", "sparse", "flipped-bytes", "deep")  # the other files of a model get these only


def _folder_with(name: str, mutate: Mutate, scene: Scene) -> str:
    model = copy_model(scene.folder)
    mutate(model / name, scene.random)
    return model_start(scene, model)


for _file in MODEL_FILES:
    for _name, _mutate in MUTATIONS.items():
        if _file in NEEDED or _name in FOR_ALL:
            _run = partial(_folder_with, _file, _mutate)
            CATALOGUE.add(f"{_file.replace('.', '-')}-{_name}", _run, on_server=False, limit_s=120)


ABSURD: dict[str, dict[str, Any]] = {
    "layers-many": {"num_hidden_layers": 10**9, "layer_types": None},
    "layers-negative": {"num_hidden_layers": -1, "layer_types": None},
    "layers-types-short": {"layer_types": ["full_attention"]},
    "hidden-large": {"hidden_size": 10**12},
    "hidden-zero": {"hidden_size": 0},
    "hidden-fraction": {"hidden_size": 256.5},
    "heads-zero": {"num_attention_heads": 0},
    "kv-heads-uneven": {"num_key_value_heads": 3},
    "head-dim-large": {"head_dim": 2**31},
    "vocabulary-large": {"vocab_size": 10**12},
    "vocabulary-text": {"vocab_size": "3072"},
    "positions-large": {"max_position_embeddings": 10**15},
    "positions-zero": {"max_position_embeddings": 0},
    "epsilon-nan": {"rms_norm_eps": float("nan")},
    "rope-zero": {"rope_parameters": {"rope_theta": 0, "rope_type": "default"}},
    "rope-unknown": {"rope_parameters": {"rope_theta": 1e4, "rope_type": "x" * 100_000}},
    "eos-list": {"eos_token_id": list(range(3000))},
    "eos-large": {"eos_token_id": 2**70},
    "type-unknown": {"model_type": "../../etc"},
    "type-list": {"model_type": ["qwen3"], "architectures": "Qwen3ForCausalLM"},
    "dtype-unknown": {"dtype": "int7"},
    "remote-code": {"auto_map": {"AutoModelForCausalLM": "x.Y"}},
}


def _absurd(values: dict[str, Any], scene: Scene) -> str:
    model = copy_model(scene.folder)
    change_json(model / "config.json", **values)
    return model_start(scene, model)


for _name, _values in ABSURD.items():
    CATALOGUE.add(f"config-{_name}", partial(_absurd, _values), on_server=False, limit_s=120)


def _with_header(change: Callable[[dict[str, Any]], object], scene: Scene) -> str:
    """The header of the weights, changed."""
    model = copy_model(scene.folder)
    path = model / "model.safetensors"
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    return model_start(scene, model)


def _first(header: dict[str, Any]) -> dict[str, Any]:
    return header[next(name for name in header if name != "__metadata__")]


def _overlap(header: dict[str, Any]) -> None:
    for tensor in header.values():
        if "shape" in tensor:
            tensor["data_offsets"] = [0, 100]


EMPTY = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "shape-large": lambda header: _first(header).update(shape=[2**62, 2**62]),
    "shape-negative": lambda header: _first(header).update(shape=[-1, 5]),
    "offsets-large": lambda header: _first(header).update(data_offsets=[0, 2**63]),
    "offsets-reversed": lambda header: _first(header).update(data_offsets=[100, 0]),
    "offsets-overlap": lambda header: _overlap(header),
    "type-wrong": lambda header: _first(header).update(dtype="F64"),
    "type-unknown": lambda header: _first(header).update(dtype="../x"),
    "many-tensors": lambda header: header.update({f"t{n}": EMPTY for n in range(100_000)}),
    "tensor-missing": lambda header: header.pop(next(name for name in header if name != "__metadata__")),
}  # fmt: skip
for _name, _change in HEADERS.items():
    CATALOGUE.add(f"weights-{_name}", partial(_with_header, _change), on_server=False, limit_s=120)


@CATALOGUE.attack(on_server=False, limit_s=120)
def weights_header_size_large(scene: Scene) -> str:
    model = copy_model(scene.folder)
    path = model / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:])
    return model_start(scene, model)


@CATALOGUE.attack(on_server=False, limit_s=120)
def weights_index_outside(scene: Scene) -> str:
    model = copy_model(scene.folder)
    (model / "model.safetensors").unlink()
    index = {"weight_map": {"model.embed_tokens.weight": "../../../../etc/passwd", "lm_head.weight": "/dev/zero"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return model_start(scene, model, Limits(may_serve=False))


# Manifests: each is read as the deployment, and as what another one extends.
TINY = b"model: {model: 'builtin:tiny'}\n"
ALIASES = b"x-a: &a [x,x,x,x,x,x,x,x]\n" + b"".join(  # 8 ** 13 values
    b"x-%c: &%c [%s]\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 8)) for name in b"bcdefghijklm"
)
MANIFESTS: dict[str, Mutate] = {
    "fifo": _fifo,
    "endless-device": partial(_link, "/dev/zero"),
    "terminal": partial(_link, "/dev/tty"),
    "memory": partial(_link, "/proc/self/mem"),
    "link-loop": lambda path, random: _link(path.name, path, random),
    "folder": _folder,
    "sparse": _sparse,
    "empty": partial(_written, b""),
    "not-unicode": partial(_written, b"model: \xff\xfe\n"),
    "nul": partial(_written, TINY + b"\0\n"),
    "deep-lists": partial(_written, b"model: " + b"[" * 100_000),
    "deep-mappings": partial(_written, b"".join(b" " * n + b"a:\n" for n in range(2000))),
    "aliases": partial(_written, ALIASES + TINY),
    "alias-of-itself": partial(_written, b"x-a: &a [*a]\nmodel: &b {model: *b}\n"),
    "large": partial(_written, TINY + b"x-a: [" + b"7," * 20_000_000 + b"7]\n"),
    "long-key": partial(_written, b"m" * 5_000_000 + b": 1\n"),
    "object-tag": partial(_written, b"model: !!python/object/apply:os.system ['id']\n"),
    "interpolation": partial(_written, b"model: {model: '" + b"${A:-" * 20_000 + b"x" + b"}" * 20_000 + b"'}\n"),
    "extends-itself": lambda path, random: _written(b"extends: " + path.name.encode() + b"\n" + TINY, path, random),
    "port-large": partial(_written, TINY + b"server: {port: " + b"9" * 100_000 + b"}\n"),
}  # fmt: skip
FEW = Limits(seconds=20, memory_mib=700)


def _manifest(mutate: Mutate, scene: Scene) -> str:
    path = scene.folder / "hostile.yaml"
    mutate(path, scene.random)
    return start(scene, path, FEW, ("--port", "0"))


def _extended(mutate: Mutate, scene: Scene) -> str:
    mutate(scene.folder / "hostile.yaml", scene.random)
    (scene.folder / "deploy.yaml").write_text("extends: hostile.yaml\nmodel: {model: 'builtin:tiny'}\n")
    return start(scene, scene.folder / "deploy.yaml", FEW, ("--port", "0"))


for _name, _mutate in MANIFESTS.items():
    CATALOGUE.add(f"manifest-{_name}", partial(_manifest, _mutate), on_server=False, limit_s=60)
    if _name in ("fifo", "endless-device", "folder", "sparse", "aliases", "extends-itself"):
        CATALOGUE.add(f"extended-{_name}", partial(_extended, _mutate), on_server=False, limit_s=60)

# Every option that names a file.
OPTIONS = {
    "chat-template": {"server": {"chat_template": "./hostile"}},
    "log-config": {"server": {"log_config_file": "./hostile"}},
    "api-key": {"server": {"api_key": [{"file": "./hostile"}]}},
    "tls-certificate": {"server": {"ssl_certfile": "./hostile", "ssl_keyfile": "./hostile"}},
    "unix-socket": {"server": {"uds": "./hostile", "port": None}},
    "tokenizer": {"model": {"tokenizer": "./hostile"}},
    "generation-config": {"model": {"generation_config": "./hostile"}},
    "hf-config": {"model": {"hf_config_path": "./hostile"}},
}


def _option(sections: dict[str, dict[str, Any]], mutate: Mutate, scene: Scene) -> str:
    mutate(scene.folder / "hostile", scene.random)
    return start(scene, manifest(**sections))


for _option_name, _sections in OPTIONS.items():
    for _name in ("fifo", "endless-device", "sparse"):
        CATALOGUE.add(
            f"option-{_option_name}-{_name}",
            partial(_option, _sections, MUTATIONS[_name]),
            on_server=False,
            limit_s=120,
        )
