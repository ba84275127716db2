"""The tables of other engines' options."""

from __future__ import annotations

import pytest

from stoker.config.importer import environment, infinity, llama_cpp, ollama, sglang, tei, tgi
from stoker.config.importer.read import import_script, import_words
from stoker.config.schema.options import options

TABLES = {
    "sglang": sglang.TABLE,
    "llama.cpp": llama_cpp.TABLE,
    "tgi": tgi.TABLE,
    "tei": tei.TABLE,
    "infinity": infinity.TABLE,
    "ollama": ollama.TABLE,
    "": environment.VARIABLES,
}
ENTRIES = [(name, found) for table in TABLES.values() for name, found in table.items()]


def test_every_entry_leads_to_an_option_or_says_why_not() -> None:
    for name, found in ENTRIES:
        if found.path:
            option = options()[".".join(found.path.split(".")[:2])]
            assert option.kind == "mapping" or option.is_secret or found.path == option.path, name
        else:
            assert found.says, name
        for path, _ in (*found.also, *found.elsewhere.values()):
            assert path in options(), name


def test_a_name_that_an_entry_mentions_exists() -> None:
    for name, found in ENTRIES:
        for word in found.says.split("`")[1::2]:
            path = word.partition(":")[0].split(" ")[0]
            section, _, key = path.partition(".")
            if key.isidentifier() and section.isidentifier() and not key.isupper():
                assert path in options(), f"{name} mentions {word}"


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["--tp-size", "1"], "parallel.tensor_parallel_size", 1),
        (["--tp=1"], "parallel.tensor_parallel_size", 1),
        (["--ep-size", "4"], "parallel.enable_expert_parallel", True),
        (["--ep", "1"], "parallel.enable_expert_parallel", False),
        (["--enable-eplb"], "parallel.enable_eplb", True),
        (["--ep-num-redundant-experts", "4"], "parallel.eplb_config", {"num_redundant_experts": 4}),
        (["--mem-fraction-static", ".5"], "cache.gpu_memory_utilization", 0.5),
        (["--dtype", "float"], "model.dtype", "float32"),
        (["--disable-radix-cache", "--host", "::1"], "cache.enable_prefix_caching", False),
        (["--sampling-defaults", "openai"], "model.generation_config", "none"),
        (["--nnodes", "2"], "parallel.nnodes", 2),
        (["--node-rank", "1"], "parallel.node_rank", 1),
        (["--dist-init-addr", "10.0.0.1:5000"], "parallel.master_addr", "10.0.0.1"),
        (["--dist-init-addr", "10.0.0.1:5000"], "parallel.master_port", 5000),
        (["--enable-priority-scheduling"], "scheduler.scheduling_policy", "priority"),
        (["--json-model-override-args", '{"a": 1}'], "model.hf_overrides", {"a": 1}),
        (["--log_level", "warn"], "server.log_level", "warning"),
        (["--chunked-prefill-size", "4k"], "scheduler.max_num_batched_tokens", "4k"),
        (["--disable-cuda-graph"], "compilation.level", 0),
        (["--cuda-graph-bs", "1", "2", "4"], "compilation.cudagraph_capture_sizes", [1, 2, 4]),
        (["--cuda-graph-max-bs", "64"], "scheduler.cuda_graph_sizes", [64]),
        (["--chunked-prefill-size", "-1"], "scheduler.enable_chunked_prefill", False),
        (["--kv-events-config", '{"publisher": "zmq"}'], "kv_events.enable_kv_cache_events", True),
        (["--kv-events-config", '{"endpoint": "tcp://*:5600"}'], "kv_events.endpoint", "tcp://*:5600"),
        (["--kv-events-config", '{"buffer_steps": 7}'], "kv_events.buffer_steps", 7),
    ],
)
def test_sglang(words: list[str], path: str, value: object) -> None:
    assert import_words(words, "sglang").values[path].plain() == value


def test_attention_by_replica_of_sglang_has_the_options_that_do_it() -> None:
    """The reason was that this build serves from one machine."""
    (left,) = import_words(["--model-path", "x", "--enable-dp-attention"], "sglang").left
    assert left.path == ""
    for option in ("`parallel.data_parallel_size`", "`parallel.enable_expert_parallel`"):
        assert option in left.reason


