from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.config import ModelFiles, ModelFilesError, load_deployment, read_model_files
from stoker.config.checkpoint.model_files import is_gguf
from stoker.config.examine import report_on
from stoker.model.cache_groups import kv_bytes_per_token, model_cache_groups
from stoker.model.feed_forwards import MLP
from stoker.model.mixers import Attention, RopeSpec
from stoker.model.sizes import count_parameters, weights_bytes

from ..deployments import MACHINE
from ..model_files import write_model

LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


def model_files(folder: Path, *words: str, dtype: str = "BF16", **changes: Any) -> ModelFiles:
    write_model(folder, dtype, **changes)
    return read_model_files(load_deployment([], ["--model", str(folder), *words], {}))


def shape(architecture: str, **values: Any) -> dict[str, Any]:
    """A config.json of which everything else is left to the family's defaults."""
    return {"architectures": [architecture], **values}


def rope_of(files: ModelFiles) -> RopeSpec | None:
    assert files.spec.attention is not None
    return files.spec.attention.rope


def written(folder: Path, config: dict[str, Any]) -> ModelFiles:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    words = ["--model", str(folder), "--load-format", "dummy", "--skip-tokenizer-init"]
    return read_model_files(load_deployment([], words, {}))


@pytest.mark.parametrize(
    ("config", "num_parameters"),
    [
        (
            shape(
                "Qwen3ForCausalLM",
                hidden_size=1024,
                intermediate_size=3072,
                num_hidden_layers=28,
                num_attention_heads=16,
                num_key_value_heads=8,
                tie_word_embeddings=True,
            ),
            596_049_920,
        ),
        (
            shape(
                "Qwen2ForCausalLM",
                hidden_size=896,
                intermediate_size=4864,
                num_hidden_layers=24,
                num_attention_heads=14,
                num_key_value_heads=2,
                tie_word_embeddings=True,
            ),
            494_032_768,
        ),
        (
            shape(
                "LlamaForCausalLM",
                vocab_size=128256,
                hidden_size=2048,
                intermediate_size=8192,
                num_hidden_layers=16,
                num_key_value_heads=8,
                head_dim=64,
                tie_word_embeddings=True,
            ),
            1_235_814_400,
        ),
        (shape("MistralForCausalLM"), 7_241_732_096),
    ],
)
def test_parameters_are_counted_as_published(tmp_path: Path, config: dict[str, Any], num_parameters: int) -> None:
    """Qwen3-0.6B, Qwen2.5-0.5B, Llama-3.2-1B, Mistral-7B-v0.1."""
    assert count_parameters(written(tmp_path, config).spec).total == num_parameters


def test_kv_bytes_are_keys_and_values_of_every_layer(tmp_path: Path) -> None:
    spec = model_files(tmp_path).spec
    groups = model_cache_groups(spec, 64, is_hybrid=True)
    assert kv_bytes_per_token(spec, "bfloat16", groups) == 2 * 2 * 2 * 8 * 2
    assert kv_bytes_per_token(spec, "float32", groups) == 2 * kv_bytes_per_token(spec, "bfloat16", groups)
    assert weights_bytes(spec, "bfloat16") == 2 * 7856


def test_a_family_knows_its_biases_and_norms(tmp_path: Path) -> None:
    def parts(architecture: str, **values: Any) -> tuple[bool, ...]:
        layer = written(tmp_path, shape(architecture, **values)).spec.layers[0]
        assert isinstance(layer.mixer, Attention)
        assert isinstance(layer.feed_forward, MLP)
        return (
            layer.mixer.has_bias,
            layer.mixer.has_out_bias,
            layer.feed_forward.has_bias,
            layer.mixer.head_norm == "head",
        )

    assert parts("LlamaForCausalLM", attention_bias=True, mlp_bias=True) == (True, True, True, False)
    assert parts("MistralForCausalLM", attention_bias=True) == (False, False, False, False)
    assert parts("Qwen2ForCausalLM") == (True, False, False, False)
    assert parts("Qwen3ForCausalLM", attention_bias=True) == (True, True, False, True)


