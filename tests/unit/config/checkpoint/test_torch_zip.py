"""Torch's files are read as data: what `torch.save` writes comes out, and nothing else does anything."""

from __future__ import annotations

import contextlib
import random
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.config import ModelFilesError
from stoker.config.checkpoint.stored import StoredTensor
from stoker.config.checkpoint.torch_zip import read_torch_file

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64, "BOOL": torch.bool}


def saved(folder: Path, content: Any, **how: Any) -> Path:
    path = folder / "pytorch_model.bin"
    torch.save(content, path, **how)
    return path


def numbers(stored: StoredTensor) -> torch.Tensor:
    dtype = DTYPES[stored.dtype]
    size = stored.span * dtype.itemsize
    flat = torch.empty(stored.span, dtype=dtype)
    flat.view(torch.uint8)[:] = torch.from_numpy(np.fromfile(stored.file, np.uint8, count=size, offset=stored.offset))
    return flat.view(stored.shape) if stored.strides is None else flat.as_strided(stored.shape, stored.strides)


def archive(folder: Path, table: bytes, *, method: int = zipfile.ZIP_STORED, **members: bytes) -> Path:
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w", method) as file:
        file.writestr("archive/data.pkl", table)
        for name, content in members.items():
            file.writestr(f"archive/{name}", content)
    return path


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def tensor(kind: str = "FloatStorage", key: str = "0", count: int = 4, shape: str = "K\x04\x85K\x01\x85") -> bytes:
    """Opcodes of one tensor, as torch writes them."""
    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + b"K" + bytes([count])
    tail = shape.encode("latin1") + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"tQK\x00" + tail + b"tR"


