"""Whatever is in a model's folder: a documented exit code, one sentence, bounded memory, and never a traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiny_tokenizer import write_tokenizer

from .model_files import QWEN3, TENSORS, write_model

ROOT = Path(__file__).parents[3]
each_amount = pytest.mark.parametrize(
    "amount",
    [
        settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck)),
        pytest.param(
            settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck)), marks=pytest.mark.slow
        ),
    ],
    ids=["few", "many"],
)

# Keys that something reads, here or in the lenient reader of plans, and values that none of them may have.
CONFIG_KEYS = [
    *QWEN3,
    *("rms_norm_eps", "hidden_act", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "attention_bias", "mlp_bias"),
    *("auto_map", "text_config", "vision_config", "quantization_config", "bos_token_id", "pad_token_id"),
    *("num_experts", "moe_intermediate_size", "kv_lora_rank", "hybrid_override_pattern", "attn_type_list"),
    *("block_configs", "cross_attention_layers", "linear_attn_config", "attn_layer_indices", "attn_layer_period"),
    *(
        "mlp_only_layers",
        "attn_config",
        "mamba_d_state",
        "mamba_n_heads",
        "is_encoder_decoder",
        "n_layer",
        "torch_dtype",
    ),
]
OTHER_KEYS = {
    "generation_config.json": ["eos_token_id", "temperature", "top_p", "top_k", "do_sample", "max_new_tokens"],
    "tokenizer_config.json": ["auto_map", "added_tokens_decoder", "chat_template", "bos_token", "extra_special_tokens"],
    "chat_template.json": ["chat_template"],
    "model.safetensors.index.json": ["weight_map", "metadata"],
    "tokenizer.json": ["model", "decoder", "pre_tokenizer", "added_tokens", "normalizer", "truncation"],
}
FILES = ["config.json", "model.safetensors", "chat_template.jinja", *OTHER_KEYS]
NUMBERS = [0, -1, 1, 2, 3, 7, 99, 2**31, 2**63, 10**12, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan")]
ROPE = ["default", "linear", "dynamic", "llama3", "yarn", "longrope", 3, None]

TEXTS = ["", "x", "16", "\0", "\ud800", "\x1b[2J", "é" * 3000, "../x", "M*-" * 5000]
FAMILIES = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "GemmaForCausalLM"]
ROPE_KEYS = [
    *("factor", "rope_theta", "low_freq_factor", "high_freq_factor", "beta_fast", "attention_factor"),
    *("mscale", "original_max_position_embeddings", "type", "truncate"),
]

scalars = st.sampled_from([*NUMBERS, True, None, *TEXTS])
ropes = st.fixed_dictionaries({"rope_type": st.sampled_from(ROPE)}, optional=dict.fromkeys(ROPE_KEYS, scalars))
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.just([0] * 100_000),
    st.dictionaries(st.sampled_from(["a", "0", "AutoTokenizer", *CONFIG_KEYS]), scalars, max_size=3),
    ropes,
    st.sampled_from(FAMILIES).map(lambda name: [name]),
)
sizes = st.sampled_from([0, -1, 1, 16, 2**63, 10**400, True, 1.5, "16", None])
entries = st.one_of(
    values,
    st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["BF16", "F32", "F8_E4M3", "I64", "", 3, "\ud800"]),
            "shape": st.lists(sizes, max_size=3),
            "data_offsets": st.lists(sizes, max_size=3),
        }
    ),
)
CONTENTS = [b"", b"{", b"[]", b"null", b"\xff\xfe{}", b"[" * 100_000, b'{"a":' * 5000, b"{}" * 9, b"9" * 5000]
contents = st.sampled_from(CONTENTS)
changes = st.one_of(
    st.tuples(st.just("set"), st.just("config.json"), st.sampled_from(CONFIG_KEYS), values),
    st.one_of(
        [st.tuples(st.just("set"), st.just(name), st.sampled_from(keys), values) for name, keys in OTHER_KEYS.items()]
    ),
    st.tuples(st.just("header"), st.sampled_from(sorted(TENSORS)), entries),
    st.tuples(st.just("content"), st.sampled_from(FILES), contents),
    st.tuples(st.just("cut"), st.sampled_from(FILES), st.integers(0, 5000)),
    st.tuples(st.just("flip"), st.sampled_from(FILES), st.integers(0, 2**32)),
    st.tuples(st.sampled_from(["remove", "pipe", "directory", "loop", "device"]), st.sampled_from(FILES)),
)


def change(folder: Path, kind: str, name: str, *rest: Any) -> None:
    """One change of a folder that may have been changed before."""
    if kind == "header":
        file = folder / "model.safetensors"
        content = file.read_bytes() if file.is_file() else b""
        length = int.from_bytes(content[:8], "little")
        try:
            header = {**json.loads(content[8 : 8 + length]), name: rest[0]}
        except (ValueError, TypeError):
            return
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
        return
    file = folder / name
    content = file.read_bytes() if file.is_file() else b""
    shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    match kind:
        case "set":
            try:
                found = {**json.loads(content or b"{}"), rest[0]: rest[1]}
            except (ValueError, TypeError, RecursionError):
                found = {rest[0]: rest[1]}
            file.write_text(json.dumps(found))
        case "content":
            file.write_bytes(rest[0])
        case "cut":
            file.write_bytes(content[: rest[0]])
        case "flip":
            changed = bytearray(content)
            source = random.Random(rest[0])
            for _ in range(3 if changed else 0):
                changed[source.randrange(len(changed))] = source.randrange(256)
            file.write_bytes(changed)
        case "pipe":
            os.mkfifo(file)
        case "directory":
            file.mkdir()
        case "loop":
            file.symlink_to(file.name)
        case "device":
            file.symlink_to("/dev/zero")


class Reader:
    """The child process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.config.read_hostile_folders"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / '.dev'}:{ROOT}"},
        )

    def read(self, folder: Path, load_format: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(folder), load_format]) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline() or '{"traceback": "the process died"}')
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


