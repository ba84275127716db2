"""LLM: the whole engine in this process, on a tiny random checkpoint."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.kv_event_consumer import Consumer
from tests.tiny_checkpoint import write_checkpoint
from transformers import AutoModelForCausalLM

import stoker.builtin
from stoker import LLM, BeamSearchParams, SamplingParams
from stoker.config import ConfigError, ModelFilesError
from stoker.config.memory_policy import bound_nodes, why_no_policy
from stoker.config.resolve.numa_nodes import read_numa_nodes
from stoker.engine.api import CacheScope, InvalidRequest
from stoker.engine.core.block_hashes import BlockHasher

TINY = Path(stoker.builtin.__file__).parent / "tiny"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = ["Hello, world!", "The answer is 42, and", "def f(x):", "user assistant system", "日本語"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def make(folder: Path, **options: object) -> LLM:
    small = {"dtype": "float32", "num_gpu_blocks_override": 64, "max_num_seqs": 4, "num_threads": 1}
    return LLM(str(folder), **{**small, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with make(folder) as made:
        yield made


def test_results_come_in_order_and_do_not_depend_on_the_batch(llm: LLM):
    together = llm.generate(PROMPTS, GREEDY)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in PROMPTS]
    assert [result.prompt for result in together] == PROMPTS
    for whole, single in zip(together, alone, strict=True):
        assert whole.outputs[0].token_ids == single.outputs[0].token_ids
        assert whole.outputs[0].text == llm.get_tokenizer().decode(whole.outputs[0].token_ids)
        assert (whole.outputs[0].finish_reason, len(whole.outputs[0].token_ids)) == ("length", 12)
        assert whole.finished


@pytest.mark.skipif(bool(why_no_policy()) or not read_numa_nodes(), reason="no NUMA nodes, or no memory policy")
def test_the_process_is_bound_until_the_end(folder: Path):
    """It remained bound: the next one could be on the nodes of the first only."""
    before = os.sched_getaffinity(0)
    own = max(before)
    with make(folder, numa_bind_cpus=[str(own)]) as bound:
        assert len(bound.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids) == 12
        assert (os.sched_getaffinity(0), len(bound_nodes() or ())) == ({own}, 1)
    threads = {thread: os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}
    assert (bound_nodes(), [each for each in threads.values() if each != before]) == (None, [])


def test_token_ids_are_a_prompt_in_every_form(llm: LLM):
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    expected = llm.generate(PROMPTS[0], GREEDY)[0]
    assert expected.prompt_token_ids == ids
    for prompts in (ids, [ids], {"prompt_token_ids": ids}, [{"prompt_token_ids": ids}], {"prompt": PROMPTS[0]}):
        assert llm.generate(prompts, GREEDY)[0].outputs == expected.outputs


def test_each_prompt_may_have_its_own_parameters(llm: LLM):
    results = llm.generate(PROMPTS[:2], [GREEDY, replace(GREEDY, max_tokens=3)])
    assert [len(result.outputs[0].token_ids) for result in results] == [12, 3]
    with pytest.raises(InvalidRequest, match="1 sampling_params for 2 prompts"):
        llm.generate(PROMPTS[:2], [GREEDY])


def test_n_gives_n_sequences_and_a_seed_repeats_them(llm: LLM):
    params = SamplingParams(n=3, seed=7, max_tokens=8, ignore_eos=True)
    first, second = llm.generate(PROMPTS[0], params)[0], llm.generate([PROMPTS[1], PROMPTS[0]], params)[1]
    assert [output.index for output in first.outputs] == [0, 1, 2]
    assert first.outputs == second.outputs
    assert len({tuple(output.token_ids) for output in first.outputs}) > 1


@pytest.mark.parametrize("length_penalty", [1.0, -2.0])
@pytest.mark.parametrize("name", ["random", "trained"])
@pytest.mark.quick_cases(1)
def test_beam_search_finds_what_transformers_finds(folder: Path, name: str, length_penalty: float):
    """Also with the trained built-in model, whose best answers end."""
    place = folder if name == "random" else TINY
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    params = BeamSearchParams(width=4, length_penalty=length_penalty)
    with make(place) as llm:
        results = llm.beam_search(PROMPTS[:3], params, SamplingParams(n=3, max_tokens=10))
        tokenizer, ends = llm.get_tokenizer(), llm.info.eos_token_ids
    for prompt, result in zip(PROMPTS, results, strict=False):
        assert result.prompt == prompt
        ids = torch.tensor([result.prompt_token_ids])
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, num_beams=4, num_return_sequences=3,
            length_penalty=length_penalty, eos_token_id=list(ends), do_sample=False, early_stopping=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        rows = zip(found.sequences[:, ids.shape[1] :].tolist(), found.sequences_scores.tolist(), strict=True)
        for output, (row, score) in zip(result.outputs, rows, strict=True):
            assert output.token_ids == row[: next((at + 1 for at, token in enumerate(row) if token in ends), len(row))]
            ends_itself = output.finish_reason == "stop"
            assert ends_itself == (output.token_ids[-1] in ends)
            assert output.text == tokenizer.decode(output.token_ids[:-1] if ends_itself else output.token_ids)
            assert output.cumulative_logprob is not None
            assert output.cumulative_logprob / len(output.token_ids) ** length_penalty == pytest.approx(score, rel=1e-4)


def test_a_search_has_as_many_beams_as_answers_and_refuses_what_only_samples_need(llm: LLM):
    params = BeamSearchParams(width=4)
    with pytest.raises(InvalidRequest, match="n is 5, but the search has 4 beams"):
        llm.beam_search(PROMPTS[0], params, SamplingParams(n=5))
    with pytest.raises(InvalidRequest, match="`top_p` is not supported in a beam search: no tokens are sampled"):
        llm.beam_search(PROMPTS[0], params, SamplingParams(top_p=0.5))


def test_a_stop_string_ends_the_text_before_it(llm: LLM):
    whole = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0]
    stop = llm.get_tokenizer().decode(whole.token_ids[:6])[-2:]
    cut = llm.generate(PROMPTS[0], replace(GREEDY, stop=(stop,)))[0].outputs[0]
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


def test_a_bad_word_and_tokens_that_are_not_allowed_are_not_generated(llm: LLM):
    whole = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0]
    word = llm.get_tokenizer().decode(whole.token_ids[2:5])  # of several tokens
    assert word in whole.text
    changed = llm.generate(PROMPTS[0], replace(GREEDY, bad_words=(word,)))[0].outputs[0]
    assert changed.token_ids[:4] == whole.token_ids[:4]
    assert changed.token_ids[4] != whole.token_ids[4]
    (few,) = llm.generate(PROMPTS[0], replace(GREEDY, allowed_token_ids=(5, 7)))[0].outputs
    assert set(few.token_ids) <= {5, 7}


def test_a_stop_token_id_ends_the_sequence_with_it(llm: LLM):
    whole = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0]
    last = whole.token_ids[4]
    cut = llm.generate(PROMPTS[0], replace(GREEDY, stop_token_ids=(last,)))[0].outputs[0]
    assert cut.token_ids == whole.token_ids[: whole.token_ids.index(last) + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", last)


def test_logprobs_are_keyed_by_token_id(llm: LLM):
    result = llm.generate(PROMPTS[0], replace(GREEDY, logprobs=2, prompt_logprobs=0))[0]
    output = result.outputs[0]
    assert output.logprobs is not None
    assert output.cumulative_logprob is not None
    sampled = [entry[token] for entry, token in zip(output.logprobs, output.token_ids, strict=True)]
    assert {each.rank for each in sampled} == {1}
    assert all(len(entry) == 2 for entry in output.logprobs)
    assert output.cumulative_logprob == pytest.approx(sum(each.logprob for each in sampled))
    assert sampled[0].decoded_token == llm.get_tokenizer().token_text(output.token_ids[0])
    assert result.prompt_logprobs is not None
    assert result.prompt_logprobs[0] is None
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids)


def test_a_shared_prefix_is_computed_once(llm: LLM):
    ids = list(range(10, 74))
    llm.generate({"prompt_token_ids": ids}, GREEDY)
    assert llm.generate({"prompt_token_ids": [*ids, 5]}, GREEDY)[0].num_cached_tokens == 64


def test_an_output_says_what_its_drafts_have_brought_where_some_are_made(llm: LLM, folder: Path):
    """How many there are depends on the time that steps take."""
    prompt, params = [5, 6, 7] * 8, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, n=2)
    assert llm.generate([prompt], params)[0].outputs[0].spec_decode_metrics is None
    with make(folder, speculative_config={"method": "ngram"}) as drafting:
        result = drafting.generate([prompt], params)[0]
    for output in result.outputs:
        metrics = output.spec_decode_metrics
        assert metrics is not None
        assert metrics.num_spec_steps == len(metrics.per_step_drafted) == sum(metrics.acceptance_histogram)
        assert metrics.num_spec_steps + metrics.num_accepted_draft_tokens <= len(output.token_ids)


def test_a_template_given_to_chat_gets_content_in_the_form_of_the_deployment(folder: Path):
    message = [{"role": "user", "content": "Hello"}]
    with make(folder, chat_template_content_format="openai") as llm:
        (result,) = llm.chat(message, GREEDY, chat_template="{{ messages[0].content[0].text }}")
    assert result.prompt == "Hello"


def test_chat_goes_through_the_template(llm: LLM):
    conversation = [{"role": "user", "content": "Hello"}]
    expected = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    one, two = llm.chat(conversation, GREEDY)[0], llm.chat([conversation, conversation], GREEDY)
    assert one.prompt == expected
    assert len(two) == 2
    assert one.outputs == llm.generate(expected, GREEDY)[0].outputs == two[1].outputs


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ({"prompt_token_ids": [400]}, GREEDY, "prompt"),
        ({"prompt_token_ids": []}, GREEDY, "prompt"),
        ({"prompt_token_ids": [1] * 128}, GREEDY, "prompts"),
        ({"text": "a"}, GREEDY, "prompts"),
        ("a", SamplingParams(temperature=-1), "temperature"),
        ("a", SamplingParams(top_p=0), "top_p"),
        ("a", SamplingParams(n=0), "n"),
        ("a", SamplingParams(logprobs=21), "logprobs"),
        ("a", SamplingParams(logit_bias={400: 1.0}), "logit_bias"),
    ],
)
def test_an_invalid_request_reports_its_field(llm: LLM, prompt: object, params: SamplingParams, param: str):
    with pytest.raises(InvalidRequest) as refused:
        llm.generate([PROMPTS[0], prompt], [GREEDY, params])  # type: ignore[list-item]
    assert refused.value.param == param
    assert len(llm.generate(PROMPTS[0], GREEDY)) == 1  # and nothing of it is left


def test_more_prompts_than_the_queue_holds_are_served_in_turn(folder: Path):
    with make(folder, max_queued_requests=2, max_num_seqs=2) as small:
        results = small.generate([[5, 6, index] for index in range(20)], GREEDY)
    assert all(result.finished for result in results)


@pytest.mark.effect("model.skip_tokenizer_init")
def test_a_directory_without_tokenizer_works_on_token_ids(tmp_path: Path, folder: Path, llm: LLM):
    bare = write_checkpoint(tmp_path / "bare", tokenizer=False)
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    expected = llm.generate({"prompt_token_ids": ids}, GREEDY)[0].outputs[0].token_ids
    with make(bare, skip_tokenizer_init=True) as blind:
        output = blind.generate({"prompt_token_ids": ids}, GREEDY)[0].outputs[0]
        assert (output.token_ids, output.text) == (expected, "")
        with pytest.raises(RuntimeError, match="skip_tokenizer_init"):
            blind.generate("text", GREEDY)
        with pytest.raises(InvalidRequest, match="stop_token_ids"):
            blind.generate({"prompt_token_ids": ids}, replace(GREEDY, stop=("a",)))
    with pytest.raises(RuntimeError, match="closed"):
        blind.generate({"prompt_token_ids": ids}, GREEDY)


@pytest.mark.effect("model.override_generation_config", "model.generation_config", "model.max_logprobs")
def test_defaults_of_the_deployment_apply_without_parameters(folder: Path, tmp_path: Path):
    (tmp_path / "generation_config.json").write_text('{"max_new_tokens": 5, "temperature": 0.4}')
    options = {"generation_config": str(tmp_path), "override_generation_config": {"temperature": 0.0}}
    with make(folder, max_logprobs=2, **options) as ours:
        assert len(ours.generate(PROMPTS[0])[0].outputs[0].token_ids) <= 5
        assert (ours.get_default_sampling_params().temperature, ours.get_default_sampling_params().max_tokens) == (
            0.0,
            5,
        )
        assert ours.generate(PROMPTS[0], replace(GREEDY, logprobs=2))[0].outputs[0].logprobs is not None
        with pytest.raises(InvalidRequest, match="2"):
            ours.generate(PROMPTS[0], replace(GREEDY, logprobs=3))


def test_an_option_this_build_does_not_have_is_an_error(folder: Path):
    with pytest.raises(ConfigError, match="did you mean `max_num_seqs`"):
        make(folder, max_num_seq=4)
    with pytest.raises(ConfigError):
        make(folder, dtype="float13")


def test_several_replicas_are_refused(folder: Path):
    with pytest.raises(ValueError, match="one replica"):
        make(folder, data_parallel_size=2)


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ModelFilesError):
        LLM(str(tmp_path))


def test_importing_the_package_does_not_import_torch():
    code = "import stoker, sys; stoker.SamplingParams(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": sys.path[0] + ":.dev"}).returncode == 0


USED = """
from stoker import LLM, BeamSearchParams, SamplingParams
with LLM("builtin:tiny", max_model_len=256, num_threads=1) as llm:
    assert llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=1))[0].finished
    assert llm.beam_search("Hello", BeamSearchParams(width=2), SamplingParams(max_tokens=2))[0].finished
    assert llm._template_processes.jobs.name == "stoker.text.template_jobs"
