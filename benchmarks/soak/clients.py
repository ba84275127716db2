"""Clients of the soak test: streams of random lengths over raw connections; many disconnect before the end.

Each client sends one request after another. The expected result of each kind of request is known: a response, an error,
or nothing because the client disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

LIMIT_S = 120.0  # a request that takes longer is stuck
NUM_STEMS = 5
MAX_ID = 255  # token ids that every vocabulary contains


@dataclass
class Tally:
    ended: Counter[str] = field(default_factory=Counter)  # kind of request -> number that ended as expected
    wrong: list[str] = field(default_factory=list)  # descriptions of those that did not
    num_refused: int = 0  # because the queue was full
    first_token_s: list[float] = field(default_factory=list)


class Client:
    def __init__(self, host: str, port: int, model: str, context: int, tally: Tally, random: Random) -> None:
        """context: number of tokens in the longest prompts."""
        self._address = host, port
        self._model = model
        self._tally = tally
        self._random = random
        self._context = context
        stems = Random("stems")  # the same for all clients
        self._stems = [[stems.randint(1, MAX_ID) for _ in range(context // 3)] for _ in range(NUM_STEMS)]
        self._kinds = {
            self._completes: 50,
            self._requests_several_choices: 10,
            self._chats: 5,
            self._disconnects_midway: 15,
            self._disconnects_immediately: 5,
            self._disconnects_during_prefill: 5,
            self._sends_invalid_request: 10,
        }

    async def run_until(self, end: float) -> None:
        while time.monotonic() < end:
            (kind,) = self._random.choices(list(self._kinds), list(self._kinds.values()))
            name = kind.__name__.strip("_").replace("_", " ")
            try:
                async with asyncio.timeout(LIMIT_S):
                    if await kind():
                        self._tally.ended[name] += 1
            except TimeoutError:
                self._tally.wrong.append(f"{name}: stuck for {LIMIT_S:.0f} s")
            except (OSError, ValueError, AssertionError) as error:
                self._tally.wrong.append(f"{name}: {type(error).__name__}: {error}")

    # ---- kinds of requests; each returns True, or False if the queue was full; raises if the result is wrong

    async def _completes(self) -> bool:
        return await self._stream(self._completion())

    async def _disconnects_midway(self) -> bool:
        return await self._stream(self._completion(), disconnect_after=self._random.randint(1, 30))

    async def _disconnects_immediately(self) -> bool:
        async with self._request("/v1/completions", self._completion()):
            await asyncio.sleep(self._random.random() * 0.005)
        return True

    async def _disconnects_during_prefill(self) -> bool:
        prompt = [self._random.randint(1, MAX_ID) for _ in range(self._context)]
        async with self._request("/v1/completions", self._completion(prompt=prompt)):
            await asyncio.sleep(self._random.random() * 0.2)
        return True

    async def _requests_several_choices(self) -> bool:
        count = self._random.randint(2, 4)
        status, body = await self._answer("/v1/completions", self._completion(n=count, stream=False))
        assert status in (200, 429), f"{status} {body[:200]!r}"
        assert status == 429 or len(json.loads(body)["choices"]) == count
        return self._is_accepted(status)

    async def _chats(self) -> bool:
        messages = [{"role": "user", "content": "What does the option number " + str(self._random.randint(1, 99))}]
        body = {"model": self._model, "messages": messages, "max_tokens": self._random.randint(1, 60)}
        status, answer = await self._answer("/v1/chat/completions", body)
        assert status in (200, 429), f"{status} {answer[:200]!r}"
        return self._is_accepted(status)

    async def _sends_invalid_request(self) -> bool:
        body, status = self._random.choice(
            [
                (b"{", 400),
                (b"[]", 400),
                (self._completion(temperature=-1), 400),
                (self._completion(prompt=[]), 400),
                (self._completion(prompt=[1] * 300_000), 400),
                (self._completion(prompt=[-1]), 400),
                (self._completion(model="unknown/model"), 404),
                (self._completion(max_tokens="many"), 400),
                (self._completion(n=0), 400),
            ]
        )
        found, answer = await self._answer("/v1/completions", body)
        assert found == status, f"{found} instead of {status}: {answer[:200]!r}"
        assert json.loads(answer)["error"]["message"]
        return True

    def _completion(self, **changes: Any) -> dict[str, Any]:
        random = self._random
        stem = random.choice(self._stems)
        own = [random.randint(1, MAX_ID) for _ in range(random.randint(1, 40))]
        body = {
            "model": self._model,
            "prompt": stem[: random.randint(0, len(stem))] + own,
            "max_tokens": random.choice([1, 8, 32, 32, 128]),
            "temperature": random.choice([0, 0.7, 1.0]),
            "top_p": random.choice([1.0, 0.9]),
            "frequency_penalty": random.choice([0, 0, 0.5]),
            "ignore_eos": True,
            "stream": True,
        }
        return {**body, **changes}

    # ---- minimal HTTP/1.1 client

    @contextlib.asynccontextmanager
    async def _request(self, path: str, body: dict[str, Any] | bytes):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\nconnection: close\r\n"
        reader, writer = await asyncio.open_connection(*self._address, limit=1 << 22)
        try:
            writer.write(head.encode() + f"content-length: {len(content)}\r\n\r\n".encode() + content)
            await writer.drain()
            yield reader
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, path: str, body: dict[str, Any] | bytes) -> tuple[int, bytes]:
        async with self._request(path, body) as reader:
            head, _, content = (await reader.read(-1)).partition(b"\r\n\r\n")
        if b"chunked" in head.lower():
            content = b"".join(content.split(b"\r\n")[1::2])
        return int(head.split(b" ", 2)[1]), content

    async def _stream(self, body: dict[str, Any], disconnect_after: int | None = None) -> bool:
        began, num_events, last = time.monotonic(), 0, b""
        async with self._request("/v1/completions", body) as reader:
            status = int((await reader.readline()).split(b" ", 2)[1])
            assert status in (200, 429), status
            if status == 429:
                return self._is_accepted(status)
            async for line in reader:
                if not line.startswith(b"data: "):
                    continue
                if not num_events:
                    self._tally.first_token_s.append(time.monotonic() - began)
                num_events, last = num_events + 1, line
                assert not line.startswith(b'data: {"error"'), line[:300]
                if num_events == disconnect_after:
                    return True
        assert last.strip() == b"data: [DONE]", f"the stream ended with {last[:100]!r}"
        return True

    def _is_accepted(self, status: int) -> bool:
        self._tally.num_refused += status == 429
        return status == 200
