"""Time to first token in a session of a coding agent, with and without a nonce in its system prompt.

    python -m benchmarks.agent_session [--turns 40] [--tokens 30000] [--layers 7] [--output session.json]

An agent sends its whole transcript with every request. Two sessions run in turns on one server: one whose system prompt
stays the same, and one whose system prompt has a nonce, a counter of tokens, and a cache marker that moves, all of
which `server.agents_normalise` removes. Then a server without it gets the session with the nonce, of which only the
turns of --cold are sent: without a shared prefix each is computed alone, whatever came before.

Weights are random, in the shape of Qwen3-0.6B with --layers of its 28 layers: without the prefix cache, two cores need
minutes for 30000 tokens of the whole model. The answers are written by this benchmark: both sessions grow alike.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from stoker.cli.bench.workload import Shape, text_jobs

from .peers.chat import TEMPLATE, TOOLS
from .peers.convert.checkpoint import write_tokenizer

MODEL = Path(__file__).parent / "models" / "qwen3-0.6b"
MAX_LEN = 40_960
BYTES_PER_LAYER = 2 * 8 * 128 * 2  # of keys and values of one token
START_SHARE = 1 / 3  # of the tokens are in the first request: system prompt, tools, first files
NUM_OUTPUT = 4
START_LIMIT_S, TURN_LIMIT_S = 240.0, 1200.0


def write_model(folder: Path, layers: int) -> None:
    config = json.loads((MODEL / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    write_tokenizer(folder, config["vocab_size"])
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def words(num_tokens: int, seed: int) -> str:
    (job,) = text_jobs(1, Shape(num_tokens, 1), seed=seed)
    return str(job.prompt)


class Server:
    def __init__(self, model: Path, layers: int, *options: str) -> None:
        command = [sys.executable, "-m", "stoker", "serve", str(model), "--load-format", "dummy", "--port", "0"]
        command += ["--max-model-len", str(MAX_LEN), "--max-num-seqs", "2", "--dtype", "bfloat16"]
        cache = 2 * MAX_LEN * layers * BYTES_PER_LAYER
        command += ["--kv-cache-memory-bytes", str(cache), "--enable-prompt-tokens-details", *options]
        self._log = model / "server.log"
        with self._log.open("w") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out)
        deadline = time.monotonic() + START_LIMIT_S
        while (
            not (found := re.search(r"^ +url +(http\S+)$", self._text(), re.MULTILINE)) or "curl " not in self._text()
        ):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise SystemExit(f"error: the server did not start\n{self._text()}")
            time.sleep(0.2)
        self._http = httpx.Client(base_url=found[1], timeout=TURN_LIMIT_S, trust_env=False)
        self._model = self._http.get("/models").json()["data"][0]["id"]

    def _text(self) -> str:
        return self._log.read_text()

    def turn(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Seconds to the first token, tokens of the prompt, and how many of them were cached."""
        body = {
            "model": self._model,
            "messages": messages,
            "tools": TOOLS,
            "max_tokens": NUM_OUTPUT,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        first_s, usage = None, None
        began = time.perf_counter()
        with self._http.stream("POST", "/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise SystemExit(f"error: {response.status_code} {response.read().decode()}")
            for line in response.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                usage = chunk.get("usage") or usage
                delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
                if first_s is None and any(value for name, value in delta.items() if name != "role"):
                    first_s = time.perf_counter() - began
        if usage is None or first_s is None:
            raise SystemExit("error: the stream has no token, or no usage")
        return {
            "first_s": round(first_s, 4),
            "tokens": usage["prompt_tokens"],
            "cached": usage["prompt_tokens_details"]["cached_tokens"],
        }

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Session:
    """Messages of one session. With a nonce, its system prompt is another one in every request."""

    def __init__(self, tokens: int, turns: int, seed: int, *, has_nonce: bool) -> None:
        self._has_nonce = has_nonce
        self._system = words(int(tokens * START_SHARE), seed)
        self._per_turn = int(tokens * (1 - START_SHARE)) // turns
        self._seed = seed
        self._messages: list[dict[str, Any]] = []
        self._num = 0

    def next(self) -> list[dict[str, Any]]:
        """The messages of the next turn: what the assistant answered, and the output of its tool."""
        self._num += 1
        if self._num > 1:
            self._messages.append({"role": "assistant", "content": "I look at the next file."})
        text = words(self._per_turn, self._seed + self._num)
        self._messages.append({"role": "user", "content": [{"type": "text", "text": text}]})
        system = [{"type": "text", "text": f"Session {self._seed}. {self._system}"}]
        if not self._has_nonce:
            return [{"role": "system", "content": system}, *self._messages]
        nonce = f"{self._num * 7919 % 0xFFFFF:05x}"
        billing = f"x-anthropic-billing-header: cc_version=2.1.251.a3f; cc_entrypoint=cli; cch={nonce};\n"
        left = f"\n<total_tokens>{200_000 - self._num * 997} tokens left</total_tokens>"
        marker = {"cache_control": {"type": "ephemeral"}}
        system = [{"type": "text", "text": f"{billing}{system[0]['text']}{left}", **marker}]
        *before, last = self._messages
        last = {**last, "content": [{**last["content"][0], **marker}]}
        return [{"role": "system", "content": system}, *before, last]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=30_000, help="of the last prompt")
    parser.add_argument("--layers", type=int, default=7, help="of 28")
    parser.add_argument("--cold", default="2,20,40", help="turns that are sent without server.agents_normalise")
    parser.add_argument("--output", type=Path, help="write all turns here, as JSON")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1] / ".dev")
    sizes = (options.tokens, options.turns)
    found: dict[str, list[dict[str, Any]]] = {"plain": [], "nonce": [], "off": []}
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), options.layers)
        server = Server(Path(folder), options.layers)
        try:
            server.turn([{"role": "user", "content": "Hello"}])  # starts the isolated processes
            sessions = {"plain": Session(*sizes, 1, has_nonce=False), "nonce": Session(*sizes, 2, has_nonce=True)}
            for turn in range(1, options.turns + 1):
                for name in sorted(sessions, reverse=turn % 2 == 0):  # which is first alternates
                    found[name].append({"turn": turn, **server.turn(sessions[name].next())})
                print(turn, found["plain"][-1], found["nonce"][-1], file=sys.stderr)
        finally:
            server.close()
        server = Server(Path(folder), options.layers, "--agents-normalise", "[]")
        try:
            server.turn([{"role": "user", "content": "Hello"}])
            session, wanted = Session(*sizes, 2, has_nonce=True), {int(each) for each in options.cold.split(",")}
            for turn in range(1, options.turns + 1):
                messages = session.next()
                if turn in wanted:
                    found["off"].append({"turn": turn, **server.turn(messages)})
                    print(turn, found["off"][-1], file=sys.stderr)
        finally:
            server.close()
    if options.output:
        options.output.write_text(json.dumps(found, indent=1))
    print(report(found))


def report(found: dict[str, list[dict[str, Any]]]) -> str:
    plain, nonce = ({each["turn"]: each for each in found[name]} for name in ("plain", "nonce"))
    ratios = [nonce[turn]["first_s"] / plain[turn]["first_s"] for turn in plain if turn > 1]
    lines = ["| session | time to first token, median of the turns from 2 on | cached tokens of the last prompt |"]
    lines.append("|---|---|---|")
    for name, turns in (("no nonce", plain), ("nonce, normalised", nonce)):
        times = [each["first_s"] for turn, each in turns.items() if turn > 1]
        last = turns[max(turns)]
        lines.append(f"| {name} | {statistics.median(times):.3f} s | {last['cached']} of {last['tokens']} |")
    lines.append(f"\nnonce / no nonce, turn by turn: median {statistics.median(ratios):.2f}, largest {max(ratios):.2f}")
    for each in found["off"]:
        ratio = each["first_s"] / plain[each["turn"]]["first_s"]
        text = f"{each['first_s']:.1f} s, {ratio:.1f} times; {each['cached']} of {each['tokens']} tokens cached"
        lines.append(f"without normalisation, turn {each['turn']}: {text}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
