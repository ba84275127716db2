"""Headers of GGUF files: what is read, and that nothing in them is believed."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from stoker.config import ModelFilesError
from stoker.config.checkpoint.gguf import parts, read_gguf
from stoker.config.checkpoint.gguf_files import choose, has_quantisation, patterns
from stoker.config.checkpoint.model_files import is_hub_id, is_like, locate, split_quantisation
from stoker.config.checkpoint.stored import BLOCKS, bytes_of

U32, STRING, ARRAY = 4, 8, 9


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content)) + content


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str = "a", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", kind, offset)


def content(keys: list[bytes] = [], tensors: list[bytes] = [], data: int = 128, **changes: Any) -> bytes:  # noqa: B006
    counts = changes.get("num_tensors", len(tensors)), changes.get("num_keys", len(keys))
    header = changes.get("magic", b"GGUF") + struct.pack("<IQQ", changes.get("version", 3), *counts)
    header += b"".join([*keys, *tensors])
    return header + bytes(-len(header) % 32) + bytes(data)


def test_values_and_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    numbers = struct.pack("<IQ3f", 6, 3, 0.5, 1.0, 2.0)
    words = struct.pack("<IQ", STRING, 2) + text("ä") + text("")
    keys = [key("n", U32, struct.pack("<I", 7)), key("eps", 6, struct.pack("<f", 1e-6)), key("yes", 7, b"\1")]
    keys += [key("numbers", ARRAY, numbers), key("words", ARRAY, words), key("t", STRING, text("x"))]
    path.write_bytes(content(keys, [tensor("a", (32, 2), 2), tensor("b", (3,), 0, 64)], 64 + 32))
    header = read_gguf(path)
    assert {name: header.values[name] for name in ("n", "eps", "yes", "t")} == {
        "n": 7,
        "eps": 1e-6,
        "yes": True,
        "t": "x",
    }
    assert (list(header.values["numbers"]), list(header.values["words"])) == ([0.5, 1.0, 2.0], ["ä", ""])
    found = {name: (each.dtype, each.shape, each.num_bytes) for name, each in header.tensors.items()}
    assert found == {"a": ("Q4_0", (2, 32), 36), "b": ("F32", (3,), 12)}
    assert header.floats("b") == [0.0, 0.0, 0.0]
    assert header.floats("c") is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", "cut short in the header"),
        (content(magic=b"GGML"), "not a GGUF file"),
        (content(version=1), "version 1 of the format"),
        (content(version=3 << 24), "a file of a big-endian machine"),
        (content(num_keys=2**60), "1152921504606846976 keys, for which the file"),
        (content(num_tensors=2**63), "9223372036854775808 tensors, for which"),
        (content([struct.pack("<Q", 2**60)]), "a string of 1152921504606846976 bytes in key 1 of 1"),
        (content([key("k", STRING, struct.pack("<Q", 2**62))]), "a string of 4611686018427387904 bytes in key `k`"),
        (content([key("k", ARRAY, struct.pack("<IQ", STRING, 2**60))]), "strings in key `k`, for which the file"),
        (content([key("k", ARRAY, struct.pack("<IQQ", STRING, 1, 2**60))]), "cut short in key `k`: byte 11529"),
        (content([key("k", ARRAY, struct.pack("<IQ", 12, 2**61))]), "elements in key `k`, for which the file"),
        (content([key("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "key `k` is an array of type 9"),
        (content([key("k", 13, b"")]), "key `k` has the unknown type 13"),
        (content([key("k", 7, b"\7")]), "key `k` is 7; a flag is 0 or 1"),
        (content([key("k", 7, b"\1")] * 2), "key `k` is there twice"),
        (content([key("general.alignment", U32, struct.pack("<I", 0))]), "`general.alignment` is 0"),
        (content(tensors=[tensor(shape=())]), "tensor `a` has 0 dimensions"),
        (content(tensors=[tensor(shape=(2**31, 2**31, 2))]), "tensor `a` has the impossible shape"),
        (content(tensors=[tensor(shape=(0, 2))]), "tensor `a` has the impossible shape"),
        (content(tensors=[tensor(kind=99)]), "tensor `a` has type 99"),
        (content(tensors=[tensor(kind=4)]), "tensor `a` has type 4"),
        (content(tensors=[tensor(shape=(33,), kind=2)]), "rows of 33 elements, not a multiple of the 32 of a Q4_0"),
        (content(tensors=[tensor(offset=32)]), "tensor `a` starts at byte 32 of the tensors, not 0"),
        (content(tensors=[tensor(), tensor("b")]), "tensor `b` starts at byte 0 of the tensors, not 128"),
        (content(tensors=[tensor(), tensor(offset=128)]), "tensor `a` is there twice"),
        (content(tensors=[tensor(shape=(1 << 40,))]), "it was cut"),
    ],
)
def test_what_a_header_claims_is_checked_before_memory_is_taken(tmp_path: Path, written: bytes, said: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(written)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFilesError, match=said) as caught:
            read_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ")


def test_types_have_the_sizes_of_the_library() -> None:
    for kind, (elements, size) in GGML_QUANT_SIZES.items():
        if kind.name in BLOCKS:
            assert BLOCKS[kind.name] == (elements, size)
    assert BLOCKS.keys() <= GGMLQuantizationType.__members__.keys()
    assert bytes_of("Q4_K", 512) == 288


def test_names_of_models_in_repositories() -> None:
    assert split_quantisation("owner/name:Q4_K_M") == ("owner/name", "Q4_K_M")
    assert all(map(is_hub_id, ("owner/name:Q4_K_M", "owner/name")))
    assert not any(map(is_hub_id, ("name:3b", "owner/x.gguf")))
    wanted = patterns("Q4_K_M")
    names = ["m-Q4_K_M.gguf", "m.q4_k_m.gguf", "Q4_K_M/m-00001-of-00002.gguf", "m-Q4_K_M-00001-of-00002.gguf"]
    assert all(is_like(name, wanted) for name in names)
    assert not any(
        is_like(name, wanted) for name in ["m-Q4_K_S.gguf", "m-IQ4_K_M.gguf", "m-Q4_K_M.txt", "mQ4_K_M.gguf"]
    )


def test_the_file_of_a_quantisation_is_chosen(tmp_path: Path) -> None:
    for name in ("a-Q8_0.gguf", "a-Q4_0-00001-of-00002.gguf", "mmproj-Q4_0.gguf"):
        (tmp_path / name).touch()
    assert choose(tmp_path, "q8_0").name == "a-Q8_0.gguf"
    assert locate(str(tmp_path / "a-Q8_0.gguf"), None, None, "*.gguf") == tmp_path
    assert has_quantisation(tmp_path, "Q8_0")
    assert not has_quantisation(tmp_path, "Q4_0")
    with pytest.raises(ModelFilesError, match=r"a-Q4_0-00002-of-00002\.gguf: missing, though a-Q4_0-00001-of"):
        parts(choose(tmp_path, "Q4_0"))
    with pytest.raises(ModelFilesError, match=r"2 GGUF models \(a-Q4_0-00001-of-00002.gguf, a-Q8_0.gguf\)"):
        choose(tmp_path)
    with pytest.raises(ModelFilesError, match="no GGUF file of Q2_K; it has a-Q4_0"):
        choose(tmp_path, "Q2_K")
