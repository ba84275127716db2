"""`engine save-sharded --as-loaded` and the start from what it writes: the same numbers, or a refusal."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.slow_cases import slow, slow_but
from tests.unit.cli.test_app import run

from stoker.config import ModelFilesError, Resolved, read_machine_spec
from stoker.config.checkpoint.safetensors import read_entries
from stoker.config.cpu_features import wanted_level
from stoker.config.resolve.sharded_state import FORMAT_VERSION
from stoker.convert.loaded_state import pack, save
from stoker.convert.target import target_problem
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.kernels import Grouped, GroupScales, Integers, select_kernels
from stoker.engine.kernels.stored_linear import stored_tensors
from stoker.engine.runner import loaded_model
from stoker.engine.runner.loaded_model import load_on_cpu
from stoker.engine.runner.measure import PhaseClock

from .checkpoints import build
from .checkpoints import save as save_checkpoint
from .conftest import Saved
from .engine import Engine, resolved
from .gguf_files import write_gguf
from .quantised import METHODS, write
from .test_gguf import WIDE

WITH_SCORES = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=2)
PART, LAYOUT = "model-rank-0-part-0.safetensors", "model-rank-0-layout.json"


def saved_state(settings: Resolved, target: Path) -> Path:
    packed = pack(settings, PhaseClock())
    save(packed, packed.parts(1 << 20), target, lambda _: None)
    return target


def scores(settings: Resolved) -> list[Any]:
    """Tokens and log-probabilities, bit for bit."""
    prompts = [[5, 6, 7], list(range(20, 40))]
    requests = [
        EngineRequest(request_id=str(index), inputs=RequestInputs(prompt, WITH_SCORES))
        for index, prompt in enumerate(prompts)
    ]
    done = Engine(settings).run(requests)
    return [(each.token_ids, each.logprobs, each.prompt_logprobs) for each in done.values()]


def check_equal(source: Path, place: Path, model: dict[str, Any], load: dict[str, Any] | None = None) -> Resolved:
    """The start from the state, whose scores are those of the source."""
    original = resolved(source, place, model=model)
    target = saved_state(original, place / "state")
    again = resolved(target, place, model=model, load=load or {})
    assert again.load.load_format == "sharded_state"
    assert again.memory.weights_bytes == original.memory.weights_bytes
    assert scores(again) == scores(original)
    return again


BF16 = {"dtype": "bfloat16"}


@pytest.mark.effect("load.load_format", "model.quantization")
@pytest.mark.parametrize(
    "model",
    [
        BF16,
        {"dtype": "float32", "enforce_eager": True},
        BF16 | {"quantization": "int8"},
        BF16 | {"quantization": "int4"},
        BF16 | {"quantization": "int8", "activation_quantization": "int8"},
    ],
    ids=lambda model: "-".join(map(str, model.values())),
)
@pytest.mark.parametrize("family", slow_but(["llama with biases", "qwen3_moe", "gpt_oss"], "qwen3_moe"))
@pytest.mark.quick_cases(2)
def test_a_state_gives_the_same_scores(
    family: str, model: dict[str, Any], saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    check_equal(saved(family)[1], tmp_path, model)


@pytest.mark.effect("load.load_format")
@pytest.mark.parametrize(
    "family",
    slow_but(
        [
            "gemma4",
            "deepseek_v2 lite",
            "qwen3_next",
            "gpt2",
            "opt",
            "mamba2",
            "jamba",
            "zamba2",
            "llama4",
            "qwen2 tied",
            "falcon",
        ],
        "deepseek_v2 lite",
        "qwen3_next",
    ),
)
def test_all_kinds_of_layers_are_written(family: str, saved: Callable[[str], Saved], tmp_path: Path) -> None:
    check_equal(saved(family)[1], tmp_path, {"dtype": "float32"})


@pytest.mark.effect("load.load_format", "load.safetensors_load_strategy")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gptq ordered", "float32"),
        *(slow(name, "bfloat16") for name in METHODS),
        *(slow(name, "float32") for name in ("packed asymmetric", "integers", "nf4")),
    ],
)
def test_a_quantised_checkpoint_keeps_its_codes(
    name: str, dtype: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    write(saved("qwen3")[1], tmp_path / "quantised", METHODS[name])
    again = check_equal(
        tmp_path / "quantised", tmp_path, {"dtype": dtype}, {"safetensors_load_strategy": "eager"}
    ).model_files
    assert [each.num_matrices for each in again.stored_as] == [14]


@pytest.mark.effect("load.load_format")
@pytest.mark.parametrize(
    ("family", "dtype", "more"),
    [
        ("llama", "Q4_K", {}),
        pytest.param("qwen3_moe", "Q6_K", {"moe_intermediate_size": 256}, marks=pytest.mark.slow),
    ],
)
def test_a_gguf_file_keeps_its_codes_and_its_header(
    family: str, dtype: str, more: dict[str, int], tmp_path: Path
) -> None:
    source = save_checkpoint(build(family, **WIDE, **more), tmp_path / "theirs")
    file, _ = write_gguf(source, tmp_path / "own", dtype)
    again = check_equal(file, tmp_path, BF16)
    assert (again.model.config_format, again.model_files.spec.weight_names) == ("gguf", "gguf")
    once_more = saved_state(again, tmp_path / "more")  # a state of a state
    assert scores(resolved(once_more, tmp_path, model=BF16)) == scores(again)


def pieces_of(layout: Any) -> list[Any]:
    """Of the first layer whose parts are stored in several ways."""
    held = (each for part in layout["parts"] for each in part["held"].values())
    return next(each["pieces"] for each in held if each and each.get("pieces"))


@pytest.mark.effect("load.load_format")
@pytest.mark.slow
def test_a_mixture_keeps_the_pieces_of_its_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Q4_K_M: the values of some layers are in Q6_K beside queries in Q4_K."""
    file = tmp_path / "own" / "tiny.gguf"
    words = ("quantize", "builtin:tiny", "--to", "gguf:q4_k_m", "--pre-tokenizer", "qwen2", "-o", str(file))
    assert run(capsys, *words)[0] == 0
    again = check_equal(file, tmp_path, BF16 | {"skip_tokenizer_init": False})
    target = Path(again.model_path)
    assert again.model.tokenizer == str(target / "vocabulary.gguf")
    assert len(pieces_of(json.loads((target / LAYOUT).read_text()))) == 2
    changed_json(target / LAYOUT, lambda s: pieces_of(s)[0].update(out_features=512))
    assert "bytes of groups, not" in fault(target, tmp_path)
    changed_json(target / LAYOUT, lambda s: pieces_of(s).pop())
    assert "bytes of groups, not" in fault(target, tmp_path)
    changed_json(target / LAYOUT, lambda s: pieces_of(s)[0].update(out_features=384))
    assert "the pieces of a layer do not fit together" in fault(target, tmp_path)