def test_windows_are_per_layer(tmp_path: Path) -> None:
    def windows(architecture: str, **values: Any) -> tuple[int | None, ...]:
        return written(tmp_path, shape(architecture, num_hidden_layers=3, **values)).spec.windows

    none = (None, None, None)
    assert windows("MistralForCausalLM") == (4096, 4096, 4096)
    assert windows("MistralForCausalLM", sliding_window=None) == none
    assert windows("LlamaForCausalLM", sliding_window=8) == none
    assert windows("Qwen2ForCausalLM", sliding_window=8) == none
    assert windows("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=8, max_window_layers=1) == (
        None,
        8,
        8,
    )
    assert windows(
        "Qwen3ForCausalLM",
        use_sliding_window=True,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ) == (8, None, 8)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "linear", "factor": 2}},
    ],
)
def test_both_spellings_of_rope_are_read(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert rope_of(model_files(tmp_path, **keys)) == RopeSpec(theta=1e6, kind="linear", factor=2)


def test_old_rope_names_override_new_ones(tmp_path: Path) -> None:
    """transformers 5 writes rope_parameters; people still know rope_theta and rope_scaling."""
    new = {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    assert model_files(tmp_path, "--hf-overrides.rope_theta", "5e5", **new).rope_theta == 5e5
    yarn = '{"rope_type": "yarn", "factor": 4}'
    rope = rope_of(model_files(tmp_path, "--hf-overrides.rope_scaling", yarn, **new))
    assert rope == RopeSpec(theta=1e6, kind="yarn", factor=4)


@pytest.mark.effect("model.hf_overrides")
def test_overrides_are_merged_into_config_json(tmp_path: Path) -> None:
    words = ["--hf-overrides", '{"max_position_embeddings": 64, "tokenizr": 1, "deep": {"b": 2}}']
    model = model_files(tmp_path, *words, deep={"a": 1})
    assert model.spec.max_position_embeddings == 64
    assert model.unused_overrides == ("tokenizr",)


@pytest.mark.parametrize(("stored", "name"), [("BF16", "bfloat16"), ("F32", "float32"), ("F16", "float16")])
def test_the_checkpoints_format_is_that_of_its_weights(tmp_path: Path, stored: str, name: str) -> None:
    assert model_files(tmp_path, dtype=stored).checkpoint_dtype == name


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_without_weights_config_json_says_the_format(tmp_path: Path, key: str) -> None:
    assert written(tmp_path, shape("Qwen3ForCausalLM", **{key: "float32"})).checkpoint_dtype == "float32"


@pytest.mark.effect("model.generation_config")
def test_end_ids_of_the_generation_config_come_first(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 5], "temperature": 0.6, "top_k": 20}')
    model = model_files(tmp_path)
    assert model.eos_token_ids == (7, 5)
    assert model.sampling_defaults == {"temperature": 0.6, "top_k": 20}
    assert model_files(tmp_path, "--generation-config", "none").sampling_defaults == {}
    assert model_files(tmp_path, "--generation-config", "none").eos_token_ids == (7, 5)


@pytest.mark.holds("R068")
def test_a_folder_can_bring_other_sampling_defaults(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"max_new_tokens": 9, "do_sample": true}')
    assert model_files(tmp_path / "model", "--generation-config", str(other)).sampling_defaults == {"max_tokens": 9}


def test_a_file_that_does_not_sample_is_greedy(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.6}')
    assert model_files(tmp_path).sampling_defaults == {"temperature": 0.0}


@pytest.mark.effect("model.tokenizer", "model.skip_tokenizer_init")
def test_a_tokenizer_is_needed_unless_skipped(tmp_path: Path) -> None:
    write_model(tmp_path / "a", tokenizer=False)
    with pytest.raises(ModelFilesError, match=r"no tokenizer\.json") as caught:
        read_model_files(load_deployment([], ["--model", str(tmp_path / "a")], {}))
    assert caught.value.code == "M307"
    assert model_files(tmp_path / "a", "--skip-tokenizer-init", tokenizer=False).tokenizer_path is None
    write_model(tmp_path / "b")
    named = model_files(tmp_path / "a", "--tokenizer", str(tmp_path / "b"), tokenizer=False)
    assert named.tokenizer_path == str(tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"architectures": ["RwkvForCausalLM"]},
            "architecture `RwkvForCausalLM` is not supported; docs/reference/models.md",
        ),
        ({"architectures": []}, "`architectures` must list"),
        ({"architectures": None}, "`architectures` must list"),
        ({"quantization_config": {"bits": 4}}, "the quantisation method 'unknown' is not supported"),
        ({"hidden_act": "xielu"}, "`hidden_act` 'xielu' is not supported"),
        ({"num_key_value_heads": 3}, "cannot share 3 key-value heads"),
        ({"hidden_size": "16"}, "`hidden_size` is '16'"),
        ({"hidden_size": 0}, "`hidden_size` is 0"),
        ({"head_dim": 7}, "needs an even one"),
        ({"head_dim": None, "hidden_size": 18}, "no multiple"),
        ({"eos_token_id": -1}, "the vocabulary has 100 tokens"),
        ({"eos_token_id": "5"}, "`eos_token_id` holds '5'"),
        ({"rope_theta": -1}, "`rope_theta` is -1"),
        ({"rope_scaling": 3}, "must be an object"),
        ({"tie_word_embeddings": 1}, "must be true or false"),
        ({"rms_norm_eps": 0}, "must be a number above 0"),
        ({"rms_norm_eps": float("nan")}, "`rms_norm_eps` is nan"),
        ({"rms_norm_eps": 10**400}, "must be a number above 0 and at most 1"),
        ({"num_hidden_layers": 10**9}, "`num_hidden_layers` is 1000000000; it must be a whole number from 1 to 4096"),
        ({"num_hidden_layers": 3}, "`num_hidden_layers` is 3, but its weight files have 2 layers"),
        ({"hidden_size": 10**12}, "it must be a whole number from 1 to 1048576"),
        ({"hidden_size": 10**3000}, "`hidden_size` is 1000"),
        ({"num_attention_heads": True}, "`num_attention_heads` is True"),
        ({"num_key_value_heads": 2.0}, "`num_key_value_heads` is 2.0"),
        ({"head_dim": -8}, "`head_dim` is -8"),
        ({"vocab_size": [100]}, "`vocab_size` is [100]"),
        ({"vocab_size": 99}, "has shape [100, 16], config.json says [99, 16]"),
        ({"max_position_embeddings": float("inf")}, "`max_position_embeddings` is inf"),
        ({"use_sliding_window": True, "sliding_window": -1, "layer_types": ["full_attention"] * 2}, "is -1"),
        ({"use_sliding_window": True, "layer_types": ["full_attention", "mamba"]}, "`layer_types` has 'mamba'"),
        ({"rope_theta": 1e300}, "it must be a number from 1 to 1e+15"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type `longrope` needs `short_factor`"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "'spiral' is not supported; supported: default, linear"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope type `linear` needs `factor`"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "`factor` is '2'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "`factor` is 0"),
        ({"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 0}}, "embeddings` is 0"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 5}}, "must not be less than `low_freq_factor`"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}, "head_dim": 2}, "`dynamic` needs at least 4"),
        ({"partial_rotary_factor": 1.5}, "`partial_rotary_factor` is 1.5; it must be a number above 0 and at most 1"),
        ({"bos_token_id": "1"}, "it must be a token id"),
        (
            {"architectures": ["MineForCausalLM"], "auto_map": {"AutoConfig": "x.Y"}},
            "`auto_map` says that `MineForCausalLM` is code of its repository",
        ),
        (
            {"architectures": ["MineForCausalLM"], "vision_config": {"auto_map": {"AutoModel": "x.Y"}}},
            "`auto_map` says that `MineForCausalLM` is code of its repository",
        ),
        ({"architectures": ["\x1b[2J"]}, "architecture `\\x1b[2J` is not supported"),
        ({"architectures": ["A" * 10_000_000]}, "A..."),
        ({"use_sliding_window": True, "layer_types": ["full_attention"]}, "must name 2 layers"),
    ],
)
def test_a_model_that_cannot_run_is_refused_with_its_key(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFilesError) as caught:
        model_files(tmp_path, **changes)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 3000
    assert str(tmp_path) in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("place", [None, "text_config", "vision_config"])
@pytest.mark.parametrize("words", [[], ["--model-impl", "native"], ["--model-impl", "transformers"]])
def test_a_class_that_is_known_needs_no_code_of_its_repository(
    tmp_path: Path, place: str | None, words: list[str]
) -> None:
    """The published DeepSeek-V3, Kimi K2 and Moonlight, whose `auto_map` names a class of this name, were refused."""
    code = {"auto_map": {"AutoModelForCausalLM": "modeling_mine.Mine"}}
    found = model_files(tmp_path, *words, **(code if place is None else {place: code}))
    assert found.code is None
    by = "the transformers library" if "transformers" in words else "this build"
    assert found.notes == (f"the code that `auto_map` names is not run: `Qwen3ForCausalLM` is a class of {by}",)


def test_a_default_prompt_is_reported(tmp_path: Path) -> None:
    """sentence-transformers writes it before each text, and this build only where a request names it."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    pool = {"word_embedding_dimension": 16, "pooling_mode_lasttoken": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pool))
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    found = model_files(tmp_path)
    assert found.notes == (
        "the default prompt `query` is written only before texts of requests that name it (`prompt_name`)",
    )


def test_an_end_outside_of_the_vocabulary_is_left_out(tmp_path: Path) -> None:
    """It refused the whole model."""
    found = model_files(tmp_path, eos_token_id=[100, 7])
    assert found.eos_token_ids == (7,)
    (note,) = found.notes
    assert note == "`eos_token_id` holds 100, and the vocabulary has 100 tokens: no answer ends with it"


def test_facts_go_through_json(tmp_path: Path) -> None:
    model = model_files(tmp_path)
    assert ModelFiles.model_validate_json(model.model_dump_json()) == model


def test_an_invalid_generation_config_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"top_p": 7}')
    with pytest.raises(ModelFilesError, match=r"generation_config\.json: `top_p` is 7; allowed: more than 0") as caught:
        model_files(tmp_path)
    assert caught.value.code == "M306"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"auto_map": {"AutoTokenizer": ["x.Y", null]}}', "this tokenizer is code from its repository"),
        ('{"auto_map": 3}', "this tokenizer is code from its repository"),
        ("{", "tokenizer_config.json:1:2: invalid JSON"),
        ('"x"', "must hold a JSON object"),
        ('{"a": "\\ud83d"}', "invalid JSON: \\ud83d is half of a surrogate pair, which is not a character"),
        (b'{"a": "\xff"}', "invalid JSON: not UTF-8: byte 0xff at offset 7"),
        (b'{"a": "\xed\xa0\x80"}', "invalid JSON: not UTF-8: byte 0xed at offset 7"),  # such a half was accepted
        ("[" * 100_000, "nested more than"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "nested more than"),
        ('{"a": [' + "[]," * 4_000_001 + "[]]}", "more than 4000000 values"),
    ],
)
def test_a_tokenizer_config_is_read_before_the_start(tmp_path: Path, content: str | bytes, said: str) -> None:
    """`auto_map` was once found at the top of config.json only."""
    write_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelFilesError, match="tokenizer_config") as caught:
        model_files(tmp_path)
    assert said in str(caught.value)
    model_files(tmp_path, "--skip-tokenizer-init")


def test_other_classes_of_a_repository_than_the_tokenizer_do_not_matter_to_it(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoProcessor": "x.Y"}}')
    assert model_files(tmp_path).tokenizer_path == str(tmp_path)


TOKENIZER = {"eos_token": {"content": "<end>"}, "added_tokens_decoder": {"7": {"content": "<end>"}}}


@pytest.mark.parametrize(
    ("config", "tokenizer", "expected"),
    [
        (TOKENIZER, {}, (5, 7)),
        ({"eos_token": "<end>"}, {"added_tokens": [{"id": 9, "content": "<end>"}]}, (5, 9)),
        ({"eos_token": "<end>"}, {}, (5,)),
        ({"eos_token": None}, {}, (5,)),
        ({"eos_token": "<end>", "added_tokens_decoder": {"5": {"content": "<end>"}}}, {}, (5,)),
        ({"eos_token": "<end>", "added_tokens_decoder": {"100": {"content": "<end>"}}}, {}, (5,)),
    ],
)
def test_the_tokenizers_end_token_ends_answers_too(
    tmp_path: Path, config: dict[str, Any], tokenizer: dict[str, Any], expected: tuple[int, ...]
) -> None:
    """Many fine-tunes change only the tokenizer: their answers ran until the limit."""
    folder = write_model(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    deployment = load_deployment([], ["--model", str(folder)], {})
    assert read_model_files(deployment).eos_token_ids == expected


def test_a_scaling_under_the_old_name_counts_beside_the_new_name(tmp_path: Path) -> None:
    """It was ignored silently; transformers 5 takes it."""
    new, old = {"rope_type": "default", "rope_theta": 5e5}, {"rope_type": "linear", "factor": 4.0}
    rope = rope_of(model_files(tmp_path, rope_parameters=new, rope_scaling=old))
    assert rope is not None
    assert (rope.kind, rope.factor, rope.theta) == ("linear", 4.0, 5e5)
    override = json.dumps({"rope_parameters": new})
    rope = rope_of(model_files(tmp_path, "--hf-overrides", override, rope_parameters=new, rope_scaling=old))
    assert rope is not None
    assert (rope.kind, rope.theta) == ("default", 5e5)


def test_an_override_of_the_ropes_base_is_not_called_unused(tmp_path: Path) -> None:
    """It was, for files with `rope_parameters`, although it had an effect."""
    files = model_files(
        tmp_path, "--hf-overrides", '{"rope_theta": 1e6, "nothing": 1}', rope_parameters={"rope_theta": 1e4}
    )
    assert (files.rope_theta, files.unused_overrides) == (1e6, ("nothing",))


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "generation_config.json"])
def test_a_pointer_of_git_lfs_is_called_one(tmp_path: Path, name: str) -> None:
    """Weights were called truncated, JSON invalid, and the tokenizer was not looked at before the start."""
    folder = write_model(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    (folder / name).write_text(POINTER)
    with pytest.raises(ModelFilesError, match="pointer of Git LFS") as caught:
        read_model_files(load_deployment([], ["--model", str(folder)], {}))
    assert caught.value.code == "M302"
    assert name in str(caught.value)


def test_a_file_that_an_option_names_is_reported_at_that_option(tmp_path: Path) -> None:
    """The error pointed at `model:`."""
    folder = write_model(tmp_path / "model")
    file = tmp_path / "deploy.yaml"
    file.write_text(f"model:\n  model: {folder}\n  generation_config: ./nowhere\n")
    (fault,) = (each for each in report_on([file], [], MACHINE, {}).findings if each.code.startswith("M"))
    assert (fault.path, fault.labels[0].span.line) == ("model.generation_config", 3)


def test_the_defaults_of_vllm_are_those_of_the_api(tmp_path: Path) -> None:
    """The name was taken for a folder."""
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    assert model_files(tmp_path, "--generation-config", "vllm").sampling_defaults == {}


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    """Files in the storage of Ollama have no suffix."""
    for name, content, expected in (("sha256-1", b"GGUF....", True), ("sha256-2", b"{}", False), ("a.gguf", b"", True)):
        (tmp_path / name).write_bytes(content)
        assert is_gguf(tmp_path / name) is expected


@pytest.mark.parametrize(
    ("rope", "context"),
    [
        ({"rope_type": "dynamic", "factor": 4.0}, 512),
        ({"rope_type": "yarn", "factor": 4.0}, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 128),
        ({"rope_type": "linear", "factor": 4.0}, 128),
        ({"rope_type": "default"}, 128),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_a_scaling_in_config_json_lengthens_the_context(
    tmp_path: Path, key: str, rope: dict[str, Any], context: int
) -> None:
    """The limit stayed `max_position_embeddings`, so that a dynamic scaling never had an effect."""
    assert model_files(tmp_path, max_position_embeddings=128, **{key: rope}).max_context == context