"""


@pytest.mark.parametrize(
    "code", ["import stoker.text.template_jobs, stoker.offline.llm", pytest.param(USED, marks=pytest.mark.slow)]
)
def test_neither_llm_nor_its_isolated_process_imports_the_server(code: str):
    code += "\nimport sys; sys.exit([name for name in sys.modules if name.startswith('stoker.server')] or 0)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.effect("kv_events.enable_kv_cache_events")
def test_kv_cache_events_are_those_of_the_engine_and_its_hashes(folder: Path, tmp_path: Path):
    events = {"endpoint": f"ipc://{tmp_path}/e", "replay_endpoint": f"ipc://{tmp_path}/r"}
    options = {f"kv_events.{name}": value for name, value in {**events, "enable_kv_cache_events": True}.items()}
    tokens = list(range(40))
    with make(folder, prefix_caching_hash_algo="sha256_cbor", **options) as llm:
        llm.generate([{"prompt_token_ids": tokens}], GREEDY)
        consumer = Consumer(events["endpoint"], events["replay_endpoint"])
        consumer.replay()
        consumer.close()
    hasher, hashes = BlockHasher("sha256_cbor"), []
    hasher.extend(hashes, CacheScope(), tokens, 16, 2)
    assert set(hashes) <= consumer.view.hashes()
    assert consumer.view.blocks[0, hashes[1]] == (hashes[0], tuple(tokens[16:32]))
    with make(folder, **options):  # the addresses are free again
        pass


def test_an_address_of_events_in_use_ends_the_start_before_the_weights_are_read(folder: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = {
            "kv_events.enable_kv_cache_events": True,
            "kv_events.endpoint": f"tcp://0.0.0.0:{taken.getsockname()[1]}",
        }
        with pytest.raises(OSError, match=r"`kv_events\.endpoint`: cannot use .* address already in use"):
            make(folder, **options)