@pytest.mark.effect("load.load_format", "model.model_impl")
def test_a_model_of_transformers_is_written_too(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    check_equal(saved("qwen3")[1], tmp_path, {"dtype": "float32", "model_impl": "transformers"})


@pytest.fixture(scope="module")
def state(saved: Callable[[str], Saved], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bfloat16")
    return saved_state(resolved(saved("qwen3 untied")[1], place, model=BF16), place / "state")


@pytest.fixture
def copied(state: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(state, tmp_path / "state"))


def fault(folder: Path, place: Path, **model: Any) -> str:
    with pytest.raises(ModelFilesError) as caught:
        Engine(resolved(folder, place, model=BF16 | model))
    return str(caught.value)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"dtype": "float32"}, "model.dtype bfloat16, not float32"),
        ({"quantization": "int8"}, "model.quantization none, not int8"),
        ({"batch_invariant": True}, "model.batch_invariant false, not true"),
        ({"enforce_eager": True}, "kernels"),
        ({"hf_overrides": {"rope_theta": 5e5}}, "model.hf_overrides {}, not {'rope_theta': 500000.0}"),
    ],
)
@pytest.mark.effect("load.load_format")
@pytest.mark.quick_cases(2)
def test_a_start_of_other_options_is_refused(state: Path, model: dict[str, Any], said: str, tmp_path: Path) -> None:
    message = fault(state, tmp_path, **model)
    assert said in message
    assert f"engine save-sharded DEPLOYMENT --as-loaded -o {state} --force" in message


