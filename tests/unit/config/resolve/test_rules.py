"""Every rule, broken and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.config import ConfigError, Resolved, load_deployment, read_model_files, resolve_deployment
from stoker.config.checkpoint.chat_templates import TemplateSource
from stoker.config.loopback import is_loopback
from stoker.config.resolve.resolve import examine
from stoker.config.resolve.rule_tables.stated import CHECKED_BY, DESCRIBED, NOT_HERE, SENTENCES
from stoker.config.resolve.rules import BY_ID, RULES, STATED
from stoker.config.schema.options import options
from stoker.installation import PACKAGES

from ..deployments import GIB, H200, INTERPRETING, MACHINE, TWO_SOCKETS, WITH_GPU
from ..model_files import write_model
from ..plan.shapes import NATIVE, SHAPES, write_config
from .rule_cases import (
    cache,
    compilation,
    device,
    kv_transfer,
    load,
    lora,
    model,
    parallel,
    scheduler,
    server,
    speculative,
    structured_outputs,
)

ENCODER = {
    "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512,
}  # fmt: skip
SMALL = MACHINE.model_copy(update={"available_memory_bytes": 100_000, "cpu_flags": (), "max_open_files": 1024})
_TABLES = (
    *(model, load, cache, scheduler, device, parallel, compilation, kv_transfer, server, structured_outputs),
    *(speculative, lora),
)
MACHINES = {  # by the name of their tables
    "CASES": MACHINE,
    "SMALL_CASES": SMALL,
    "GPU_CASES": WITH_GPU,
    "OLD_GPU_CASES": MACHINE.model_copy(
        update={"gpu": H200.model_copy(update={"name": "Tesla T4", "compute_capability": (7, 5)})}
    ),
    "INTERPRETED_CASES": INTERPRETING,
    "NUMA_CASES": TWO_SOCKETS,
    "BARE_CASES": MACHINE.model_copy(update={"absent_packages": PACKAGES}),
}
IN_FILES = {  # rules about where a value is written -> the option
    "R501": "server.api_key",
    "R502": "model.hf_token",
    "R503": "kv_transfer.prefill_api_key",
}
ALL_CASES = {
    (rule, kind): cases for table in _TABLES for kind in MACHINES for rule, cases in getattr(table, kind, {}).items()
}


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[str, str], set[str]]:
    model = write_model(tmp_path / "model")
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    logging_file = tmp_path / "logging.json"
    logging_file.write_text("{}")

    states = write_config(tmp_path / "states", "qwen3.5-0.8b")

    without_keys = write_config(tmp_path / "without-keys", NATIVE["codestral-mamba-7b"][0])
    files = {"MODEL": model, "FILE": template, "JSON": logging_file, "STATES": states}
    shared = write_config(tmp_path / "shared", NATIVE["gemma-4-e2b"][0])
    latents = write_config(
        tmp_path / "latents", SHAPES["deepseek-v2-lite"][0] | {"architectures": ["DeepseekV2ForCausalLM"]}
    )
    mixture = write_config(tmp_path / "mixture", SHAPES["qwen3-30b-a3b"][0] | {"num_experts": 16})
    files |= {"MIXTURE": mixture, "WITHOUT-KEYS": without_keys, "SHARED": shared, "LATENTS": latents}
    files["ENCODER"] = write_config(tmp_path / "encoder", ENCODER)
    scores = {"architectures": ["Qwen3ForTokenClassification"], "num_labels": 2}  # all of its heads need whole prompts
    files["STEP-SCORES"] = write_config(tmp_path / "scores", SHAPES["qwen3-0.6b"][0] | scores)
    files["COMPRESSED"] = write_config(tmp_path / "compressed", "deepseek-v4-flash")

    def of(kind: str, line: str) -> set[str]:
        words = [str(files.get(word, word)) for word in line.split()]
        named = [] if "--model" in words else ["--model", str(model)]
        deployment = load_deployment([], [*named, *words], {})
        model_spec = None if "Qwen/none" in words else read_model_files(deployment)
        return {finding.code for finding in examine(deployment, model_spec, MACHINES[kind]).findings}

    return of


@pytest.mark.parametrize(("rule", "kind"), ALL_CASES)
@pytest.mark.quick_cases(40)
def test_a_rule_is_broken_and_kept(rule: str, kind: str, broken: Callable[[str, str], set[str]]) -> None:
    bad, good = ALL_CASES[rule, kind]
    for line in bad:
        assert rule in broken(kind, line), line
    for line in good:
        assert rule not in broken(kind, line), line


def test_every_rule_has_cases_a_number_and_known_options() -> None:
    assert {rule.id for rule in RULES} == {rule for rule, _ in ALL_CASES} | set(IN_FILES)
    numbers = [rule.id for rule in (*RULES, *STATED)]
    assert len(set(numbers)) == len(numbers)
    for rule in (*RULES, *STATED):
        assert set(rule.fields) <= set(options()), rule.id
        assert rule.why.endswith("."), rule.id


def test_a_rule_about_what_is_not_here_is_about_refused_and_deprecated_options() -> None:
    """R146 said that `enable_dbo` is refused, when it had long had an effect."""
    for rule, names in NOT_HERE.items():
        for name in names.split():
            path, _, value = name.partition("=")
            if value:
                assert value in options()[path].refused, f"{rule}: {name} is not refused"
        for path in BY_ID[rule].fields if "=" not in names else ():
            assert options()[path].status != "effective", f"{rule}: {path} has an effect: move it, or check the rule"


def test_a_rule_that_the_description_of_an_option_answers_is_about_effective_options() -> None:
    """Their effects have tests: tests/unit/test_effects.py. A sentence of R096 called two of them refused."""
    for rule in DESCRIBED:
        for path in BY_ID[rule].fields:
            assert options()[path].status == "effective", f"{rule}: {path}"
        assert BY_ID[rule].why == options()[BY_ID[rule].fields[0]].description


def test_a_stated_rule_is_in_one_table_and_one_that_is_checked_has_a_check() -> None:
    assert sorted([*NOT_HERE, *DESCRIBED, *CHECKED_BY, *SENTENCES]) == sorted(rule.id for rule in STATED)
    assert set(CHECKED_BY.values()) <= {rule.id for rule in RULES}
    assert max(len(sentence) for sentence in SENTENCES.values()) < 120


@pytest.mark.parametrize("kind", ["CASES", "GPU_CASES", "OLD_GPU_CASES", "INTERPRETED_CASES", "NUMA_CASES"])
def test_a_plain_deployment_breaks_nothing(kind: str, broken: Callable[[str, str], set[str]]) -> None:
    assert broken(kind, "") == set()


@pytest.mark.parametrize("rule", IN_FILES)
def test_a_secret_in_a_file_is_a_warning(rule: str, tmp_path: Path) -> None:
    """A key in plain text passed without a word."""
    section, _, name = IN_FILES[rule].partition(".")
    (tmp_path / "key").write_text("k")
    for value, expected in (
        ("sk-12345", {rule}),
        ("{env: KEY}", set()),
        ('"${KEY}"', set()),
        ("{file: key}", set()),
    ):
        file = tmp_path / "deploy.yaml"
        model = f"model: {{model: {write_model(tmp_path / 'model')}"
        text = f"{model}, {name}: {value}}}\n" if section == "model" else f"{model}}}\n{section}: {{{name}: {value}}}\n"
        file.write_text(text)
        deployment = load_deployment([file], [], {"KEY": "k"})
        found = examine(deployment, read_model_files(deployment), MACHINE).findings
        assert {finding.code for finding in found if finding.code in IN_FILES} == expected, value
        assert "sk-12345" not in "".join(finding.as_text() for finding in found)


def resolved(folder: Path, *words: str) -> Resolved:
    deployment = load_deployment([], ["--model", str(write_model(folder)), *words], {})
    return resolve_deployment(deployment, read_model_files(deployment), MACHINE)


def test_what_does_not_fit_is_an_error_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, "--max-model-len", "512", "--kv-cache-memory-bytes", "40KiB", "--max-num-seqs", "1")
    said = str(caught.value)
    assert "one sequence of 512 tokens needs 64 KiB of KV cache; it has 40 KiB for at most 320 tokens" in said
    assert "set `model.max_model_len` to at most 320" in said
    assert caught.value.exit_code == 78


def test_too_little_memory_is_the_machines_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, "--kv-cache-memory-bytes", "9GiB")
    assert caught.value.exit_code == 4
    assert "this machine has 8.00 GiB available" in str(caught.value)


def test_a_block_of_the_cache_is_that_of_one_process_and_a_stored_one_that_of_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(tmp_path, "-tp", "2", "--kv-cache-memory-bytes", "1000", "--kv-offloading-size", "0.000001")
    said = str(caught.value)
    assert "one block of 16 tokens needs 1KiB" in said
    assert "hold no KV block: one has 2KiB" in said


def test_warnings_travel_with_the_result(tmp_path: Path) -> None:
    record = resolved(tmp_path, "--max-logprobs", "-1")
    assert [text.splitlines()[0][:14] for text in record.warnings] == ["warning[R057]:"]


def test_resolved_goes_through_json_without_its_secrets(tmp_path: Path) -> None:
    record = resolved(tmp_path, "--api-key", "sk-123", "--override-generation-config.max_new_tokens", "9")
    text = record.model_dump_json()
    assert "sk-123" not in text
    again = Resolved.model_validate_json(text)
    assert again.model_copy(update={"server": record.server}) == record
    revealed = Resolved.model_validate_json(record.model_dump_json(context={"reveal_secrets": True}))
    assert revealed == record
    assert record.sampling_defaults == {"max_tokens": 9}
    assert record.num_kv_tokens * 128 == record.memory.kv_cache_bytes < 4 * GIB
    assert str(record.origin("cache.block_size")).startswith("auto, R086")
    assert str(record.origin("model.seed")) == "default"


def test_the_template_is_read_from_beside_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }}!")
    (tmp_path / "deploy.yaml").write_text("server: {chat_template: chat.jinja}")
    words = ["--model", str(write_model(tmp_path / "model"))]
    deployment = load_deployment([tmp_path / "deploy.yaml"], words, {})
    found = resolve_deployment(deployment, read_model_files(deployment), MACHINE).chat_template
    assert found == TemplateSource("{{ messages }}!", str(tmp_path / "chat.jinja"))


def test_names_of_the_api(tmp_path: Path) -> None:
    assert resolved(tmp_path).served_model_names == (str(tmp_path),)
    assert resolved(tmp_path, "--served-model-name", "a", "b").served_model_names == ("a", "b")


def test_loopback_addresses_are_recognised() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LOCALHOST", "a.localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", ""]))


@pytest.mark.effect("parallel.data_parallel_external_lb")
def test_a_server_that_is_to_run_one_replica_does_not_run_them_all(broken: Callable[[str, str], set[str]]) -> None:
    assert "R371" not in broken("CASES", "-dp 2")
    assert "R371" in broken("CASES", "-dp 2 --data-parallel-external-lb")