@pytest.mark.parametrize("text", ["{", "[1]", '{"unknown_key": 1}'])
def test_a_section_of_sglang_that_is_not_understood_is_left_out(text: str) -> None:
    draft = import_words(["--kv-events-config", text], "sglang")
    assert not [path for path in draft.values if path.startswith("kv_events.")]
    assert [left.path for left in draft.left] == ["kv_events.enable_kv_cache_events"]


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["-c", "0"], "model.max_model_len", "auto"),
        (["-hf", "user/repo-GGUF:Q4_K_M"], "model.model", "user/repo-GGUF:Q4_K_M"),
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


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["--model-id", "org/model"], "model.model", "org/model"),
        (["--max-total-tokens", "4096"], "model.max_model_len", 4096),
        (["--max-batch-prefill-tokens=2048"], "scheduler.max_num_batched_tokens", 2048),
        (["--cuda-graphs", "1,2,4"], "scheduler.cuda_graph_sizes", [1, 2, 4]),
        (["--num-shard", "1"], "parallel.tensor_parallel_size", 1),
        (["-p", "3000"], "server.port", 3000),
        (["--json-output"], "server.log_format", "json"),
        (["--payload-limit", "2000000"], "server.max_request_bytes", 2000000),
    ],
)
def test_tgi(words: list[str], path: str, value: object) -> None:
    assert import_words(words, "tgi").values[path].plain() == value


def test_tgi_reads_its_options_from_variables_too() -> None:
    line = "docker run -e MODEL_ID=org/model -e NUM_SHARD=1 ghcr.io/huggingface/text-generation-inference:3 --port 80"
    draft = import_script(line)
    assert draft.engine == "tgi"
    assert {path: node.plain() for path, node in draft.values.items()} == {
        "model.model": "org/model",
        "parallel.tensor_parallel_size": 1,
        "server.port": 80,
    }


MODELFILE = """\
# a comment
FROM hf.co/org/model:Q4_K_M
PARAMETER temperature 0.7
parameter num_ctx 8192
PARAMETER num_predict -1
PARAMETER stop "<|im_end|>"
PARAMETER frobnicate 3
TEMPLATE \"\"\"{{ if .System }}system
# not a comment
{{ end }}\"\"\"
SYSTEM You cost $5.
MESSAGE user Hello
ADAPTER ./lora
LICENSE \"\"\"
MIT\"\"\"
"""


def test_a_modelfile_of_ollama() -> None:
    """Its name or --from says what it is: a Dockerfile begins with FROM too."""
    draft = import_script(MODELFILE, "models/Modelfile")
    assert draft.engine == import_script(MODELFILE, engine="ollama").engine == "ollama"
    assert {path: node.plain() for path, node in draft.values.items()} == {
        "model.model": "org/model:Q4_K_M",
        "model.max_model_len": 8192,
        "model.override_generation_config": {"temperature": 0.7},
    }
    kinds = {left.written.strip("'").split(" ")[0]: left.kind for left in draft.left if "PARAMETER" not in left.written}
    assert kinds == {
        "TEMPLATE": "no counterpart",
        "SYSTEM": "no counterpart",
        "MESSAGE": "no counterpart",
        "ADAPTER": "no counterpart",
        "LICENSE": "needless",
    }
    parameters = {
        left.written.strip("'").split(" ")[1]: left.kind for left in draft.left if "PARAMETER" in left.written
    }
    assert parameters == {"num_predict": "needless", "stop": "no counterpart", "frobnicate": "unknown"}


@pytest.mark.parametrize(
    ("named", "model"),
    [("./folder", "./folder"), ("/models/x.gguf", "/models/x.gguf"), ("llama3.2:3b", None), ("$HOME", None)],
)
def test_the_model_of_a_modelfile(named: str, model: str | None) -> None:
    draft = import_script(f"FROM {named}", engine="ollama")
    node = draft.values.get("model.model")
    assert (node and node.plain()) == model
    assert model or "Ollama's library" in draft.left[0].reason


