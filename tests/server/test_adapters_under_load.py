"""Adapters are loaded, loaded again in place and unloaded while many requests run: no answer has other weights."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from .adapted import MODEL, Running, serving, write_adapters

CONTENTS = ("a", "b", "c", "d", "e")  # folders
NAMES = ("one", "two", "three")
PROMPTS = ("The king said", "Once upon a time " * 6, "A")
NUM_CLIENTS = 16
GONE = "gone"


class Clients:
    """Ask for adapters by name, and change what the names stand for.

    versions: of each name, what it has stood for so far: a folder, or GONE.
    wanted: by folder, or the model, and prompt: the only right answer.
    """

    def __init__(self, running: Running, folder: Path, seed: int) -> None:
        self.running, self.folder, self.random = running, folder, random.Random(seed)
        self.versions: dict[str, list[str]] = {name: [GONE] for name in NAMES}
        self.wanted: dict[tuple[str, str], str] = {}
        self.found: Counter[str] = Counter()

    async def answer(self, model: str, prompt: str) -> str:
        body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        answer = await self.running.http.post("/v1/completions", json=body)
        if answer.status_code == 404:
            assert answer.json()["error"]["code"] == "model_not_found"
            return GONE
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    async def load(self, name: str, content: str) -> None:
        body = {"lora_name": name, "lora_path": str(self.folder / content), "load_inplace": True}
        self.versions[name].append(content)
        answer = await self.running.http.post("/v1/load_lora_adapter", json=body)
        assert answer.status_code == 200, answer.text
        self.found["loads"] += 1

    async def unload(self, name: str) -> None:
        self.versions[name].append(GONE)
        answer = await self.running.http.post("/v1/unload_lora_adapter", json={"lora_name": name})
        assert answer.status_code == 200, answer.text
        self.found["unloads"] += 1

    async def learn(self) -> None:
        """Each content alone, before anything happens at the same time."""
        for content in CONTENTS:
            await self.load("one", content)
            for prompt in PROMPTS:
                self.wanted[content, prompt] = await self.answer("one", prompt)
        await self.unload("one")
        for prompt in PROMPTS:
            self.wanted[MODEL, prompt] = await self.answer(MODEL, prompt)
        for prompt in PROMPTS[:2]:
            assert len({self.wanted[content, prompt] for content in (*CONTENTS, MODEL)}) > 3
        self.versions = {name: [GONE] for name in NAMES}

    async def ask(self, count: int) -> None:
        for _ in range(count):
            prompt = self.random.choice(PROMPTS)
            name = self.random.choice((*NAMES, MODEL))
            if name == MODEL:
                assert await self.answer(MODEL, prompt) == self.wanted[MODEL, prompt]
                self.found["model"] += 1
                continue
            # A change that is under way at the beginning may or may not have happened.
            first = max(0, len(self.versions[name]) - 2)
            text = await self.answer(name, prompt)
            allowed = {
                GONE if version == GONE else self.wanted[version, prompt] for version in self.versions[name][first:]
            }
            assert text in allowed, (name, prompt, self.versions[name][first:])
            self.found["gone" if text == GONE else "adapters"] += 1

    async def change(self, name: str, until: asyncio.Future[None]) -> None:
        """One task changes a name, so that the order of its versions is known."""
        while not until.done():
            if self.versions[name][-1] == GONE or self.random.random() < 0.7:
                await self.load(name, self.random.choice(CONTENTS))
            else:
                await self.unload(name)
            for _ in range(self.random.randrange(40)):
                await asyncio.sleep(0)


@pytest.mark.parametrize("num_requests", [640, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_answer_has_other_weights_than_its_name_stood_for(tmp_path: Path, num_requests: int) -> None:
    seed = 7
    write_adapters(tmp_path, *CONTENTS)

    async def run() -> Counter[str]:
        words = ["--enable-lora-routes", "--max-loras", "2", "--max-cpu-loras", "3", "--max-num-seqs", "8"]
        async with serving(*words) as running:
            clients = Clients(running, tmp_path, seed)
            await clients.learn()
            until = asyncio.get_running_loop().create_future()
            changes = [asyncio.ensure_future(clients.change(name, until)) for name in NAMES]
            try:
                await asyncio.gather(*(clients.ask(num_requests // NUM_CLIENTS) for _ in range(NUM_CLIENTS)))
            finally:
                until.set_result(None)
                await asyncio.gather(*changes)
            return clients.found

    found = asyncio.run(run())
    assert found["model"] + found["adapters"] + found["gone"] == num_requests
    assert min(found["adapters"], found["loads"], found["unloads"]) > num_requests // 100, (seed, found)
    print(found)
