"""`engine bench`: its flags, its arithmetic, and each kind on a small model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes import FakeEngine
from tests.server.deployment import MODEL, on_a_socket
from tests.tiny_tokenizer import write_tokenizer
from tests.unit.cli.test_app import run

from stoker.cli.bench.figures import Sample, figures, spread
from stoker.cli.bench.forced import ForcedEngine
from stoker.cli.bench.measured import BenchError, Measurement
from stoker.cli.bench.run import DEFAULTS
from stoker.cli.bench.sample_text import sample_text
from stoker.cli.bench.serve import _has_text, measure_server
from stoker.cli.bench.workload import WORDS, Costs, Shape, arrivals, text_jobs, token_jobs
from stoker.config import read_machine_spec, read_model_files, resolve_deployment
from stoker.config.digest import digest
from stoker.config.load import load_deployment

TINY = ["--model", "builtin:tiny", "--num-gpu-blocks-override", "64", "--max-model-len", "128", "--num-threads", "1"]
SMALL = ["--input-len", "9", "--output-len", "4"]


def record(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = run(capfd, "bench", *words, "-o", "json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def is_plausible(values: dict[str, float]) -> bool:
    return 0 < values["min"] <= values["p50"] <= values["p90"] <= values["p99"] <= values["max"]


def test_latency_measures_batches(capfd: pytest.CaptureFixture[str]):
    found = record(capfd, "latency", *SMALL, "--batch-size", "3", "--num-iters", "2", *TINY, "--load-format", "dummy")
    assert (found["format_version"], found["kind"], found["model"]) == (1, "latency", "builtin:tiny")
    assert found["parameters"] == {
        **DEFAULTS["latency"],
        "input_len": 9,
        "output_len": 4,
        "batch_size": 3,
        "num_iters": 2,
    }
    results = found["results"]
    assert (results["requests"], results["input_tokens"], results["output_tokens"]) == (6, 54, 24)
    for name in ("batch_s", "first_token_s", "inter_token_s", "end_to_end_s"):
        assert is_plausible(results[name]), name
    assert results["first_token_s"]["max"] <= results["end_to_end_s"]["max"] <= results["batch_s"]["max"]
    assert found["environment"]["packages"]["torch"]
    words = [*TINY, "--load-format", "dummy"]
    assert found["config_hash"] == digest(load_deployment([], words)), "so a record says what was measured"


def test_throughput_runs_all_prompts(capfd: pytest.CaptureFixture[str]):
    words = [*SMALL, "--num-prompts", "7", "--length-spread", "0.5", "--prefix-len", "16", "--seed", "3"]
    found = record(capfd, "throughput", *words, *TINY)
    jobs = token_jobs(7, Shape(9, 4, 0.5, 16), vocab_size=3072, seed=3)
    assert found["results"]["requests"] == 7
    assert found["results"]["input_tokens"] == sum(len(job.prompt) for job in jobs)
    assert found["results"]["output_tokens"] == sum(job.output_len for job in jobs)
    assert found["engine"]["device"] == "cpu"


@pytest.mark.slow
def test_startup_tells_the_phases(capfd: pytest.CaptureFixture[str]):
    found = record(capfd, "startup", "--num-runs", "1", *TINY)
    results = found["results"]
    assert results["engine"] >= results["engine: weights"] > 0
    assert {"configuration", "model files", "engine: server", "engine: warm-up"} <= results.keys()
    assert is_plausible(results["ready_s"])
    assert len(found["runs"]) == 1


def test_spec_decodes_a_text_with_drafts_and_without(capfd: pytest.CaptureFixture[str], tmp_path: Path):
    """The answer occurs in the prompt, so drafts of it are right, whatever the model samples."""
    text = tmp_path / "text.txt"
    line = "The engine answers 27 requests in 3 seconds, with 4 threads of a processor. "
    text.write_text(line * 4)
    words = ["--text", str(text), "--rows", "1,2,9", "--draft-lens", "2,5", "--num-iters", "1", "--output-len", "40"]
    words += ["--model", "builtin:tiny", "--num-gpu-blocks-override", "64", "--num-threads", "1", "--max-num-seqs", "4"]
    found = record(capfd, "spec", *words)
    assert found["parameters"]["rows"] == "1,2,9"
    assert found["answer_tokens"] == 40
    cases = found["results"]["cases"]
    assert [(case["rows"], case["max_drafted"]) for case in cases] == [(1, 0), (1, 2), (1, 5), (2, 0), (2, 2), (2, 5)]
    for case in cases:
        assert case["output_tokens_per_s"] > 0
        if not case["max_drafted"]:
            assert (case["ratio"], case["drafted_tokens"], case["acceptance_rate"]) == (1, 0, None)
        assert case["accepted_tokens"] <= case["drafted_tokens"] <= case["max_drafted"] * 40 * case["rows"]
    code, out, err = run(capfd, "bench", "spec", *words[:-2])
    assert code == 0
    assert out.startswith("spec: builtin:tiny, configuration sha256:")
    assert out.splitlines()[2].split() == [
        *["rows", "drafted", "at", "most", "tokens/s", "ratio", "accepted", "rate", "mean", "length"]
    ]
    assert [line.split()[:2] for line in out.splitlines()[3:]] == [
        [rows, most] for rows in "129" for most in ("off", "2", "5")
    ]
    assert "left out" not in err


def test_forced_answers_come_out_whatever_is_drafted():
    deployment = load_deployment([], [*TINY, "--spec-method", "ngram", "--load-format", "dummy"])
    resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
    engine = ForcedEngine(resolved)
    engine.step_seconds = {1: 1.0, 64: 1.1}  # of a machine on which drafts pay
    prompt, answer = [*range(100, 140)], [*range(110, 135)]
    plain, drafted = engine.decode(prompt, [answer], None), engine.decode(prompt, [answer], engine.drafting(5))
    assert plain.drafts is None
    assert drafted.drafts is not None
    assert sum(drafted.drafts.accepted) > 10
    assert min(plain.seconds, drafted.seconds) > 0


def test_the_sample_is_a_prompt_and_an_answer_that_repeats_it():
    sample = sample_text()
    assert sample.answer.startswith("scheduler:\n")
    described = [line.strip(" #") for line in sample.answer.splitlines() if line.startswith("  #")]
    assert len(described) == 10
    assert all(line in sample.prompt for line in described)
    loaded = yaml.safe_load(sample.answer)["scheduler"]
    assert all(f"| `{name}` |" in sample.prompt for name in loaded)


def test_people_get_a_table(capfd: pytest.CaptureFixture[str]):
    code, out, _ = run(capfd, "bench", "latency", *SMALL, "--num-iters", "1", "--num-warmup", "0", *TINY)
    assert code == 0
    assert out.startswith("latency: builtin:tiny, configuration sha256:")
    assert "first token" in out
    assert "p99" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["speed"], "'speed' is not one of 'latency', 'throughput', 'serve', 'startup', 'spec', 'embed'"),
        (["latency", "-o", "xml"], "'xml' is not one of 'text', 'json'"),
        (["latency", "--num-prompts", "3"], "`--num-prompts` is for throughput, serve and embed, not for latency"),
        (["startup", "--seed", "3"], "`--seed` is for latency, throughput, serve and embed, not for startup"),
        (["serve", "--max-num-seqs", "3"], "start it with `engine up FILE`"),
        (["serve", "--endpoint", "x"], "'x' is not one of 'chat', 'completions'"),
        (["latency", "--input-len", "0"], "--input-len"),
        (
            ["latency", "--input-len", "8", "--output-len", "8", *TINY, "-dp", "2"],
            "this benchmark measures one replica",
        ),
        (["spec", "--rows", "1,many"], "--rows is '1,many'; allowed: numbers from 1 to 1024 with commas between them"),
        (["spec", "--draft-lens", "65"], "--draft-lens is '65'; allowed: numbers from 1 to 64"),
        (["spec", "--text", "/nowhere/at/all"], "/nowhere/at/all: No such file"),
        (["spec", *TINY], "tokens do not fit into the context of 128: lower --input-len or --output-len"),
        (["spec", *TINY, "-tp", "2"], "this benchmark measures one process"),
        (["spec", *TINY, "--disable-log-stats", "-pcp", "2"], "nothing is drafted in this deployment: "),
        (["embed", "--output-len", "3"], "`--output-len` is for latency, throughput, serve and spec, not for embed"),
        (["embed", "--max-num-seqs", "3"], "embed measures a running server"),
        (["spec", "--num-prompts", "3"], "`--num-prompts` is for throughput, serve and embed, not for spec"),
        (["latency", "--input-len", "200", *TINY], "requests of up to 328 tokens do not fit into the context of 128"),
    ],
)
def test_a_wrong_flag_ends_with_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "bench", *words)
    assert (code, out) == (2, "")
    assert said in err


def measure(engine: FakeEngine, folder: Path, given: dict[str, Any] | None = None, **server: Any) -> Measurement:
    """serve, against a real port."""

    async def work() -> Measurement:
        async with on_a_socket(folder, engine, **server) as (port, _):
            parameters = {**DEFAULTS["serve"], "url": f"http://127.0.0.1:{port}/v1", "input_len": 40, "output_len": 5}
            return await asyncio.to_thread(measure_server, **{**parameters, "num_prompts": 6, **(given or {})})

    return asyncio.run(work())


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_serve_measures_a_running_server(endpoint: str, tmp_path: Path):
    engine = FakeEngine()
    found = measure(
        engine, write_tokenizer(tmp_path), {"endpoint": endpoint, "ignore_eos": True, "api_key": "k"}, api_key=["k"]
    )
    assert found.model == MODEL
    assert found.results["requests"] == 6
    assert found.results["output_tokens"] == 30
    assert found.results["input_tokens"] == sum(len(each.inputs.prompt_token_ids) for each in engine.requests[1:])
    assert found.results["input_tokens"] == 6 * 40, "as --input-len says"
    assert found.details == {"tokens_counted_by": "the server", "input_len_unit": "tokens"}
    assert found.errors == {}
    assert is_plausible(found.results["end_to_end_s"])
    assert len(engine.requests) == 7, "the warm-up is one more"


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content"])
def test_the_first_token_of_a_chat_may_be_of_its_reasoning(field: str):
    assert _has_text({"choices": [{"delta": {field: "x"}}]})
    assert not _has_text({"choices": [{"delta": {"role": "assistant", field: ""}}]})


def test_no_more_requests_are_under_way_than_asked_for(tmp_path: Path):
    engine, most = FakeEngine(), [0]

    async def pace() -> None:
        most[0] = max(most[0], len(engine.open_requests))
        await asyncio.sleep(0)

    engine._pace = pace
    measure(engine, write_tokenizer(tmp_path), {"max_concurrency": 2, "num_prompts": 12, "request_rate": 500.0})
    assert most[0] <= 2
    assert len(engine.requests) == 13


def test_requests_that_fail_are_counted_by_their_message(tmp_path: Path):
    engine = FakeEngine(max_queued=1)
    found = measure(engine, write_tokenizer(tmp_path), {"num_prompts": 20, "output_len": 50, "ignore_eos": True})
    assert found.results["failed"] == 20 - found.results["requests"] > 0
    assert found.errors == {"the server answered 429: the queue is full": found.results["failed"]}


def test_a_server_that_refuses_the_first_request_is_one_line(tmp_path: Path):
    with pytest.raises(BenchError, match="the first request failed: the server answered 404"):
        measure(FakeEngine(), write_tokenizer(tmp_path), {"model_name": "other"})


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "bench", "serve", "--url", "http://127.0.0.1:9/v1")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == "error: cannot reach http://127.0.0.1:9/v1: connection refused"


def test_prompts_follow_from_the_seed_and_never_repeat():
    shape = Shape(20, 10, spread=0.5, prefix_len=4)
    first, again, other = (token_jobs(5, shape, 100, seed) for seed in (1, 1, 2))
    assert first == again != other
    later = token_jobs(5, shape, 100, 1, batch=1)
    assert [len(job.prompt) for job in later] == [len(job.prompt) for job in first]
    assert [job.prompt for job in later] != [job.prompt for job in first]
    assert len({tuple(job.prompt[:4]) for job in first}) == 1
    assert all(14 <= len(job.prompt) <= 34 and 5 <= job.output_len <= 15 for job in first)
    assert max(len(job.prompt) + job.output_len for job in token_jobs(500, shape, 100, 1)) <= shape.longest
    assert [len(job.prompt.split()) for job in text_jobs(3, Shape(7, 1, prefix_len=2), 1)] == [9, 9, 9]


def test_a_prompt_has_the_number_of_tokens_that_was_asked_for():
    """`--input-len 64` was 64 words: 164 tokens of a small vocabulary, and more than the context for 4000."""
    costs = Costs(overhead=11, words={word: 1 + len(word) % 3 for word in WORDS})
    for job in text_jobs(5, Shape(64, 1, prefix_len=7), 1, costs=costs):
        _, *words = job.prompt.split()
        assert costs.overhead + sum(map(costs.of, words)) == 64 + 7
    even = Costs(overhead=4, words=dict.fromkeys(WORDS, 2))
    (job,) = text_jobs(1, Shape(9, 1), 1, costs=even)
    assert len(job.prompt.split()) == 1 + 2, "one token less where no word has one token"


def test_a_length_that_the_chat_template_alone_exceeds_is_refused(tmp_path: Path):
    with pytest.raises(BenchError, match=r"a prompt of one word has \d+ tokens with the chat template"):
        measure(FakeEngine(), write_tokenizer(tmp_path), {"input_len": 2})


def test_arrivals_come_at_the_rate_in_the_mean():
    assert arrivals(3, None, 0) == [0.0, 0.0, 0.0]
    times = arrivals(4000, 10.0, 0)
    assert times == sorted(times) == arrivals(4000, 10.0, 0)
    assert 360 < times[-1] < 440


def test_figures_can_be_checked_by_hand():
    assert spread([]) is None
    values = spread([4.0, 1.0, 3.0, 2.0, 5.0])
    assert values == pytest.approx({"mean": 3.0, "p50": 3.0, "p90": 4.6, "p99": 4.96, "min": 1.0, "max": 5.0})
    samples = [
        Sample(10, 3, first_token_s=1.0, end_s=2.0),
        Sample(20, 2, first_token_s=0.5, end_s=1.5, gaps_s=[0.25]),
        Sample(5, 1, first_token_s=0.5, end_s=0.5),
    ]
    found = figures(samples, 2.0)
    assert (found["requests"], found["input_tokens"], found["output_tokens"]) == (3, 35, 6)
    assert (found["requests_per_s"], found["output_tokens_per_s"], found["total_tokens_per_s"]) == (1.5, 3.0, 20.5)
    assert (found["inter_token_s"]["min"], found["inter_token_s"]["max"]) == (0.25, 0.5)