@pytest.mark.parametrize(
    ("line", "environ", "names"),
    [
        ("vllm serve m", {"VLLM_API_KEY": "sk-1"}, ("VLLM_API_KEY",)),
        ("vllm serve m --api-key $KEY", {"VLLM_API_KEY": "sk-1"}, ("KEY",)),
        ("vllm serve m", {"VLLM_API_KEY": ""}, None),
        ("sglang serve --model-path m", {"VLLM_API_KEY": "sk-1"}, None),
        ("docker run vllm/vllm-openai --model m", {"VLLM_API_KEY": "sk-1"}, None),
    ],
)
def test_the_key_in_the_environment_of_the_import(line: str, environ: dict[str, str], names: tuple[str] | None) -> None:
    draft = import_script(line, environ=environ)
    assert draft.secrets.get("server.api_key") == names
    assert "sk-1" not in str(draft.notes) + str(draft.remarks)


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["--model-id", "BAAI/bge-base-en-v1.5"], "model.model", "BAAI/bge-base-en-v1.5"),
        (["--pooling", "last-token"], "model.pooler_config", {"pooling_type": "LAST"}),
        (["--dtype", "float16"], "model.dtype", "float16"),
        (["--max-batch-tokens", "16384"], "scheduler.max_num_batched_tokens", 16384),
        (["--max-batch-requests=8"], "scheduler.max_num_seqs", 8),
        (["--cors-allow-origin", "https://a.example,https://b.example"], "server.allowed_origins",
         ["https://a.example", "https://b.example"]),
    ],
)  # fmt: skip
def test_tei(words: list[str], path: str, value: object) -> None:
    assert import_words(words, "tei").values[path].plain() == value


@pytest.mark.parametrize(
    "line",
    [
        "text-embeddings-router --model-id org/model --port 80 --auto-truncate",
        "docker run --gpus all -p 8080:80 -v /data:/data --pull always "
        "ghcr.io/huggingface/text-embeddings-inference:1.9 --model-id org/model --port 80 --auto-truncate",
        "docker run -e MODEL_ID=org/model -e PORT=80 -e AUTO_TRUNCATE=true "
        "ghcr.io/huggingface/text-embeddings-inference:cpu-1.9",
    ],
)
def test_tei_is_known_by_its_program_and_its_image(line: str) -> None:
    draft = import_script(line)
    assert draft.engine == "tei"
    assert {path: node.plain() for path, node in draft.values.items()} == {
        "model.model": "org/model",
        "server.port": 80,
    }
    assert {left.kind for left in draft.left} == {"needless"}
    assert any("listens on every address" in note for note in draft.notes)


@pytest.mark.parametrize("words", [["--pooling", "splade"], ["--default-prompt-name", "query"]])
def test_what_tei_does_and_no_option_says_is_named(words: list[str]) -> None:
    (left,) = import_words(["--model-id", "x", *words], "tei").left
    assert left.kind == "no counterpart"
    assert left.reason


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["--model-id", "BAAI/bge-small-en-v1.5"], "model.model", "BAAI/bge-small-en-v1.5"),
        (["--device", "cuda"], "device.device", "cuda"),
        (["--batch-size", "64"], "scheduler.max_num_seqs", 64),
        (["--pooling-method", "cls"], "model.pooler_config", {"pooling_type": "CLS"}),
        (["--permissive-cors"], "server.allowed_origins", ["*"]),
        (["--proxy-root-path", "/x"], "server.root_path", "/x"),
    ],
)
def test_infinity(words: list[str], path: str, value: object) -> None:
    assert import_words(words, "infinity").values[path].plain() == value


@pytest.mark.parametrize(
    "line",
    [
        "infinity_emb v2 --model-id org/model --port 7997 --engine torch --no-bettertransformer",
        "python -m infinity_emb v2 --model-id org/model --port 7997",
        "docker run -it --gpus all -p 7997:7997 michaelf34/infinity:0.0.77 v2 --model-id org/model --port 7997",
        "INFINITY_MODEL_ID=org/model INFINITY_PORT=7997 infinity_emb v2",
    ],
)
def test_infinity_is_known_by_its_program_and_its_image(line: str) -> None:
    draft = import_script(line)
    assert draft.engine == "infinity"
    assert {path: node.plain() for path, node in draft.values.items()} == {
        "model.model": "org/model",
        "server.port": 7997,
    }
    assert {left.kind for left in draft.left} <= {"needless"}