def _with_tokenizer(folder: Path) -> Path:
    write_tokenizer(folder)
    return folder


@pytest.mark.timeout(1200)
@each_amount
def test_no_folder_ends_in_a_traceback(tmp_path: Path, reader: Reader, amount: settings) -> None:
    base = _with_tokenizer(write_model(tmp_path / "valid", tokenizer=False))
    assert reader.read(base, "safetensors")["plan"] == 0

    @amount
    @given(st.lists(changes, min_size=1, max_size=3), st.sampled_from(["auto", "dummy"]))
    def each(made: list[tuple[Any, ...]], load_format: str) -> None:
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        for one in made:
            change(folder, *one)
        answer = reader.read(folder, load_format)
        assert "traceback" not in answer, answer["traceback"]
        assert answer["validate"] in (0, 3, 4, 78), answer
        assert answer["plan"] in (0, 3, 4), answer
        assert "Traceback" not in answer["printed"]

    each()


HUGE: dict[str, tuple[Any, ...]] = {
    "a billion layers": ("set", "config.json", "num_hidden_layers", 10**9),
    "a width of 10**12": ("set", "config.json", "hidden_size", 10**12),
    "a list of lists": ("content", "config.json", b"[" + b"[]," * 5_000_000 + b"[]]"),
    "a config without an end": ("device", "config.json"),
    "an index that names a pipe": ("pipe", "model.safetensors.index.json"),
    "a circle of links": ("loop", "config.json"),
}


@pytest.mark.parametrize("made", HUGE.values(), ids=HUGE.keys())
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.quick_cases(6)
def test_what_was_endless_is_one_sentence(
    tmp_path: Path, reader: Reader, made: tuple[Any, ...], load_format: str
) -> None:
    folder = _with_tokenizer(write_model(tmp_path / "model", tokenizer=False))
    change(folder, *made)
    answer = reader.read(folder, load_format)
    if made[1] != "model.safetensors.index.json" or load_format == "auto":
        assert (answer.get("validate"), answer.get("plan")) == (3, 3), answer


def test_a_folder_without_weights_and_with_a_broken_tokenizer_configuration_is_planned(
    tmp_path: Path, reader: Reader
) -> None:
    folder = _with_tokenizer(write_model(tmp_path / "model", tokenizer=False))
    change(folder, "remove", "model.safetensors")
    change(folder, "cut", "tokenizer_config.json", 5)
    answer = reader.read(folder, "auto")
    assert (answer["validate"], answer.get("plan")) == (3, 0), answer
