"""`make tiny`: train builtin:tiny from scratch and write weights and score into src/builtin/tiny.

Needs two CPU cores for less than half an hour. Same seed, same versions, same machine: same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from .tiny import card
from .tiny import tokenizer as tiny_tokenizer
from .tiny.dialogues import Writer
from .tiny.evaluate import answer, held_out, score
from .tiny.options import read_options
from .tiny.rendering import FOLDER, answer_text, encode, prompt_text
from .tiny.tokenizer import END_OF_TEXT, END_OF_TURN, VOCAB_SIZE

SEED = 2026
ROW = 384  # tokens of packed dialogues per row
ROWS = 8  # per step
PEAK_LR = 4e-3
WARMUP = 50
THINKING, THINKING_OF_SUMS = 0.15, 0.4  # share of dialogues with thoughts
MAX_LENGTH = 2048
IGNORED = -100


def build_model(tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END_OF_TURN),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        attn_implementation="sdpa",
    )
    return Qwen3ForCausalLM(config)


class Packer:
    """Packs complete dialogues into rows; the loss counts answer tokens only."""

    def __init__(self, writer: Writer, tokenizer: Tokenizer, seed: int) -> None:
        self._writer = writer
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._pad = tokenizer.token_to_id(END_OF_TEXT)
        self._ready: list[tuple[list[int], list[int]]] = []

    def batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """ids, positions, labels: [ROWS, ROW] int64. Positions restart at 0 with each dialogue, so that its
        attention does not include the previous dialogue."""
        ids = torch.full((ROWS, ROW), self._pad)
        positions = torch.zeros(ROWS, ROW, dtype=torch.long)
        labels = torch.full((ROWS, ROW), IGNORED)
        for row in range(ROWS):
            at = 0
            while True:
                prompt, reply = self._next()
                end = at + len(prompt) + len(reply)
                if end > ROW:
                    self._ready.append((prompt, reply))
                    break
                ids[row, at:end] = torch.tensor(prompt + reply)
                labels[row, at + len(prompt) : end] = torch.tensor(reply)
                positions[row, at:end] = torch.arange(end - at)
                at = end
            positions[row, at:] = torch.arange(ROW - at)
        return ids, positions, labels

    def _next(self) -> tuple[list[int], list[int]]:
        while not self._ready:
            dialogues = [self._writer.sample() for _ in range(256)]
            shares = [THINKING_OF_SUMS if dialogue.kind == "sum" else THINKING for dialogue in dialogues]
            sampled = [(d, self._random.random() < share) for d, share in zip(dialogues, shares, strict=True)]
            self._ready = [pair for pair in encode(self._tokenizer, sampled) if sum(map(len, pair)) <= ROW]
        return self._ready.pop()


def train(model: Qwen3ForCausalLM, packer: Packer, minutes: float, max_steps: int | None) -> tuple[int, float]:
    """Train for `max_steps` steps, or for `minutes` if it is None; the learning rate follows the share that is done.

    Returns (number of steps, mean loss of the last 100).
    """
    embedding = model.get_input_embeddings().weight
    matrices = [p for p in model.parameters() if p.dim() > 1 and p is not embedding]
    others = [p for p in model.parameters() if p.dim() == 1 or p is embedding]
    optimizers = [
        # after 150 steps the loss with Muon was lower than with AdamW (1.44 against 1.65); its steps took 25% longer
        torch.optim.Muon(matrices, lr=PEAK_LR, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    started, losses, step = time.monotonic(), [], 0
    while True:
        if max_steps is None:
            share = (time.monotonic() - started) / (60 * minutes)
        else:
            share = step / max_steps
        if share >= 1:
            return step, sum(losses[-100:]) / len(losses[-100:])
        rate = PEAK_LR * min(1.0, (step + 1) / WARMUP) * (0.51 + 0.49 * math.cos(math.pi * share))
        for group in [group for optimizer in optimizers for group in optimizer.param_groups]:
            group["lr"] = rate
        ids, positions, labels = packer.batch()
        # float32: on CPUs without a matrix unit autocast to bfloat16 took 1.8 times as long
        hidden = model.model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
        counted = labels[:, 1:] != IGNORED  # the LM head runs on these positions only
        logits = model.lm_head(hidden[:, :-1][counted])
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:][counted])
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
        step += 1
        if step % 50 == 0:
            mean = sum(losses[-50:]) / 50
            print(f"step {step}, {share:.0%}, loss {mean:.4f}, {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800, help="training steps")
    parser.add_argument("--minutes", type=float, help="train for this time instead of a number of steps")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    wall, cpu = time.monotonic(), time.process_time()
    torch.manual_seed(SEED)
    torch.set_flush_denormal(True)
    options = read_options()

    writer = Writer(options, SEED)
    sample = [(writer.sample(), index % 4 == 0) for index in range(8000)]
    tokenizer = tiny_tokenizer.train(prompt_text(d, t) + answer_text(d, t) for d, t in sample)
    model = build_model(tokenizer)
    packer = Packer(writer, tokenizer, SEED)
    steps, loss = train(model, packer, chosen.minutes or 0, None if chosen.minutes else chosen.steps)

    model = model.to(torch.bfloat16)  # both the published weights and the score use bfloat16
    end_of_turn, end_of_text = tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(END_OF_TEXT)
    model.generation_config.update(do_sample=False, eos_token_id=[end_of_turn], pad_token_id=end_of_text)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(chosen.folder)
    (chosen.folder / "model.safetensors").chmod(0o644)  # save_pretrained makes the file readable by its owner only
    tiny_tokenizer.save(tokenizer, chosen.folder, MAX_LENGTH)
    generation = {"do_sample": False, "temperature": 0.0, "eos_token_id": [end_of_turn]}
    (chosen.folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")

    model = model.float().eval()
    questions = held_out(options, SEED + 1)
    shares = score(model, tokenizer, questions)
    samples = [(d, t) for name in questions for d, t in questions[name][:2]]
    text = card.write(
        shares,
        list(zip(samples, answer(model, tokenizer, samples), strict=True)),
        parameters=model.num_parameters(),
        steps=steps,
        tokens=steps * ROW * ROWS,
        loss=loss,
        wall_s=time.monotonic() - wall,
        cpu_s=time.process_time() - cpu,
    )
    (chosen.folder / "MODEL_CARD.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
