from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from benchmarks.attack import __main__ as program
from benchmarks.attack import bodies, files, signals, sockets, templates, transports
from benchmarks.attack.bystander import Latencies, Observed, watching
from benchmarks.attack.catalogue import Attack, Catalogue, Fell, Scene, choose, expect
from benchmarks.attack.record import BEGIN, END, Record, read_verdicts, summary, table, write_page
from benchmarks.attack.server import MARK, Server, Usage, manifest
from benchmarks.attack.verdict import MORE_FDS, Traces, Verdict, judge, slowness
from benchmarks.attack.wire import Answer, answer_of, ask, check_answer, exchange, head, posting, statuses

ATTACK = Attack("sockets", "x", lambda _: "")
USAGE = Usage(anonymous_mib=200.0, rss_mib=500.0, num_fds=30, num_threads=20, num_processes=2)
GOOD = Traces(USAGE, USAGE, 250.0, Observed(Latencies(100, 5, 50, 400), Latencies(9, 50, 90, 99)), "", ("a", "a"))


def health(**latencies: float | list[str]) -> Observed:
    return Observed(Latencies(**{"num": 100, "p99": 5.0, "max": 9.0, **latencies}), Latencies(9))  # type: ignore[arg-type]


def test_an_attack_that_changes_nothing_is_held():
    assert judge(ATTACK, GOOD, 1.0) == []


@pytest.mark.parametrize(
    ("traces", "reason"),
    [
        (replace(GOOD, observed=health(p99=101.0)), "/health p99 was 101 ms; promised are 100 ms (x 1.0)"),
        (replace(GOOD, observed=health(max=1001.0)), "/health max was 1001 ms; promised are 1000 ms (x 1.0)"),
        (replace(GOOD, observed=health(failed=["503 after 0.1 s"])),
         "1 of 101 requests of the bystander for /health failed: 503 after 0.1 s"),
        (replace(GOOD, peak_mib=501.0), "memory grew by 301 MiB; allowed are 300 MiB"),
        (replace(GOOD, after=replace(USAGE, num_fds=31 + MORE_FDS)), "47 descriptors remain, before there were 30"),
        (replace(GOOD, after=replace(USAGE, num_threads=37)), "37 threads remain, before there were 20"),
        (replace(GOOD, after=replace(USAGE, num_processes=5)), "5 processes remain, before there were 2"),
        (replace(GOOD, log="1\nTraceback ...\n"), "a traceback in the log: Traceback ..."),
        (replace(GOOD, log="line\n" * 301), "301 log lines; the last: line"),
        (replace(GOOD, golden=("a", "b")), "the server answered 'a' before, 'b' after"),
        (replace(GOOD, problems=["it did not end"]), "it did not end"),
    ],
)  # fmt: skip
def test_each_trace_of_harm_makes_an_attack_fall(traces: Traces, reason: str):
    assert judge(ATTACK, traces, 1.0) == [reason]


def test_a_slow_machine_loosens_the_promise_and_a_very_slow_one_does_not_remove_it():
    assert slowness(Latencies(100, p99=10.0)) == 1.0
    assert slowness(Latencies(100, p99=30.0)) == 2.0
    assert slowness(Latencies(100, p99=9000.0)) == 10.0
    assert judge(ATTACK, replace(GOOD, observed=health(p99=199.0)), 2.0) == []
    assert judge(ATTACK, replace(GOOD, observed=health(p99=201.0)), 2.0)


def test_a_bystander_may_fail_only_where_the_attack_says_so():
    traces = replace(GOOD, observed=health(failed=["ConnectionRefusedError after 0.0 s"]))
    assert judge(replace(ATTACK, bystander_may_fail=True), traces, 1.0) == []


def test_latencies_are_of_answered_requests():
    found = Latencies.of([float(number) for number in range(1, 101)], ["timeout"])
    assert (found.num, found.p50, found.max, found.failed) == (100, 50.5, 100.0, ["timeout"])
    assert 99 <= found.p99 <= 100
    assert Latencies.of([7.0], []) == Latencies(1, 7.0, 7.0, 7.0, [])
    assert Latencies.of([], ["x"]) == Latencies(failed=["x"])


