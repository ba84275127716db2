from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.models.gguf_files import write_gguf
from tests.unit.config.imitated_nodes import Node, machine
from tests.unit.config.plan.shapes import NATIVE, SHAPES, write_config

import stoker.builtin
from stoker.cli.app import main
from stoker.config import read_machine_spec
from stoker.config.plan.devices import profiles
from stoker.formats.registry import tool_names


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("qwen3-0.6b", "llama-3.1-8b", "llama-3.1-70b"):
        write_config(tmp_path / name, name)
        text = f"model: {{model: ./{name}, skip_tokenizer_init: true}}\nload: {{load_format: dummy}}\n"
        Path(f"{name}.yaml").write_text(text)


def plan(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["plan", *words])
    code = caught.value.code
    assert isinstance(code, int)
    return code


def test_a_deployment_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("llama-3.1-8b.yaml", "--device-profile", "h100-80gb") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llama-3.1-8b.yaml on NVIDIA H100 80GB: fits"
    assert "  weights       14.96 GiB in bfloat16" in lines


def test_one_that_does_not_fit_ends_with_4_and_says_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("llama-3.1-70b.yaml", "--device-profile", "h100-80gb") == 4
    out = capsys.readouterr().out
    assert out.startswith("llama-3.1-70b.yaml on NVIDIA H100 80GB: does not fit\n  the weights alone need 131.42 GiB")
    assert "  1. weights in FP8\n     price: " in out