def changed_json(file: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["shape"].update(kernels="other"), "a sharded state of kernels other, not "),
        (lambda s: s.update(format_version=FORMAT_VERSION + 1), f"this build reads version {FORMAT_VERSION}; write it"),
        (lambda s: s.update(num_ranks=2), "of 2 ranks; this build runs on one"),
        (lambda s: s["shape"].pop("dtype"), "`shape.dtype`: Field required"),
        (lambda s: s["shape"].update(dtype="x"), "`shape.dtype`: Input should be 'float32', "),
        (lambda s: s.update(num_stored=-1), "`num_stored`: "),
    ],
)
def test_a_state_of_another_machine_or_version_is_refused(
    copied: Path, change: Callable[[Any], Any], said: str, tmp_path: Path
) -> None:
    changed_json(copied / "sharded_state.json", change)
    assert said in fault(copied, tmp_path)


NEEDED = " needed|not ["  # in panels, or as torch has it where this CPU's kernels have no panels of bfloat16


def packed_part(layout: Any) -> Any:
    """The first layer that is not the output."""
    return next(part["held"]["packed"] for part in layout["parts"][1:] if "packed" in part["held"])


def unpack(layout: Any) -> None:
    """Says that a layer in 12 bits is not packed; on a CPU without such layers, another lie."""
    if read_machine_spec().keeps_twelve_bits:
        packed_part(layout)["is_packed"] = False
    else:
        layout["parts"].pop()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["parts"].pop(), "of a model with other layers than config.json describes"),
        (lambda s: s["parts"][0].update(wants="0" * 16), "of a model with other layers"),
        (lambda s: packed_part(s).update(in_features=4096), NEEDED),
        (lambda s: packed_part(s).update(out_features=0), "greater than or equal to 1"),
        (lambda s: packed_part(s).update(out_features=10**9), NEEDED),
        (unpack, "not [|other layers"),
        (lambda s: packed_part(s).update(rounds_rows=True), "scales of elements that are not codes"),
        (lambda s: packed_part(s).update(tensors=["bias"]), "missing"),
        (lambda s: packed_part(s).update(tensors=[]), "a layer without a weight"),
        (lambda s: packed_part(s).update(pieces=[dict(packed_part(s))]), "missing"),
        (lambda s: s["parts"][1]["held"].clear(), " must be ["),
    ],
)
def test_a_layout_that_lies_is_refused(copied: Path, change: Callable[[Any], Any], said: str, tmp_path: Path) -> None:
    changed_json(copied / LAYOUT, change)
    found = fault(copied, tmp_path)
    assert any(each in found for each in said.split("|"))


def test_a_truncated_or_missing_file_is_refused(copied: Path, tmp_path: Path) -> None:
    content = (copied / PART).read_bytes()
    (copied / PART).write_bytes(content[:-64])
    assert f"{PART}: expected" in fault(copied, tmp_path)
    (copied / PART).unlink()
    assert "no weight files (model-rank-0-part-0.safetensors and so on)" in fault(copied, tmp_path)
    (copied / PART).write_bytes(content)
    (copied / LAYOUT).unlink()
    assert f"{LAYOUT}: cannot be read" in fault(copied, tmp_path)


def overwrite(folder: Path, end: str, at: int, content: bytes) -> None:
    """Bytes of the first tensor with this end of its name; a negative place counts from its end."""
    entry = next(entry for entry in read_entries(folder / PART) if entry.name.endswith(end))
    with (folder / PART).open("r+b") as stream:
        stream.seek((entry.end if at < 0 else entry.start) + at)
        stream.write(content)


@pytest.mark.parametrize(("at", "value"), [(32, 1 << 40), (32, -1), (-8, 0)])
def test_exceptions_outside_of_their_list_are_refused(copied: Path, at: int, value: int, tmp_path: Path) -> None:
    """A kernel follows the place of a panel's first exception, and reads to the end of the list."""
    entry = next(entry for entry in read_entries(copied / PART) if entry.name.endswith(":packed.weight"))
    if entry.dtype != "U8":
        pytest.skip("these kernels keep no 12 bits")
    overwrite(copied, ":packed.weight", at, struct.pack("<q", value))
    assert "exceptions outside of its list" in fault(copied, tmp_path)