def test_every_attack_has_its_own_name():
    attacks = program.catalogue()
    names = [attack.id for attack in attacks]
    assert len(set(names)) == len(names)
    assert {attack.family for attack in attacks} == {"sockets", "transports", "bodies", "peers", "templates", "files"}


def test_attacks_are_chosen_by_family_or_name():
    catalogue = Catalogue("sockets")
    for name in ("garbage", "half-open", "half-closed"):
        catalogue.add(name, lambda _: "")
    assert [each.name for each in choose(catalogue.attacks, ["sockets/half"])] == ["half-open", "half-closed"]
    assert choose(catalogue.attacks, []) == catalogue.attacks
    with pytest.raises(ValueError, match="no attack is called 'bodies'"):
        choose(catalogue.attacks, ["bodies"])
    assert signals.number_of("signals/12") == 12
    with pytest.raises(ValueError, match="the rounds are signals/1"):
        signals.number_of("signals/x")


def test_results_are_written_after_each_attack_and_show_how_to_repeat_what_fell(tmp_path: Path):
    record = Record(tmp_path / "attack.json", 7)
    record.add(
        Verdict("sockets/a", [], "fine | well", 3.0, observed=GOOD.observed, before=USAGE, after=USAGE, peak_mib=250.0)
    )
    assert json.loads((tmp_path / "attack.json").read_text())["verdicts"][0]["held"] is True
    record.add(Verdict("files/b", ["a traceback"], repeat="python -m benchmarks.attack files/b --seed 7"))
    written = json.loads((tmp_path / "attack.json").read_text())
    assert (written["seed"], [each["held"] for each in written["verdicts"]]) == (7, [True, False])
    text = table(record.verdicts)
    assert "| sockets/a | held | 3 | 5, 50, 400 | 90 | 200, 250, 200 | 30 -> 30 | 20 -> 20 | fine / well |" in text
    assert "2 attacks, 1 fell." in text
    assert read_verdicts(tmp_path / "attack.json") == record.verdicts
    assert "| sockets | 1 | 0 | 50, 50 | 400 | 50 | 0 |" in summary(record.verdicts)
    assert "| files | 1 | 1 |  |  |  | 0 |" in summary(record.verdicts)
    assert text.endswith("files/b: repeat with `python -m benchmarks.attack files/b --seed 7`\n- a traceback")


def test_answers_are_read_from_raw_bytes():
    received = b"HTTP/1.1 200 \r\na: b\r\n\r\nxHTTP/1.1 404 \r\n\r\n"
    assert statuses(received) == [200, 404]
    chunked = b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert answer_of(chunked) == Answer(200, b"abcde")
    assert answer_of(b"") == Answer(0, b"")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(0, b""),
        Answer(500, b'{"error": {"message": "", "type": "", "param": "", "code": ""}}'),
        Answer(400, b"bad request"),
        Answer(404, b""),
        Answer(400, b'{"error": {"message": "x"}}'),
        Answer(400, b'{"error": {"message": "<X at 0x7f0011223344>", "type": "", "param": "", "code": ""}}'),
    ],
)
def test_an_answer_of_another_status_or_shape_is_not_accepted(answer: Answer):
    with pytest.raises(Fell):
        check_answer(answer, (200, 400, 404), "x")


def test_the_documented_answers_are_accepted():
    check_answer(Answer(400, b'{"error": {"message": "x", "type": "", "param": null, "code": ""}}'), (400,), "x")
    check_answer(Answer(431, b""), (431,), "x")


