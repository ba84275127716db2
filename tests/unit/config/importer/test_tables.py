"""The tables of other engines' options."""

from __future__ import annotations

import pytest

from stoker.config.importer import environment, llama_cpp, sglang
from stoker.config.importer.counterparts import Counterpart
from stoker.config.importer.read import import_words
from stoker.config.schema.options import options

TABLES = {"sglang": sglang.TABLE, "llama.cpp": llama_cpp.TABLE, "": environment.VARIABLES}
ENTRIES = [(name, found) for table in TABLES.values() for name, found in table.items()]


@pytest.mark.parametrize(("name", "found"), ENTRIES, ids=[name for name, _ in ENTRIES])
def test_every_entry_leads_to_an_option_or_says_why_not(name: str, found: Counterpart) -> None:
    if found.path:
        option = options()[".".join(found.path.split(".")[:2])]
        assert option.kind == "mapping" or found.path == option.path
    else:
        assert found.says
    for path, _ in (*found.also, *found.elsewhere.values()):
        assert path in options()


@pytest.mark.parametrize(("name", "found"), ENTRIES, ids=[name for name, _ in ENTRIES])
def test_a_name_that_an_entry_mentions_exists(name: str, found: Counterpart) -> None:
    for word in found.says.split("`")[1::2]:
        path = word.partition(":")[0].split(" ")[0]
        section, _, key = path.partition(".")
        if key.isidentifier() and section.isidentifier() and not key.isupper():
            assert path in options(), word


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["--tp-size", "1"], "parallel.tensor_parallel_size", 1),
        (["--tp=1"], "parallel.tensor_parallel_size", 1),
        (["--mem-fraction-static", ".5"], "cache.gpu_memory_utilization", 0.5),
        (["--dtype", "float"], "model.dtype", "float32"),
        (["--disable-radix-cache", "--host", "::1"], "cache.enable_prefix_caching", False),
        (["--sampling-defaults", "openai"], "model.generation_config", "vllm"),
        (["--enable-priority-scheduling"], "scheduler.scheduling_policy", "priority"),
        (["--json-model-override-args", '{"a": 1}'], "model.hf_overrides", {"a": 1}),
        (["--log_level", "warn"], "server.log_level", "warning"),
        (["--chunked-prefill-size", "4k"], "scheduler.max_num_batched_tokens", "4k"),
        (["--disable-cuda-graph"], "compilation.level", 0),
        (["--cuda-graph-bs", "1", "2", "4"], "compilation.cudagraph_capture_sizes", [1, 2, 4]),
        (["--cuda-graph-max-bs", "64"], "scheduler.cuda_graph_sizes", [64]),
        (["--chunked-prefill-size", "-1"], "scheduler.enable_chunked_prefill", False),
    ],
)
def test_sglang(words: list[str], path: str, value: object) -> None:
    assert import_words(words, "sglang").values[path].plain() == value


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["-c", "0"], "model.max_model_len", "auto"),
        (["-hf", "user/repo-GGUF:Q4_K_M"], "model.model", "user/repo-GGUF"),
        (["--ctx-size", "4096"], "model.max_model_len", 4096),
        (["-np", "4"], "scheduler.max_num_seqs", 4),
        (["--parallel", "4"], "scheduler.max_num_seqs", 4),
        (["-a", "x,y"], "model.served_model_name", ["x", "y"]),
        (["--temp", "0"], "model.override_generation_config", {"temperature": 0}),
        (["-n", "64"], "model.override_generation_config", {"max_new_tokens": 64}),
        (["-n", "-1", "--temp", "0"], "model.override_generation_config", {"temperature": 0}),
        (["--no-cache-prompt"], "cache.enable_prefix_caching", False),
        (["-v"], "server.log_level", "debug"),
    ],
)
def test_llama_cpp(words: list[str], path: str, value: object) -> None:
    assert import_words(words, "llama.cpp").values[path].plain() == value


@pytest.mark.parametrize("words", [["-s", "-1"], ["-fa"], ["-fa", "on"], ["-cb"], ["--mlock"]])
def test_what_needs_no_option_is_not_counted_as_lost(words: list[str]) -> None:
    (left,) = import_words(["-m", "x", *words], "llama.cpp").left
    assert left.kind == "needless"