def fault(path: Path) -> ModelFilesError:
    with pytest.raises(ModelFilesError) as caught:
        read_torch_file(path)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 3
    return caught.value


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_what_torch_saves_comes_out(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = (torch.randn(3, 4) * 9).to(dtype)
    tensors = {"a": whole, "empty": torch.empty(0, 4, dtype=dtype), "scalar": whole[0, 0].clone()}
    found = read_torch_file(saved(tmp_path, tensors))
    assert found.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert torch.equal(numbers(found[name]), expected), name


@pytest.mark.parametrize("protocol", [2, 4])
def test_state_dicts_with_their_metadata_and_parameters_are_tables_too(tmp_path: Path, protocol: int) -> None:
    layer = torch.nn.Linear(3, 2)
    for content in (layer.state_dict(), dict(layer.named_parameters()), OrderedDict(layer.state_dict())):
        found = read_torch_file(saved(tmp_path, content, pickle_protocol=protocol))
        assert torch.equal(numbers(found["weight"]), layer.weight)
        assert torch.equal(numbers(found["bias"]), layer.bias)


def test_views_of_one_storage_are_places_in_it(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    views = {"whole": whole, "again": whole, "row": whole[1], "transposed": whole.T, "every other": whole[:, ::2]}
    found = read_torch_file(saved(tmp_path, views))
    assert found["again"] == found["whole"]
    assert found["row"].offset == found["whole"].offset + 16
    assert found["row"].strides is None
    for name, view in views.items():
        assert torch.equal(numbers(found[name]), view), name


@pytest.mark.parametrize(
    ("opcodes", "said"),
    [
        (b"cos\nsystem\n" + text("touch {ran}") + b"\x85R.", "asks for `os.system`"),
        (b"cbuiltins\neval\n" + text("open('{ran}', 'w')") + b"\x85R.", "asks for `builtins.eval`"),
        (text("posix") + text("system") + b"\x93" + text("touch {ran}") + b"\x85R.", "asks for `posix.system`"),
        (b"(S'touch {ran}'\nios\nsystem\n.", "uses the opcode"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n" + text("x") + b"\x85R.", "calls `torch._utils._rebuild_tensor_v2`"),
        (b"ctorch\nload\n.", "asks for `torch.load`"),
        (b"ctorch\nFloatStorage.__init__\n.", "asks for `torch.FloatStorage.__init__`"),
        (b"ccollections\nOrderedDict\n)\x81}b.", "uses the opcode NEWOBJ"),
        (b"\x82\x01.", "uses the opcode EXT1"),
    ],
)
def test_a_pickle_that_wants_to_run_something_is_refused_and_nothing_runs(
    tmp_path: Path, opcodes: bytes, said: str
) -> None:
    ran = tmp_path / "ran"
    error = fault(archive(tmp_path, b"\x80\x02" + opcodes.replace(b"{ran}", str(ran).encode())))
    assert error.code in ("M305", "M303")
    assert said in str(error)
    assert not ran.exists()


def test_what_this_file_writes_by_hand_is_what_torch_writes(tmp_path: Path) -> None:
    path = archive(
        tmp_path, b"\x80\x02}" + text("a") + tensor() + b"s.", **{"data/0": torch.arange(4.0).numpy().tobytes()}
    )
    assert numbers(read_torch_file(path)["a"]).tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("opcodes", "said"),
    [
        (b"", "cannot be understood"),
        (b"\x80\x02}", "cannot be understood"),
        (b"\x80\x02K\x01.", "holds no dict of tensors"),
        (b"\x80\x02}" + text("epoch") + b"K\x01s.", "holds 'epoch', which is no tensor"),
        (b"\x80\x02}" + text("a") + tensor(shape="K\x05\x85K\x01\x85") + b"s.", "ends at element 4 of a storage of 4"),
        (b"\x80\x02}" + text("a") + tensor(shape="J\xff\xff\xff\xff\x85K\x01\x85") + b"s.", "impossible shape"),
        (b"\x80\x02}" + text("a") + tensor(shape="K\x04\x85K\x01K\x01\x86") + b"s.", "impossible shape"),
        (b"\x80\x02}" + text("a") + tensor(key="7") + b"s.", "the numbers of tensor `a` are missing"),
        (b"\x80\x02}" + text("a") + tensor(key="../../x") + b"s.", "the numbers of tensor `a` are missing"),
        (b"\x80\x02}" + text("a") + tensor(count=3, shape="K\x03\x85K\x01\x85") + b"s.", "are 16 bytes, not 12"),
        (b"\x80\x02}" + text("a") + tensor(kind="QInt8Storage") + b"s.", "asks for `torch.QInt8Storage`"),
        (b"\x80\x02}" + b")\x85" * 100_000 + b"K\x01s.", "cannot be understood"),  # a deep tuple as a key
        (b"\x80\x02h\x07.", "cannot be understood"),
        (b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".", "holds no dict of tensors"),
    ],
)
def test_a_table_that_is_not_consistent_is_reported(tmp_path: Path, opcodes: bytes, said: str) -> None:
    assert said in str(fault(archive(tmp_path, opcodes, **{"data/0": bytes(16)})))


@pytest.mark.parametrize("cut", [1, 100, 700])
def test_a_file_cut_short_is_reported(tmp_path: Path, cut: int) -> None:
    path = saved(tmp_path, {"a": torch.randn(100)})
    path.write_bytes(path.read_bytes()[:-cut])
    assert fault(path).code == "M303"


def test_a_directory_that_points_elsewhere_is_reported(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": torch.randn(100)})
    with zipfile.ZipFile(path) as file:
        start = file.getinfo("pytorch_model/data/0").header_offset
    content = bytearray(path.read_bytes())
    content[start : start + 4] = b"nope"
    path.write_bytes(content)
    assert "is not where the archive says" in str(fault(path))


def test_a_huge_directory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Its entries became objects, as many as the file is large."""
    path = tmp_path / "many.bin"
    with zipfile.ZipFile(path, "w") as written:
        for number in range(140):
            written.writestr(f"{number:060000}", b"")
    assert "its directory has more than 8388608 bytes" in str(fault(path))


@pytest.mark.slow
def test_a_pickle_of_too_many_opcodes_is_refused(tmp_path: Path) -> None:
    """Each of 64 million opcodes made a dict."""
    message = str(fault(archive(tmp_path, b"\x80\x02" + b"}" * 3_100_000 + b".")))
    assert "its data.pkl has more than 3000000 opcodes" in message


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    assert "is compressed" in str(fault(archive(tmp_path, b"\x80\x02}.", method=zipfile.ZIP_DEFLATED)))


def test_other_archives_and_the_format_before_1_6_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": torch.ones(1)}, _use_new_zipfile_serialization=False)
    error = fault(path)
    assert (error.code, "a bare pickle, which can run code" in str(error)) == ("M305", True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "hello")
    assert "no checkpoint of torch" in str(fault(path))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert fault(tmp_path / "gone.bin").code == "M302"


@pytest.mark.parametrize("map_location", ["cpu", {"cuda:3": "cpu"}])
@pytest.mark.effect("load.pt_load_map_location")
def test_tensors_of_another_device_are_taken_if_the_map_names_it(tmp_path: Path, map_location: Any) -> None:
    table = b"\x80\x02}" + text("a") + tensor().replace(text("cpu"), text("cuda:3")) + b"s."
    path = archive(tmp_path, table, **{"data/0": bytes(16)})
    assert read_torch_file(path, map_location)["a"].shape == (4,)
    with pytest.raises(ModelFilesError, match=r"tensor `a` was saved from cuda:3, which `load\.pt_load_map_location`"):
        read_torch_file(path, {"cuda:0": "cpu"})


def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    """Bytes changed at random, most of them in the table and the archive's headers."""
    layer = torch.nn.Linear(3, 2)
    path = saved(tmp_path, {**layer.state_dict(), "view": layer.weight.T})
    whole, random_source = path.read_bytes(), random.Random(7)
    for _ in range(400):
        content = bytearray(whole)
        for _ in range(random_source.randint(1, 4)):
            content[random_source.randrange(len(content))] = random_source.randrange(256)
        path.write_bytes(content)
        with contextlib.suppress(ModelFilesError):
            for stored in read_torch_file(path).values():
                assert stored.offset + stored.span <= len(content)