@pytest.mark.parametrize(
    ("end", "at", "content", "said"),
    [
        *[
            (":packed.scales", at, struct.pack("<q", value), "groups in a format that kernels do not read")
            for at, value in ((0, 5), (8, 0), (8, 48), (16, 1 << 20), (24, 0), (24, 9), (32, 7), (40, 3))
        ],
        (":packed.scales", 0, struct.pack("<q", 8), "bytes of groups, not"),
        (":packed.order", 0, struct.pack("<i", -1), "an order of inputs that it does not have"),
        (":packed.order", -4, struct.pack("<i", 64), "an order of inputs that it does not have"),
    ],
)
@pytest.mark.quick_cases(7)
def test_a_format_that_lies_is_refused(
    end: str, at: int, content: bytes, said: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    write(saved("qwen3")[1], tmp_path / "quantised", METHODS["gptq ordered"])
    folder = saved_state(resolved(tmp_path / "quantised", tmp_path, model=BF16), tmp_path / "state")
    overwrite(folder, end, at, content)
    assert said in fault(folder, tmp_path)


def test_a_format_has_no_address_of_the_process_that_wrote_it(saved: Callable[[str], Saved], tmp_path: Path) -> None:
    write(saved("qwen3")[1], tmp_path / "quantised", METHODS["gptq ordered"])
    settings = resolved(tmp_path / "quantised", tmp_path, model=BF16)
    first, second = (saved_state(settings, tmp_path / name) for name in ("first", "second"))
    assert (first / PART).read_bytes() == (second / PART).read_bytes()


LAYOUTS = {  # by the kernels
    "avx512_bf16": "9e74cd87e0664e1d",
    "avx512": "5f97435f862b8686",
    "avx2": "677f771613d1b148",
}


def packed_bytes(features: str) -> bytes:
    """Of one matrix in all forms that kernels of a level pack."""
    weight = torch.arange(40 * 128, dtype=torch.float32).view(40, 128).sub(2000).mul(2**-9).bfloat16()
    codes = torch.arange(40 * 128).view(40, 128) % 16
    scales = GroupScales(torch.arange(1, 161).view(40, 4).bfloat16())
    levels = torch.arange(64.0)
    layers = []
    for activations in (None, "int8"):
        kernels = select_kernels("cpu", torch.bfloat16, 64, features, quantization="int8", activations=activations)
        layers += [kernels.quantise_linear(weight, None, scheme) for scheme in ("int8", "int4")]
    layers += [kernels.pack_linear(weight, None), kernels.pack_linear(weight.bfloat16() + 1, None)]
    assert kernels.pack_grouped is not None
    assert kernels.pack_integers is not None
    for table in (levels[:16], levels, torch.cat((levels, levels + 64, -levels, -levels - 64))):
        for zeros in (None, torch.arange(160.0).view(40, 4) % 8):
            each = kernels.pack_grouped([Grouped(codes.to(torch.uint8), table, scales, zeros)], None, torch.bfloat16)
            assert each is not None
            layers.append(each)
    integers = kernels.pack_integers(Integers(codes.to(torch.int8), torch.arange(40.0)), None, torch.bfloat16)
    assert integers is not None
    content = [
        tensor.contiguous().view(torch.uint8).numpy().tobytes()
        for layer in (*layers, integers)
        for tensor in stored_tensors(layer).values()
    ]
    return b"".join(content)


def test_a_changed_layout_is_a_new_version() -> None:
    """If this fails because kernels pack weights differently, FORMAT_VERSION must grow: written states are wrong."""
    assert FORMAT_VERSION == 1
    features = wanted_level()
    name = select_kernels("cpu", torch.bfloat16, 64, features).layout
    if name not in LAYOUTS:
        pytest.skip(f"no digest of the {name} kernels")
    assert hashlib.sha256(packed_bytes(features)).hexdigest()[:16] == LAYOUTS[name]


def test_nothing_is_left_of_a_state_that_was_not_finished(
    saved: Callable[[str], Saved], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(resolved(saved("qwen3")[1], tmp_path), PhaseClock())
    place = tmp_path / "place"

    def stopped(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(packed, packed.parts(1 << 20), place / "state", stopped)
    assert not list(place.iterdir())
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 1 << 40, 1 << 20))
    with pytest.raises(OSError, match=rf"bytes are needed for state, {1 << 20} are free"):
        save(packed, packed.parts(1 << 20), place / "state", lambda _: None)
    assert not list(place.iterdir())


def test_only_a_state_is_replaced(state: Path, tmp_path: Path) -> None:
    assert target_problem(tmp_path / "new", may_replace=False) == target_problem(tmp_path, may_replace=False) == ""
    (tmp_path / "mine").write_text("mine")
    assert "exists, and is not a sharded state" in target_problem(tmp_path, may_replace=True)
    assert "exists, and is not a sharded state" in target_problem(tmp_path / "mine", may_replace=True)
    assert target_problem(state, may_replace=False) == f"{state}: exists; --force replaces the sharded state in it"
    assert target_problem(state, may_replace=True) == ""


@pytest.mark.slow
def test_the_command_writes_what_a_plan_names(
    saved: Callable[[str], Saved], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("save-sharded", "builtin:tiny", "--as-loaded", "-o", str(tmp_path / "state"))
    code, out, _ = run(capsys, *words, "--output", "json")
    assert code == 0
    found = json.loads(out)
    assert (found["num_files"], found["shape"]["dtype"]) == (1, "bfloat16")
    assert found["bytes"] < (tmp_path / "state" / PART).stat().st_size
    names = {each.name for each in (tmp_path / "state").iterdir()}
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "sharded_state.json", PART, LAYOUT} <= names
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert "exists; --force replaces the sharded state in it" in err
    assert run(capsys, *words, "--force")[0] == 0
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
    code, out, _ = run(capsys, "plan", "--model", str(tmp_path / "state"))
    assert code == 0
    assert "(a sharded state in 1 file)" in out
    assert f"stored        sharded state: bfloat16, as the {found['shape']['kernels']} kernels hold weights" in out
    assert "written by `engine save-sharded --as-loaded`" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"load": {"load_format": "dummy"}}, "`load.load_format: dummy` has no weights that could be written"),
    ],
)
def test_what_has_no_weights_cannot_be_saved(
    options: dict[str, Any], said: str, saved: Callable[[str], Saved], tmp_path: Path
) -> None:
    with pytest.raises(ModelFilesError, match=said):
        pack(resolved(saved("qwen3")[1], tmp_path, **options), PhaseClock())