def test_overrides_change_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("qwen3-0.6b.yaml", "--max-model-len", "1024", "--max-num-seqs", "2", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "fits"
    assert answer["max_model_len"] == 1024
    assert answer["memory"]["kv_cache_bytes"] == 2 * 1024 * 114688
    assert answer["sequences_by_context"]["1024"] == 2


def test_a_model_that_only_embeds_has_no_cache_no_chat_and_no_sampling(capsys: pytest.CaptureFixture[str]) -> None:
    write_config(Path("bert"), NATIVE["bge-m3"][0])
    options = ("--load-format", "dummy", "--skip-tokenizer-init")
    assert plan("--model", "./bert", *options) == 0
    out = capsys.readouterr().out
    assert "  embed         1024 elements, pooled: cls; normalize" in out.splitlines()
    assert "  in a step     64 texts, 8192 tokens together" in out.splitlines()
    for word in ("KV cache", "chat template", "decode", "sampling", "paged_attention", "grammars", "sequences "):
        assert word not in out.partition("decided for you")[0], word
    assert "attend_whole" in out


def test_replicas_share_a_cpu_and_have_a_gpu_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpu = "{title: Some CPU, kind: cpu, memory: 64GiB, bandwidth_gb_per_s: 100, bf16_tflops: 2}"
    (tmp_path / "cpu.yaml").write_text(cpu)
    for device, memory in (("cpu.yaml", 16 << 30), ("h100-80gb", None)):
        found = []
        for number in ("1", "4"):
            assert plan("qwen3-0.6b.yaml", "--device-profile", device, "-dp", number, "-o", "json") == 0
            found.append(json.loads(capsys.readouterr().out))
        assert [answer["num_replicas"] for answer in found] == [1, 4]
        alone, shared = (answer["memory"] for answer in found)
        assert shared["memory_bytes"] == (memory or alone["memory_bytes"])
        assert shared["weights_bytes"] == alone["weights_bytes"]
    assert plan("qwen3-0.6b.yaml", "--device-profile", "cpu.yaml", "-dp", "4") == 0
    assert "4, an equal share of this machine each; together " in capsys.readouterr().out
    assert plan("qwen3-0.6b.yaml", "--device-profile", "cpu.yaml", "-dp", "4", "-dpl", "2", "-dpb", "ray") == 0
    said = "4, on the machines of Ray; decided for 2 on a machine like this one, which need "
    assert said in capsys.readouterr().out


def test_several_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("llama-3.1-70b.yaml", "--device-profile", "h200", "--devices", "8")
    assert plan(*words) == 0
    out = capsys.readouterr().out
    assert out.startswith("llama-3.1-70b.yaml on NVIDIA H200 141GB: fits\n")
    assert re.search(r"\n  > +2 +1 +4 +65\.71 GiB ", out)
    assert "\n     parallel: {tensor_parallel_size: 2, data_parallel_size: 4}\n" in out
    assert "; one does not: the weights alone need 131.42 GiB" in out
    assert plan(*words, "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["distribution"]["chosen"] == 1
    assert answer["distribution"]["placements"][1]["weights_bytes"] == answer["memory"]["weights_bytes"]
    assert plan("llama-3.1-70b.yaml", "--device-profile", "l4", "--devices", "2") == 4


def test_processes_that_compute_a_model_have_stages_and_experts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(SHAPES["qwen3-30b-a3b"][0]))
    Path("experts.yaml").write_text("model: {model: ./model, skip_tokenizer_init: true}\nload: {load_format: dummy}\n")
    cpu = "{title: Some CPU, kind: cpu, memory: 256GiB, bandwidth_gb_per_s: 100, bf16_tflops: 2}"
    (tmp_path / "cpu.yaml").write_text(cpu)
    words = ("experts.yaml", "--device-profile", str(tmp_path / "cpu.yaml"), "-tp", "4", "-pp", "2", "-ep")
    plan(*words)
    said = "8 compute a model together in 2 stages, each with 32 of 128 experts; all other numbers are of one"
    assert f"  processes     {said}" in capsys.readouterr().out.splitlines()
    moving = ("--enable-eplb", "--eplb-config.num_redundant_experts", "8")
    plan(*words, *moving)
    lines = capsys.readouterr().out.splitlines()
    said = said.replace("32 of 128 experts", "34 of 128 experts and 8 redundant ones")
    assert f"  processes     {said}" in lines
    assert "  experts       315 MiB while they move" in lines  # 34 that arrive and one more, 9 MiB each in bfloat16
    plan(*words, "--nnodes", "2", "--master-addr", "10.0.0.1")
    assert "  nodes         node 0 has rank 0 to 3; node 1 has rank 4 to 7" in capsys.readouterr().out.splitlines()
    plan(*words[:-3], "-o", "json")
    divided = json.loads(capsys.readouterr().out)
    plan(*words, "-o", "json")
    staged = json.loads(capsys.readouterr().out)
    assert 0.5 < staged["memory"]["weights_bytes"] / divided["memory"]["weights_bytes"] < 0.53


def test_replicas_that_share_experts_hold_them_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 48 layers with 128 experts of 3 matrices of 768 x 2048, in bfloat16; a token is written once, and twice
    what the experts add, of 2048 elements; and 8 ids and weights of experts."""
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps(SHAPES["qwen3-30b-a3b"][0]))
    Path("experts.yaml").write_text("model: {model: ./model, skip_tokenizer_init: true}\nload: {load_format: dummy}\n")
    cpu = "{title: Some CPU, kind: cpu, memory: 512GiB, bandwidth_gb_per_s: 100, bf16_tflops: 2}"
    (tmp_path / "cpu.yaml").write_text(cpu)
    words = ("experts.yaml", "--device-profile", str(tmp_path / "cpu.yaml"), "-dp", "2")
    plan(*words, "-ep")
    lines = capsys.readouterr().out.splitlines()
    said = "64 of 128 experts in each replica; 97 exchanges a step through shared memory, 579 KiB a token"
    assert f"  experts       {said}" in lines
    assert any(line.startswith("  graphs        ") and "for captured steps" in line for line in lines)
    each: list[dict[str, Any]] = []
    for more in ((), ("-ep",)):
        plan(*words, *more, "-o", "json")
        each.append(json.loads(capsys.readouterr().out))
    apart, together = each
    saved = apart["memory"]["weights_bytes"] - together["memory"]["weights_bytes"]
    assert saved == pytest.approx(48 * 64 * 3 * 768 * 2048 * 2, rel=1e-6)
    assert apart["memory"]["graphs"]["high"] == 0
    assert together["memory"]["graphs"]["high"] > 383 * 48 * 4096  # the numbers of tokens: test_estimate.py
    assert apart["sharing"] is None
    assert together["sharing"] == {"num_exchanges": 97, "bytes_per_token": 48 * (3 * 2048 * 2 + 8 * 8)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--devices", "2"), "--devices plans for several GPUs: name one with --device-profile"),
        (("--device-profile", "h200", "--devices", "12"), "12 devices are no number of whole nodes of 8"),
        (("--device-profile", "h200", "--devices", "2", "-dp", "4"), "4 replicas need more than 2 devices"),
    ],
)
def test_numbers_of_devices_that_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan("qwen3-0.6b.yaml", *words) == 2
    assert message in capsys.readouterr().err


def test_json_tells_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("qwen3-0.6b.yaml", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["format_version"] == 1
    assert answer["model"]["num_parameters"] == 596_049_920
    assert answer["kv_cache"]["layers"] == [{"kind": "full", "count": 28, "bytes": 4096, "window": 0}]
    assert answer["kernels"].keys() >= {"linear", "paged_attention"}
    decided = {entry["path"]: entry for entry in answer["decided"]}
    assert decided["model.dtype"]["value"] == "bfloat16"
    assert decided["model.dtype"]["why"].startswith("auto, R051: the checkpoint's own format")


def test_the_model_of_the_package_is_planned_with_its_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--model", "builtin:tiny", "-o", "json") == 0
    forms = json.loads(capsys.readouterr().out)["chat_template"]
    assert (forms["tool_calls"], forms["reasoning"]) == ("hermes", "<think>..</think>")


@pytest.mark.effect("server.chat_template")
def test_a_template_of_the_deployment_is_looked_at_instead(capsys: pytest.CaptureFixture[str]) -> None:
    template = "{{ messages[0].content }}[TOOL_CALLS]"
    assert plan("--model", "builtin:tiny", "--chat-template", template, "-o", "json") == 0
    forms = json.loads(capsys.readouterr().out)["chat_template"]
    assert (forms["source"], forms["tool_calls"], forms["reasoning"]) == ("server.chat_template", "off", "off")
    assert "the template does not write the calls" in forms["warnings"][0]


def test_an_estimate_blocks_only_when_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.yaml").write_text("{name: small, memory: 1900MiB, bandwidth_gb_per_s: 300, bf16_tflops: 50}")
    words = ("qwen3-0.6b.yaml", "--max-model-len", "1024", "--device-profile", "small.yaml")
    assert plan(*words) == 0
    assert "on small: may not fit" in capsys.readouterr().out
    assert plan(*words, "--strict-fit") == 4


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "nothing to plan"),
        (("qwen3-0.6b.yaml", "-o", "xml"), 2, "'xml' is not one of 'text', 'json'"),
        (("qwen3-0.6b.yaml", "--device-profile", "h1000"), 2, "no device profile `h1000`; did you mean h100-80gb"),
        (("--model", "owner/absent"), 3, "owner/absent: not on this machine"),
        (("--model", "./nowhere"), 3, "nowhere"),
        (("qwen3-0.6b.yaml", "--max-num-seqs", "none"), 78, "max_num_seqs"),
        (("qwen3-0.6b.yaml", "--max-model-len", "999999999"), 78, "R205"),
    ],
)
def test_what_cannot_be_planned_is_said_with_its_code(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, said: str
) -> None:
    assert plan(*words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


@pytest.mark.slow
def test_no_torch_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom stoker.cli.flags.checking import PlanFlags\nfrom stoker.cli.plan import run\n"
        "code = run(['llama-3.1-8b.yaml'], [], PlanFlags(device_profile='h100-80gb'))\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules), 'torch'\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_kernels_are_those_that_the_engine_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    from stoker.engine.kernels import select_kernels

    assert plan("qwen3-0.6b.yaml", "-o", "json") == 0
    planned = json.loads(capsys.readouterr().out)["kernels"]
    import torch

    chosen = select_kernels("cpu", torch.bfloat16, 128).table
    assert {stage: re.sub(r", compiled in [\d.]+ s", "", said) for stage, said in chosen.items()} == planned


def test_calibration_before_the_first_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    assert plan("--calibration") == 0
    assert "nothing measured yet" in capsys.readouterr().out


def test_a_gpu_that_is_not_here_is_no_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Once the plan was that of the CPU, with its kernels and its speed, and said that the deployment fits."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert plan("qwen3-0.6b.yaml", "--device", "cuda") == 4
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(
        "error[R227]: `device.device` is cuda, and this machine has no GPU: CUDA_VISIBLE_DEVICES is `-1`"
    )
    assert "engine plan --device-profile h200" in err
    assert plan("qwen3-0.6b.yaml", "--device", "cuda", "--device-profile", "h200") == 0
    assert not capsys.readouterr().err  # what this machine lacks says nothing of that one


def test_an_interpreter_has_neither_the_kernels_nor_the_speed_of_its_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once weights were counted in 12 bits, and in bfloat16, though what would run was float32."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert plan("qwen3-0.6b.yaml", "--device", "cuda", "--max-num-seqs", "2", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["device"]["title"].endswith(", Triton's interpreter")
    assert (answer["kernels"], answer["speed"]) == ({}, None)
    assert (answer["assumed"]["dtype"], answer["assumed"]["keeps_twelve_bits"]) == ("float32", False)
    assert answer["memory"]["weights_bytes"] == 4 * 596_049_920


@pytest.fixture
def two_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine, with the nodes of another one."""
    root = tmp_path / "machine"
    nodes = {0: Node("0-15,32-47"), 1: Node("16-31,48-63", free=20)}
    monkeypatch.setattr(
        "stoker.cli.plan.read_machine_spec", lambda: read_machine_spec(machine(root, nodes, siblings=32))
    )


@pytest.mark.usefixtures("two_sockets")
def test_it_says_where_bound_processes_are_and_what_their_nodes_hold(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("llama-3.1-8b.yaml", "-tp", "2", "--numa-bind", "--device", "cpu", "--max-model-len", "8192")
    assert plan(*words, "--max-num-seqs", "4", "--kv-cache-memory-bytes", "4GiB") == 0
    out = capsys.readouterr().out
    section = out[out.index("NUMA nodes\n") : out.index("capacity\n")].splitlines()
    assert section[1:3] == [
        "  rank 0        node 0, cores 0-15,32-47 (32)",
        "  rank 1        node 1, cores 16-31,48-63 (32)",
    ]
    assert re.match(
        r"  node 0        48\.00 GiB free; 1 process, which needs .* likely 1\d\.\d\d GiB; leaves about 3", section[3]
    )
    assert re.match(r"  node 1        28\.00 GiB free; 1 process, which needs .*; leaves about 1", section[4])
    assert re.search(r"  device\.numa_bind_nodes +\[0, 1\]  \(auto, R433: ", out)


def test_a_node_has_no_more_than_the_container_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is free on the node was shown, beside the container's limit in the section above."""
    files = {"memory.max": 16 << 30, "memory.current": 1 << 30}
    root = machine(tmp_path / "machine", {0: Node("0-15")})
    (root / "proc/meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemAvailable: {48 << 20} kB\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for name, size in files.items():
        (root / "sys/fs/cgroup" / name).write_text(str(size))
    monkeypatch.setattr("stoker.cli.plan.read_machine_spec", lambda: read_machine_spec(root, "Linux"))
    assert plan("--model", "builtin:tiny", "--numa-bind", "--device", "cpu", "-o", "json") == 0
    (node,) = json.loads(capsys.readouterr().out)["numa"]["nodes"]
    assert node["available_bytes"] == 15 << 30


@pytest.mark.usefixtures("two_sockets")
def test_a_node_that_is_too_small_is_no_fit(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("llama-3.1-8b.yaml", "-tp", "2", "--numa-bind", "--device", "cpu", "--kv-cache-memory-bytes", "30GiB")
    assert plan(*words, "-o", "json") == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "does not fit"
    assert "28.00 GiB for each of 2 processes on its NUMA node" in answer["reason"]
    node = answer["numa"]["nodes"][1]
    assert (node["number"], node["num_processes"], node["available_bytes"]) == (1, 1, 28 << 30)
    assert node["needed"]["likely"] > 28 << 30


@pytest.mark.parametrize("parser", ["auto", "none", *tool_names()])
@pytest.mark.quick_cases(8)
def test_every_parser_is_planned_without_a_chat_template(parser: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten of eleven names ended with a traceback (StopIteration)."""
    for reasoning in ("auto", "qwen3"):
        words = ("--tool-call-parser", parser, "--reasoning-parser", reasoning, "--device-profile", "h200")
        assert plan("qwen3-0.6b.yaml", *words) == 0, capsys.readouterr().err


def test_a_format_of_weights_that_are_not_here_is_not_given_the_reason_of_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was: no safetensors, but files of torch, read as data."""
    assert plan("qwen3-0.6b.yaml", "--load-format", "auto", "-o", "json") == 0
    decided = {entry["path"]: entry for entry in json.loads(capsys.readouterr().out)["decided"]}
    assert "no weight files on this machine" in decided["load.load_format"]["why"]


def test_json_has_the_decided_values_of_a_profile_with_their_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    """`decided` was empty, and the text had values without reasons, in Python's spelling."""
    for words in (("--device-profile", "h200"), ("--device-profile", "h200", "--devices", "2"), ()):
        assert plan("qwen3-0.6b.yaml", *words, "-o", "json") == 0
        decided = json.loads(capsys.readouterr().out)["decided"]
        assert {"model.dtype", "cache.block_size", "scheduler.max_num_seqs", "model.max_model_len"} <= {
            each["path"] for each in decided
        }
        assert all(each["why"] for each in decided)
        assert not {"True", "False", "None"} & {each["value"] for each in decided}
        assert plan("qwen3-0.6b.yaml", *words) == 0
        text = capsys.readouterr().out
        assert all(f"{each['value']}  (" in text for each in decided)


def test_rules_are_about_the_device_of_the_profile(capsys: pytest.CaptureFixture[str]) -> None:
    """On a machine without a GPU a plan for one said: write int8, and: 8 processes share 2 cores."""
    words = ("llama-3.1-70b.yaml", "--kv-cache-dtype", "fp8", "--tensor-parallel-size", "8")
    assert plan(*words, "--device-profile", "h100-80gb") == 0
    assert capsys.readouterr().err == ""
    assert plan(*words, "--device-profile", "a100-80gb") == 0
    assert "R235" in capsys.readouterr().err


def test_a_quantisation_that_the_checkpoint_does_not_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """`--quantization fp8` was accepted, and bfloat16 was counted."""
    assert plan("llama-3.1-70b.yaml", "--quantization", "fp8", "--device-profile", "h200") == 3
    assert "no quantised checkpoint" in capsys.readouterr().err


def test_a_long_plan_ends_with_its_result_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict scrolled away, and lines were cut in the middle of words."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    monkeypatch.setenv("NO_COLOR", "1")
    assert plan("qwen3-0.6b.yaml", "--device-profile", "h200") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("qwen3-0.6b.yaml on NVIDIA H200 141GB: fits")
    assert lines[-1].startswith("  weights 1.11 GiB, KV cache ")
    texts = [line for line in lines if not re.search(r"\S{40}|\d  +\d", line)]  # no long paths, no tables
    assert max(map(len, texts)) <= 80


def test_the_help_lists_all_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    """It said: such as h100-80gb. A name of another spelling has two suggestions, and the list too."""
    assert plan("--help") == 0
    shown = " ".join(re.sub(r"[^\w. -]", " ", capsys.readouterr().out).split())
    assert all(name in shown for name in profiles())
    assert plan("qwen3-0.6b.yaml", "--device-profile", "h200-141gb") == 2
    said = capsys.readouterr().err
    assert "did you mean h200; there are: this-machine, t4" in said


def test_a_gguf_file_without_a_suffix_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of Ollama's storage was: a file; expected a directory with config.json."""
    file, _ = write_gguf(Path(stoker.builtin.__file__).parent / "tiny", tmp_path / "written")
    blob = file.rename(tmp_path / "sha256-0123")
    for words in ((), ("--load-format", "gguf")):
        assert plan("--model", str(blob), "--skip-tokenizer-init", *words) == 0
        assert re.fullmatch(rf"{blob} on .*: fits", capsys.readouterr().out.splitlines()[0])
