"""Attacks with the content of requests: large, deep, many, or of values that no honest client sends."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

from .catalogue import Catalogue, Scene, expect
from .server import Server, manifest
from .wire import Answer, ask, check_answer, connect, head, posting, statuses

CATALOGUE = Catalogue("bodies")
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
MIB = 1 << 20
TWICE_MIB = 600.0  # two bodies of 30 MB: text, values, prompt, and the copies in a process that renders templates
OVERLOADED = (413, 429, 503)  # documented answers to more than the server takes
REFUSED = (400, *OVERLOADED)
ANSWERED = (200, *REFUSED)


def text(**fields: object) -> bytes:
    return json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 2, **fields}).encode()


def chat(content: object = "x", **fields: object) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": "tiny", "messages": messages, "max_tokens": 2, **fields}).encode()


def tools(*functions: dict[str, object]) -> bytes:
    return chat(tools=[{"type": "function", "function": {"name": f"f{n}", **each}} for n, each in enumerate(functions)])


def message(fields: bytes) -> bytes:
    """A chat whose only message has these fields, as JSON."""
    return b'{"model":"tiny","max_tokens":2,"messages":[{"role":"user",' + fields + b"}]}"


def ids(tokens: bytes) -> bytes:
    return b'{"model":"tiny","tokens":' + tokens + b"}"


def call(arguments: str) -> bytes:
    """A chat with a tool call of an earlier turn."""
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    return json.dumps({"model": "tiny", "messages": messages, "max_tokens": 2}).encode()


def raw(prompt: bytes, field: bytes = b"prompt", rest: bytes = b"") -> bytes:
    """A completion whose field has this JSON."""
    other = b'"prompt":"x",' if field != b"prompt" else b""
    return b'{"model":"tiny","max_tokens":2,' + other + b'"' + field + b'":' + prompt + rest + b"}"


def _numbers(count: int) -> bytes:
    return b"[" + b",".join([b"7"] * count) + b"]"


LONG: dict[str, object] = {"max_tokens": 300, "ignore_eos": True}
MANY_KEYS = {f"k{n}": 1 for n in range(120_000)}
BANNED = {str(n): -100 for n in range(1024)}
ENUM = {"enum": [1] * 1_000_000}
EMPTY = {"type": "object", "properties": {f"p{n}": {} for n in range(60_000)}}
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def _schema_bodies(name: str, schema: dict[str, object]) -> dict[str, tuple[str, bytes]]:
    """A schema in every field and dialect that takes one."""
    form = {"type": "json_schema", "name": "a", "schema": schema}
    said = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    return {
        f"{name}-structured-outputs": (CHAT, chat(structured_outputs={"json": schema})),
        f"{name}-structured-outputs-text": (CHAT, chat(structured_outputs={"json": json.dumps(schema)})),
        f"{name}-guided": (TEXT, text(guided_json=schema)),
        f"{name}-guided-text": (TEXT, text(guided_json=json.dumps(schema))),
        f"{name}-json-schema": (CHAT, chat(json_schema=schema)),
        f"{name}-response-format": (CHAT, chat(response_format={"type": "json_schema", "json_schema": form})),
        f"{name}-structural-tag": (CHAT, chat(response_format={"type": "structural_tag", "structures": [schema]})),
        f"{name}-tool": (CHAT, tools({"parameters": schema})),
        f"{name}-text-format": (
            RESPONSES, json.dumps({"model": "tiny", "input": "x", "text": {"format": form}}).encode()
        ),
        f"{name}-output-config": (MESSAGES, json.dumps({**said, "output_config": {"format": form}}).encode()),
    }  # fmt: skip


Make = Callable[[Random], bytes]
# name -> path, body, allowed statuses
BODIES: dict[str, tuple[str, Make, tuple[int, ...]]] = {
    "deep-arrays": (TEXT, lambda _: raw(b"[" * 100_000 + b"]" * 100_000), REFUSED),
    "deep-arrays-unclosed": (TEXT, lambda _: raw(b"[" * 5_000_000), REFUSED),
    "deep-objects": (TEXT, lambda _: raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), REFUSED),
    "deep-in-unknown-field": (TEXT, lambda _: raw(b"[" * 63 + b"]" * 63, b"unknown"), ANSWERED),
    "numbers-15-million": (TEXT, lambda _: raw(_numbers(15_000_000)), REFUSED),
    "numbers-in-unknown-field": (TEXT, lambda _: raw(_numbers(10_000_000), b"unknown"), ANSWERED),
    "numbers-in-stop": (TEXT, lambda _: raw(_numbers(5_000_000), b"stop_token_ids"), REFUSED),
    "lists-of-one-number": (TEXT, lambda _: raw(b"[" + b",".join([b"[7]"] * 120_000) + b"]"), REFUSED),
    "many-keys": (TEXT, lambda _: text(unknown=MANY_KEYS), ANSWERED),
    "duplicate-keys": (TEXT, lambda _: b"{" + b",".join([b'"model":"tiny"'] * 130_000) + b"}", REFUSED),
    "large-number": (TEXT, lambda _: raw(b"9" * 10_000_000, b"seed"), REFUSED),
    "large-exponent": (TEXT, lambda _: raw(b"1e999999999", b"temperature"), REFUSED),
    "large-fraction": (TEXT, lambda _: raw(b"0." + b"1" * 10_000_000, b"temperature"), ANSWERED),
    "nan": (TEXT, lambda _: raw(b"NaN", b"temperature"), REFUSED),
    "large-prompt": (TEXT, lambda _: text(prompt="word " * (6 * MIB)), REFUSED),
    "large-prompt-one-word": (TEXT, lambda _: text(prompt="a" * (30 * MIB)), REFUSED),
    "large-prompt-spaces": (TEXT, lambda _: text(prompt=" " * (30 * MIB)), REFUSED),
    "large-prompt-escapes": (TEXT, lambda _: raw(b'"' + b"\\u0041" * 5_000_000 + b'"'), REFUSED),
    "large-prompt-astral": (TEXT, lambda _: raw(b'"' + "\U0001f600".encode() * 7_000_000 + b'"'), REFUSED),
    "large-message": (CHAT, lambda _: chat("word " * (6 * MIB)), REFUSED),
    "large-message-special-tokens": (CHAT, lambda _: chat("<|im_start|>" * (2 * MIB)), REFUSED),
    "large-message-think": (CHAT, lambda _: chat("</think>" * (3 * MIB)), REFUSED),
    "large-part-list": (CHAT, lambda _: chat([{"type": "text", "text": "x"}] * 60_000), ANSWERED),
    "many-messages": (CHAT, lambda _: chat(messages=[{"role": "user", "content": "x" * 7_000}] * 4096), REFUSED),
    "many-tools": (CHAT, lambda _: tools(*[{"description": "y" * 200_000}] * 128), REFUSED),
    "large-unknown-field": (TEXT, lambda _: text(unknown="u" * (30 * MIB)), ANSWERED),
    "large-model": (TEXT, lambda _: text(model="m" * (30 * MIB)), (404, *REFUSED)),
    "large-user": (TEXT, lambda _: text(user="m" * (30 * MIB)), ANSWERED),
    "only-blanks": (TEXT, lambda _: b" " * (31 * MIB), REFUSED),
    "not-unicode": (TEXT, lambda random: raw(b'"' + random.randbytes(1_000_000) + b'"'), REFUSED),
    "utf-16": (TEXT, lambda _: text().decode().encode("utf-16"), REFUSED),
    "nul": (TEXT, lambda _: raw(b'"a\\u0000b"'), ANSWERED),
    "lone-surrogate-in-prompt": (TEXT, lambda _: raw(b'"\\ud800"'), REFUSED),
    "lone-surrogate-in-stop": (TEXT, lambda _: raw(b'["\\udfff"]', b"stop"), REFUSED),
    "lone-surrogate-in-key": (TEXT, lambda _: raw(b'{"\\ud800":1}', b"unknown"), ANSWERED),
    "lone-surrogate-in-model": (TEXT, lambda _: b'{"model":"\\ud800","prompt":"x"}', (404, *REFUSED)),
    "lone-surrogate-in-message": (CHAT, lambda _: message(b'"content":"\\udc00"'), REFUSED),
    "lone-surrogate-in-name": (CHAT, lambda _: message(b'"name":"\\udc00","content":"x"'), ANSWERED),
    "lone-surrogate-in-tool": (CHAT, lambda _: tools({"description": "\ud800"}), REFUSED),
    "lone-surrogate-in-template-argument": (CHAT, lambda _: chat(chat_template_kwargs={"x": "\ud800"}), ANSWERED),
    "arguments-deep": (CHAT, lambda _: call("[" * 100_000), REFUSED),
    "arguments-deep-closed": (CHAT, lambda _: call('{"a":' * 5_000 + "1" + "}" * 5_000), REFUSED),
    # The escape of half of a pair is plain text, and arguments that are no object are rendered as their text.
    "arguments-lone-surrogate": (CHAT, lambda _: call('{"a": "\\ud800"}'), (200,)),
    "arguments-lone-surrogate-unescaped": (CHAT, lambda _: call('{"a": "\ud800"}'), REFUSED),
    "arguments-large-number": (CHAT, lambda _: call('{"a": ' + "9" * 5_000_000 + "}"), ANSWERED),
    "arguments-nan": (CHAT, lambda _: call('{"a": NaN}'), ANSWERED),
    "arguments-numbers": (CHAT, lambda _: call('{"a": [' + "7," * 8_000_000 + "7]}"), REFUSED),
    "arguments-array": (CHAT, lambda _: call("[1]"), ANSWERED),
    "tool-schema-deep": (CHAT, lambda _: tools({"parameters": json.loads('{"a":' * 50 + "{}" + "}" * 50)}), ANSWERED),
    "template-arguments-many": (CHAT, lambda _: chat(chat_template_kwargs=MANY_KEYS), ANSWERED),
    "stop-overlapping": (TEXT, lambda _: text(stop=["a" * 1023 + chr(98 + n) for n in range(16)], **LONG), ANSWERED),
    "stop-of-one-character": (TEXT, lambda _: text(stop=list("abcdefghijklmnop"), n=64, max_tokens=100), ANSWERED),
    "stop-objects": (TEXT, lambda _: text(stop={"a": 1}), REFUSED),
    "logit-bias-many": (TEXT, lambda _: text(logit_bias=BANNED, n=16, **LONG), ANSWERED),
    "logit-bias-too-many": (TEXT, lambda _: text(logit_bias={str(n): 1 for n in range(120_000)}), REFUSED),
    "logit-bias-infinite": (TEXT, lambda _: raw(b'{"5":1e999}', b"logit_bias"), REFUSED),
    "logit-bias-underscore": (TEXT, lambda _: text(logit_bias={"1_0": 1}), REFUSED),
    "logit-bias-other-digits": (TEXT, lambda _: text(logit_bias={"\u0663": 1}), REFUSED),
    "logit-bias-blank": (TEXT, lambda _: text(logit_bias={" 5": 1}), ANSWERED),
    "logit-bias-large-key": (TEXT, lambda _: text(logit_bias={"9" * 5_000_000: 1}), REFUSED),
    "everything-banned": (TEXT, lambda _: text(logit_bias=BANNED, min_tokens=50, **LONG), ANSWERED),
    "choices-and-logprobs": (TEXT, lambda _: text(n=128, logprobs=20, max_tokens=60, ignore_eos=True), ANSWERED),
    "prompt-logprobs": (TEXT, lambda _: text(prompt=[[7] * 1900] * 16, prompt_logprobs=20, echo=True), ANSWERED),
    "prompts-1024": (TEXT, lambda _: text(prompt=["y" * 1500] * 1024, max_tokens=1), ANSWERED),
    "prompts-1024-of-ids": (TEXT, lambda _: text(prompt=[[9] * 2000] * 1024, max_tokens=1), ANSWERED),
    "penalties-at-limits": (TEXT, lambda _: text(n=32, repetition_penalty=1e-3, min_p=1, **LONG), ANSWERED),
    "max-tokens-large": (TEXT, lambda _: text(max_tokens=2**63), REFUSED),
    "detokenize-3-million": ("/detokenize", lambda _: ids(_numbers(3_000_000)), ANSWERED),
    "detokenize-10-million": ("/detokenize", lambda _: ids(_numbers(10_000_000)), ANSWERED),
    "detokenize-negative": ("/detokenize", lambda _: ids(b"[-1, 1180591620717411303424]"), REFUSED),
    "tokenize-30-million": ("/tokenize", lambda _: text(prompt="ab " * (10 * MIB)), ANSWERED),
    "tokenize-one-word": ("/tokenize", lambda _: text(prompt="a" * (30 * MIB)), ANSWERED),
    "tokenize-messages": ("/tokenize", lambda _: chat("</think>" * (3 * MIB)), ANSWERED),
}  # fmt: skip


def _send(path: str, make: Make, allowed: tuple[int, ...], scene: Scene, *, copies: int = 2) -> str:
    """The same body several times at once."""
    data = posting(path, make(scene.random))
    with ThreadPoolExecutor(copies) as pool:
        asked = [pool.submit(ask, scene.address, data, limit_s=25 * scene.slowness) for _ in range(copies)]
        answers: list[Answer] = [each.result() for each in asked]
    for answer in answers:
        check_answer(answer, allowed, f"{len(data)} bytes to {path}")
    code = answers[0].json["error"]["code"] if answers[0].status >= 400 else ""
    return f"{len(data) >> 10} KiB: {answers[0].status} {code}"


def _send_four(path: str, body: bytes, scene: Scene) -> str:
    return _send(path, lambda _: body, REFUSED, scene, copies=4)


for _name, (_path, _body) in (_schema_bodies("enum", ENUM) | _schema_bodies("empty-properties", EMPTY)).items():
    CATALOGUE.add(_name, partial(_send_four, _path, _body), memory_mib=TWICE_MIB, limit_s=60)

for _name, (_path, _make, _allowed) in BODIES.items():
    CATALOGUE.add(_name, partial(_send, _path, _make, _allowed), memory_mib=TWICE_MIB)


def _unfinished(scene: Scene) -> str:
    """60 bodies of 31 MB whose last byte never comes."""
    top = head("POST", TEXT, "content-type: application/json", f"content-length: {31 * MIB}")
    body, opened, sent, refused = b" " * MIB, [], 0, 0
    try:
        for _ in range(60):
            each = connect(scene.address, limit_s=2)
            opened.append(each)
            with contextlib.suppress(OSError):  # refused, or not read
                each.sendall(top)
                for _ in range(30):
                    each.sendall(body)
                    sent += 1
        time.sleep(2)
        for each in opened:
            each.settimeout(0.01)
            with contextlib.suppress(OSError):
                refused += {413, 429, 503} >= set(statuses(each.recv(4096))) > set()
    finally:
        for each in opened:
            each.close()
    return f"{sent} MiB sent, {refused} of {len(opened)} refused"


CATALOGUE.add("unfinished-bodies", _unfinished, memory_mib=400, limit_s=60)
FEW_BYTES = ("--max-total-request-bytes", "64MiB")
CATALOGUE.add("unfinished-bodies-small-budget", _unfinished, options=FEW_BYTES, memory_mib=150, limit_s=60)


@CATALOGUE.attack(memory_mib=700, limit_s=60)
def large_prompts_at_once(scene: Scene) -> str:
    """8 prompts of 10 MB, with which the latency of /health is promised."""
    return _send(TEXT, lambda _: text(prompt="word " * (2 * MIB)), REFUSED, scene, copies=8)


@CATALOGUE.attack(limit_s=60, bystander_may_fail=True)  # /health is 503 while the queue is full
def more_requests_than_the_queue_takes(scene: Scene) -> str:
    """Requests beyond the queue are refused, and requests that wait are served or leave."""
    data = posting(TEXT, text(n=8, max_tokens=400, ignore_eos=True))
    opened = [connect(scene.address) for _ in range(600)]
    try:
        for each in opened:
            each.sendall(data)
        time.sleep(5)
        refused = ask(scene.address, posting(TEXT, text(n=128)), limit_s=30 * scene.slowness)
        check_answer(refused, ANSWERED, "a request more")
    finally:
        for each in opened:
            each.close()
    return f"600 requests of 8 sequences, then one of 128: {refused.status}"


@CATALOGUE.attack(limit_s=60)
def one_request_id_for_many(scene: Scene) -> str:
    """Requests with the same id are answered each for itself; a rank that does not exist is refused."""
    content = text(max_tokens=20)
    lines = ("content-type: application/json", "x-request-id: same", f"content-length: {len(content)}")

    def send(rank: int) -> Answer:
        data = head("POST", TEXT, *lines, f"x-data-parallel-rank: {rank}") + content
        return ask(scene.address, data, limit_s=40 * scene.slowness)

    with ThreadPoolExecutor(16) as pool:
        for each in [pool.submit(send, 0) for _ in range(64)]:
            check_answer(each.result(), (200,), "a request with the id of another")
    check_answer(send(7), (400,), "a request for a replica that does not exist")
    return "64 requests"


@CATALOGUE.attack()
def hostile_names_of_fields(scene: Scene) -> str:
    """What is logged once for each unknown field: bounded in number and size, without control characters."""
    names = ["f" * 20_000_000, "\x1b[31mred\nerror: line\r", "\u202e", *(f"n{number}" for number in range(100_000))]
    for group in (names[:1], names[1:3], names[3:]):
        answer = ask(scene.address, posting(TEXT, text(**dict.fromkeys(group, 1))), limit_s=30 * scene.slowness)
        check_answer(answer, ANSWERED, f"{len(group)} unknown fields")
    log = scene.server.log
    expect("\x1b" not in log and "\nerror: line" not in log, "control characters of a field's name are in the log")
    expect(len(log) < 1_000_000, f"the log has {len(log)} characters")
    return f"{len(names)} names, {len(log)} characters of log"


@CATALOGUE.attack(limit_s=60)
def compressed_bodies(scene: Scene) -> str:
    """A content coding that the server does not read must not be taken for text, and nothing is unpacked."""
    packed = gzip.compress(b" " * (200 * MIB), compresslevel=9)
    lines = ("content-type: application/json", "content-encoding: gzip", f"content-length: {len(packed)}")
    answer = ask(scene.address, head("POST", TEXT, *lines) + packed)
    check_answer(answer, (400, 415), "a gzip bomb")
    return f"answered {answer.status}"


@CATALOGUE.attack(limit_s=60)
def mutated_requests(scene: Scene) -> str:
    """Valid requests with random bytes changed."""
    counts: dict[int, int] = {}
    for number in range(300):
        path, body = scene.random.choice(
            [(TEXT, text(stop=["a"], logit_bias={"5": 1})), (CHAT, chat()), (CHAT, call('{"a": 1}'))]
        )
        changed = bytearray(body)
        for _ in range(scene.random.randrange(1, 6)):
            position = scene.random.randrange(len(changed))
            changed[position : position + scene.random.randrange(3)] = scene.random.choice(
                [b"[", b'"', b"\\", b"9" * 30, b"{", b"\xff", b"null", b"-", b"e9", b"\\ud800", b",", b"true"]
            )
        answer = ask(scene.address, posting(path, bytes(changed)))
        check_answer(answer, (200, 400, 404), f"mutation {number}: {bytes(changed)!r}")
        counts[answer.status] = counts.get(answer.status, 0) + 1
    return ", ".join(f"{count} x {status}" for status, count in sorted(counts.items()))


BATCH_LINES = [
    b"[" * 200_000,
    b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "\\ud800"}}',
    b'{"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", "prompt": NaN}}',
    b'{"custom_id": "d", "method": "POST", "url": "file:///etc/passwd", "body": {}}',
    b'{"custom_id": 7, "method": "POST", "url": "/v1/completions", "body": {"model": "tiny"}}',
    b'{"custom_id": "e", "method": "DELETE", "url": "/health", "body": null}',
    b'{"custom_id": "f", "method": "POST", "url": "/v1/completions", "body": ' + text(prompt="x" * 20_000_000) + b"}",
    b'{"custom_id": "g", "method": "POST", "url": "/v1/chat/completions", "body": '
    + call("[" * 100_000)
    + b"}",
    b"\xff\xfe\x00",
    b"\x00" * 1000,
    b"null",
    b'{"custom_id": "h", "method": "POST", "url": "/v1/completions", "body": ' + text() + b"}",
]  # fmt: skip


def _batch(lines: list[bytes], scene: Scene) -> str:
    """`engine run-batch`: a documented exit code, no traceback, bounded memory."""
    source, target = scene.folder / "in.jsonl", scene.folder / "out.jsonl"
    source.write_bytes(b"\n".join(lines) + b"\n")
    options = ("-i", str(source), "-o", str(target))
    server = Server(scene.folder, manifest(), options, verb=("run-batch",))
    try:
        code = server.wait(100 * scene.slowness)
        expect(code in (0, 1, 2, 3, 4, 78), f"run-batch ended with {code}: {server.log[-200:]}")
        expect("Traceback" not in server.log, f"run-batch printed a traceback: {server.log[-200:]}")
        expect(server.peak_anonymous_mib < 2048, f"run-batch took {server.peak_anonymous_mib:.0f} MiB")
        written = target.read_bytes().splitlines() if target.exists() else []
        expect(all(isinstance(json.loads(line), dict) for line in written), "the output is not one object per line")
        return f"code {code}, {len(written)} lines for {len(lines)}: {(server.log.strip().splitlines() or [''])[-1]}"
    finally:
        server.close()


CATALOGUE.add("batch-file", partial(_batch, BATCH_LINES), on_server=False, limit_s=120)
CATALOGUE.add("batch-file-not-text", partial(_batch, [b"\xff" * 5_000_000]), on_server=False, limit_s=120)
