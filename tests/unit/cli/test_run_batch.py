"""`engine run-batch` with the small model: in this process, and once as a command that is interrupted."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.deployment import START_LIMIT_S, command, environment
from tests.fakes import FakeEngine
from tests.server.deployment import Served
from tests.tiny_tokenizer import write_tokenizer
from tests.unit.cli.test_app import run

from stoker.cli import run_batch, transfer
from stoker.cli.flags.serving import BatchFlags
from stoker.cli.prepare import Interrupted, interruptible
from stoker.server.http.address import bind
from stoker.server.metrics_server import serving_metrics

MODEL = ["--model", "builtin:tiny", "--num-gpu-blocks-override", "256", "--max-model-len", "512", "--num-threads", "1"]
IN_PROCESS = [*MODEL, "--disable-frontend-multiprocessing"]


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("", "stoker", "stoker.server.http")]
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def line(custom_id: str, **body: Any) -> str:
    fields = {
        "model": "builtin:tiny",
        "messages": [{"role": "user", "content": "What is 2 + 3?"}],
        "temperature": 0,
        **body,
    }
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": fields}) + "\n"


def results(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(each) for each in path.read_text().splitlines()]
    return {result["custom_id"]: result for result in found}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text(line("sum", max_tokens=16))
    return path


@pytest.mark.effect("server.response_role", "server.enable_prompt_tokens_details")
def test_a_file_of_requests_becomes_a_file_of_answers(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    target = tmp_path / "out.jsonl"
    words = ["-i", str(source), "-o", str(target), "--response-role", "model", "--enable-prompt-tokens-details"]
    code, out, err = run(capfd, "run-batch", *words, *IN_PROCESS)
    assert code == 0, err
    assert out.startswith("1 lines: 1 answered; ")
    assert out.endswith(f"results: {target}\n")
    body = results(target)["sum"]["response"]["body"]
    assert "5" in body["choices"][0]["message"]["content"]
    assert body["choices"][0]["message"]["role"] == "model"
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []


@pytest.mark.effect("server.enable_log_requests", "server.max_log_len", "server.disable_access_log")
@pytest.mark.slow
def test_flags_say_how_much_is_logged(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    words = ["-i", str(source), "-o", str(tmp_path / "out.jsonl"), *IN_PROCESS]
    err = run(capfd, "run-batch", *words, "--enable-log-requests", "--max-log-len", "4")[2]
    assert "POST /v1/chat/completions" in err
    arrival = next(each for each in err.splitlines() if "request arrived" in each)
    assert len(json.loads(arrival)["prompt"]) == 4
    err = run(capfd, "run-batch", *words, "--disable-log-requests")[2]
    assert "POST /v1/chat/completions" not in err


def test_a_line_that_is_no_request_sets_the_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line("long", max_tokens=600) + "nonsense\n" + line("good", max_tokens=1))
    code, out, _ = run(capfd, "run-batch", "-i", str(source), "-o", str(target), *IN_PROCESS)
    assert code == 1
    assert out.startswith("3 lines: 1 answered, 1 refused, 1 malformed or duplicate; ")
    assert results(target)["good"]["response"]["status_code"] == 200
    source.write_text(line("long", max_tokens=600))
    target.write_text("")
    with target.open() as opened:  # as a program does that made the file
        assert run(capfd, "run-batch", "-i", str(source), "-o", str(target), *IN_PROCESS)[0] == 0
        assert json.loads(opened.read())["response"]["status_code"] == 400


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-i", "in.jsonl", "-o", "in.jsonl"], 2, "--output-file is the input file"),
        (["-i", "in.jsonl", "-o", "s3://bucket/x"], 2, "an http(s) URL that accepts PUT"),
        (["-i", "ftp://x/y", "-o", "out.jsonl"], 2, "an http(s) URL, or - for standard input"),
        (["-i", "none.jsonl", "-o", "out.jsonl"], 4, "cannot read none.jsonl: no such file or directory; give a file"),
        (["-i", "/dev/zero", "-o", "out.jsonl"], 4, "cannot read /dev/zero: a device, not a regular file; give a file"),
        (["-i", ".", "-o", "out.jsonl"], 4, "cannot read .: is a directory; give a file, an http(s) URL, or - for "),
        (["-i", "in.jsonl", "-o", "/dev/null"], 4, "cannot write /dev/null: a device, not a regular file; give a file"),
        (["-i", "in.jsonl", "-o", "none/out.jsonl"], 4, "No such file or directory"),
        (["-i", "in.jsonl", "-o", "."], 4, "cannot write .: is a directory; give a file for the results"),
        (
            ["-i", "http://127.0.0.1:9/x?secret=1", "-o", "out"],
            4,
            "cannot read http://127.0.0.1:9/x: connection refused",
        ),
        (["-o", "out.jsonl"], 2, "--input-file"),
        (["-i", "in.jsonl", "-o", "out.jsonl", "--port", "1"], 2, "add --enable-metrics"),
    ],
)
@pytest.mark.holds("R193")
def test_an_unusable_file_is_reported_before_a_model_is_loaded(
    words: list[str],
    code: int,
    said: str,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(source.parent)
    found, out, err = run(capsys, "run-batch", *words, *MODEL)
    assert (found, out) == (code, "")
    assert said in err
    assert "secret" not in err
    assert [path.name for path in source.parent.iterdir()] == ["in.jsonl"]


@pytest.mark.holds("R197")
def test_flags_without_effect_are_reported():
    flags = BatchFlags(input_file="a", output_file="b", output_tmp_dir="t", use_v2_block_manager=True)
    assert list(run_batch._warnings(flags)) == [
        "--output-tmp-dir has no effect: --output-file is not a URL",
        "--use-v2-block-manager is deprecated and has no effect: there is one block pool",
    ]
    quiet = BatchFlags(input_file="a", output_file="http://h/b", port=1, enable_metrics=True, output_tmp_dir="t")
    assert list(run_batch._warnings(quiet)) == []


@pytest.mark.slow
def test_an_interrupted_run_keeps_its_lines_and_the_same_command_continues(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    long = {"max_tokens": 250, "ignore_eos": True}
    lines = [line("first", max_tokens=1), *(line(str(number), **long) for number in range(59))]
    source.write_text("".join(lines))
    words = ["run-batch", "-i", str(source), "-o", str(target), *MODEL, "--disable-log-requests"]
    process = subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    deadline = time.monotonic() + START_LIMIT_S
    parts: list[Path] = []
    while process.poll() is None and time.monotonic() < deadline and not (parts and parts[0].stat().st_size):
        parts = list(tmp_path.glob("*.part"))
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, ""), err
    assert err.splitlines()[-1] == "error: interrupted"
    assert f"results are kept in {parts[0]}; the same command continues from there" in err
    kept = parts[0].read_bytes()
    assert kept.endswith(b"\n")
    done = len(kept.splitlines())
    assert 0 < done < 60
    assert not target.exists()

    code, out, err = run(capfd, *words, "--disable-frontend-multiprocessing")
    assert code == 0, err
    assert f"continuing {parts[0]} with {done} results" in err
    assert target.read_bytes().startswith(kept)
    assert len(results(target)) == len(target.read_bytes().splitlines()) == 60
    assert not parts[0].exists()


def test_work_is_cancelled_by_a_signal_and_may_clean_up():
    cleaned: list[bool] = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(Interrupted) as caught:
        asyncio.run(interruptible(work()))
    assert (caught.value.exit_code, cleaned) == (143, [True])


def test_metrics_and_nothing_else_are_served_while_a_batch_runs(tmp_path: Path):
    served = Served(write_tokenizer(tmp_path), FakeEngine())
    sockets = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"

    def read(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url + path) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, ""

    async def work() -> list[tuple[int, str]]:
        async with serving_metrics(served.service, sockets):
            return [await asyncio.to_thread(read, path) for path in ("/metrics", "/v1/models")]

    found = asyncio.run(work())
    assert [status for status, _ in found] == [200, 404]
    assert "stoker_engine_steps_total" in found[0][1]


class Store(BaseHTTPRequestHandler):
    """Takes PUT and gives it back by GET; fails the first `failures` times."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    failures: list[int] = []  # noqa: RUF012

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(200 if self.path in self.files else 404, self.files.get(self.path, b""))

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        status = self.failures.pop() if self.failures else 200
        if status == 200:
            self.files[self.path] = content
        self.answer(status)

    def answer(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def store() -> Iterator[str]:
    Store.files, Store.failures = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.holds("R194")
def test_input_and_output_may_be_urls(store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    Store.files["/in.jsonl"] = line("sum", max_tokens=1).encode()
    words = ["run-batch", "-i", f"{store}/in.jsonl", "-o", f"{store}/out.jsonl?signature=1"]
    words += ["--output-tmp-dir", str(tmp_path), *IN_PROCESS]
    Store.failures = [403]
    code, out, err = run(capfd, *words)
    assert (code, out) == (4, "")
    assert f"error: cannot write {store}/out.jsonl: the server answered 403 Forbidden" in err
    assert "1 results are kept in" in err
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o077 == 0, "what lies in a shared folder is for its owner"

    code, out, err = run(capfd, *words)
    assert code == 0, err
    assert "engine" not in err.replace("engine-", ""), "nothing is left to run, so nothing is loaded"
    assert out.endswith(f"results: {store}/out.jsonl\n")
    answer = json.loads(Store.files["/out.jsonl?signature=1"])
    assert answer["response"]["status_code"] == 200
    assert list(tmp_path.iterdir()) == []


def test_an_upload_is_tried_again_where_the_server_may_recover(store: str, tmp_path: Path):
    path, waits = tmp_path / "results", list[float]()
    path.write_bytes(b"x")
    Store.failures = [503, 500]
    transfer.upload(path, f"{store}/y", wait=waits.append)
    assert (Store.files["/y"], waits) == (b"x", [2.0, 4.0])
    Store.failures = [503] * 3
    with pytest.raises(transfer.TransferError, match="503"):
        transfer.upload(path, f"{store}/y", wait=waits.append)