@pytest.fixture
def answering() -> Iterator[tuple[str, int]]:
    """A server that answers every connection once and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    opened, _ = listener.accept()
                except OSError:
                    return
                with opened:
                    opened.recv(1 << 16)
                    opened.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


def test_a_bystander_counts_what_it_is_answered(answering: tuple[str, int]):
    with watching(answering) as end:
        answer = ask(answering, posting("/", {}))
        seen = end()
    assert answer == Answer(200, b"ok")
    assert (seen.health.failed, seen.completion.failed) == ([], [])
    assert min(seen.health.num, seen.completion.num) >= 1


def test_an_answer_without_an_end_raises_a_timeout():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 200 ")
        with pytest.raises(TimeoutError):
            exchange(ours, b"", limit_s=0.1)
        theirs.sendall(b"x")
        assert exchange(ours, head("GET", "/"), limit_s=60, quiet_s=0.1) == b"x"


def test_processes_that_left_their_session_are_found_and_ended(tmp_path: Path):
    server = Server(tmp_path, manifest(), verb=("--version",))
    server.process.wait()
    orphan = subprocess.Popen(
        [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
        env={MARK: server.mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with orphan:
        assert orphan.stdout is not None
        orphan.stdout.readline()  # until then its environment is that of the test
        assert server.processes() == [orphan.pid]
        assert server.usage().num_processes == 1
        closing = threading.Thread(target=server.close)
        closing.start()
        assert orphan.wait(60) == -signal.SIGKILL
        closing.join()
    assert server.processes() == []


def test_descendants_without_the_mark_are_found_also_when_their_parent_has_ended(tmp_path: Path):
    server = Server(tmp_path, manifest(), verb=("--version",))
    server.process.wait()
    read, write = os.pipe()
    child = f"import os, sys; print(os.getpid(), flush=True); os.read({read}, 1)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], env={{}}, pass_fds=[{read}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent + "; sys.stdin.read()"],
        env={MARK: server.mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[read],
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orphan = int(process.stdout.readline())
        assert server.processes() == sorted([process.pid, orphan])
        process.stdin.close()
        process.wait()
        assert server.processes() == [orphan]
    os.close(write)
    os.close(read)
    server.close()
    assert server.processes() == []


def test_files_that_a_server_leaves_are_listed(tmp_path: Path):
    server = Server(tmp_path, manifest(), verb=("--version",))
    assert server.wait(60) == 0
    server.close()
    assert server.leftovers() == []
    (server.temporary / "a").mkdir()
    (server.temporary / "a" / "b").touch()
    assert server.leftovers() == ["a", "a/b"]


def test_mutations_of_files_depend_on_the_seed_alone(tmp_path: Path):
    found = []
    for number, seed in enumerate((1, 1, 2)):
        path = tmp_path / str(number)
        path.write_bytes(bytes(1000))
        files.MUTATIONS["flipped-bytes"](path, Random(seed))
        found.append(path.read_bytes())
    assert found[0] == found[1] != found[2]
    assert {len(content) for content in found} == {1000}


def test_every_filter_of_jinja_that_can_work_for_long_is_tried():
    from jinja2.filters import FILTERS

    harmless = {
        "count", "d", "default", "e", "first", "forceescape", "items", "last", "length", "lower", "min", "random",
        "reject", "rejectattr", "safe", "selectattr", "trim",
    }  # fmt: skip
    tried = {name.partition("-")[0] for name in templates.FILTERS}
    assert set(FILTERS) - harmless <= tried


def test_every_smuggled_request_follows_one_that_is_complete_for_someone():
    assert all(lines.endswith((b"\r\n\r\n", b"\n\n")) for lines in sockets.PAIRS.values())
    assert sockets.SMUGGLED.startswith(b"GET /smuggled ")
    assert len(bodies.BODIES) > 50


def test_expect_raises_the_sentence():
    expect(True, "never")
    with pytest.raises(Fell, match="it is so"):
        expect(False, "it is so")
    assert Scene(Random(1), Path(), 1.0).running is None


def test_the_results_in_a_page_are_replaced(tmp_path: Path):
    record = Record(tmp_path / "a.json", 7)
    record.add(Verdict("sockets/a", [], observed=GOOD.observed, before=USAGE, after=USAGE, peak_mib=250.0))
    record.add(Verdict("files/b", ["it | took long"], slowness=2.5))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(page, [tmp_path / "a.json"])
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n\nDate ")
    assert text.endswith(f"{END}\nafter\n")
    assert "seed 7; servers that are not attacked were 1 to 2.5 times" in text
    assert "| `files/b` | it / took long |" in text
    assert "old" not in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="does not have the marks"):
        write_page(page, [tmp_path / "a.json"])


def test_transports_are_attacked_in_the_same_way_where_they_allow_it():
    names = {attack.name for attack in transports.CATALOGUE.attacks}
    assert {name for name in names if name.startswith("unix-")} <= {name.replace("tls-", "unix-") for name in names}
    assert not any(attack.on_server for attack in transports.CATALOGUE.attacks)