def test_a_server_waits_for_the_kernels_that_a_state_is_for(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch cannot answer meanwhile: the weights are in the order of the kernels."""
    monkeypatch.setattr(loaded_model, "is_loadable", lambda _: False)
    settings = resolved(state, tmp_path, model=BF16)
    loaded = load_on_cpu(settings, PhaseClock(), may_compile_later=True)
    assert loaded.compilation is None


def test_options_are_for_packed_weights_and_a_deployment_may_have_them(
    saved: Callable[[str], Saved], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = str(saved("qwen3")[1]), str(tmp_path / "state")
    code, _, err = run(capsys, "save-sharded", source, "-o", target, "--dtype", "float32")
    assert code == 2
    assert "does not change the tensors of a checkpoint; --as-loaded writes them as they are served" in err
    resolved(Path(source), tmp_path, model={"quantization": "int8"})  # writes the file
    words = ("save-sharded", str(tmp_path / "deployment.yaml"), "--as-loaded", "-o", target, "--output", "json")
    code, out, _ = run(capsys, *words, "--max-part-size", "50kB")
    assert code == 0
    found = json.loads(out)
    assert found["num_files"] == len(list(Path(target).glob("*.safetensors"))) > 1
    assert found["shape"]["quantization"] == "int8"
    settings = {"quantization": "int8"}
    again = scores(resolved(Path(target), tmp_path, model=settings))
    assert again == scores(resolved(Path(source), tmp_path, model=settings))
    code, _, err = run(capsys, "save-sharded", target, "-o", str(tmp_path / "more"))
    assert code == 3
    assert "weights as kernels hold them (float32, int8, as the " in err
