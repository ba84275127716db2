"""`make tiny-drafts`: train a layer of EAGLE-3 for builtin:tiny, and write it into src/builtin/tiny-eagle3.

The layer learns the probabilities that the model gives to the next token but one, at first from the model's hidden
states, then from its own, as it drafts: arXiv:2503.01840, section 3.2. Needs two CPU cores for some ten minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import log_softmax, rms_norm, silu
from transformers import Qwen3ForCausalLM

from .tiny.dialogues import Writer
from .tiny.options import read_options
from .tiny.rendering import FOLDER, encode
from .train_tiny import IGNORED, SEED, Packer

DRAFT_FOLDER = FOLDER.parent / "tiny-eagle3"
READ_LAYERS = (1, 2, 4)  # whose inputs are read: early, in the middle, late
DRAFT_VOCAB = 1024  # the most frequent tokens
DEPTH = 4  # drafts one after the other that are trained
WEIGHTS = (1.0, 0.8, 0.64, 0.51)  # of their losses
PEAK_LR = 2e-3
HEADS, KV_HEADS, HEAD_DIM, EPS = 4, 2, 64, 1e-6


class Eagle3(nn.Module):
    """The parameters have the names of the checkpoint."""

    def __init__(self, hidden: int, width: int, vocab_size: int) -> None:
        super().__init__()
        self.hidden = hidden
        shapes = {
            "fc": (hidden, len(READ_LAYERS) * hidden),
            "midlayer.self_attn.q_proj": (HEADS * HEAD_DIM, 2 * hidden),
            "midlayer.self_attn.k_proj": (KV_HEADS * HEAD_DIM, 2 * hidden),
            "midlayer.self_attn.v_proj": (KV_HEADS * HEAD_DIM, 2 * hidden),
            "midlayer.self_attn.o_proj": (hidden, HEADS * HEAD_DIM),
            "midlayer.mlp.gate_proj": (width, hidden),
            "midlayer.mlp.up_proj": (width, hidden),
            "midlayer.mlp.down_proj": (hidden, width),
            "lm_head": (vocab_size, hidden),
        }
        norms = ("midlayer.input_layernorm", "midlayer.hidden_norm", "midlayer.post_attention_layernorm", "norm")
        self.weights = {
            **{name: nn.Parameter(torch.randn(shape) / shape[1] ** 0.5) for name, shape in shapes.items()},
            **{name: nn.Parameter(torch.ones(hidden)) for name in norms},
        }
        for index, (_, parameter) in enumerate(self.weights.items()):
            self.register_parameter(f"p{index}", parameter)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights[name].T

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, (self.hidden,), self.weights[name], EPS)

    def qkv(
        self, embedded: torch.Tensor, features: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> list[torch.Tensor]:
        """Queries, keys and values, [rows, heads, T, HEAD_DIM] each."""
        of_layer = "midlayer."
        x = torch.cat(
            [self.norm(f"{of_layer}input_layernorm", embedded), self.norm(f"{of_layer}hidden_norm", features)], -1
        )
        found = []
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            part = self.linear(f"{of_layer}self_attn.{name}_proj", x).unflatten(-1, (heads, HEAD_DIM)).transpose(1, 2)
            if name != "v":
                cos, sin = turn
                half = HEAD_DIM // 2
                part = part * cos + torch.cat([-part[..., half:], part[..., :half]], -1) * sin
            found.append(part.repeat_interleave(HEADS // heads, 1))
        return found

    def rest(self, features: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        stream = features + self.linear("midlayer.self_attn.o_proj", mixed.transpose(1, 2).flatten(2))
        x = self.norm("midlayer.post_attention_layernorm", stream)
        gated = silu(self.linear("midlayer.mlp.gate_proj", x)) * self.linear("midlayer.mlp.up_proj", x)
        return stream + self.linear("midlayer.mlp.down_proj", gated)


def rotation(positions: torch.Tensor, theta: float = 10_000.0) -> tuple[torch.Tensor, torch.Tensor]:
    angles = positions[..., None] / theta ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angles = torch.cat([angles, angles], -1)[:, None]
    return angles.cos(), angles.sin()


def losses(
    layer: Eagle3,
    embedded: torch.Tensor,
    kept: torch.Tensor,
    targets: torch.Tensor,
    positions: torch.Tensor,
    counted: torch.Tensor,
) -> tuple[torch.Tensor, list[float]]:
    """The weighted loss of a batch, and how often the most probable token of each depth is the model's.

    Place i has the features of token i and the embedding of token i + 1, and predicts token i + 2. At a further depth
    its features are the outputs of the place before, and its keys are beside those of the depths before.

    embedded, kept: [rows, T, ...]. targets: [rows, T, DRAFT_VOCAB], the model's probabilities of token i + 2.
    """
    length = embedded.shape[1]
    starts = (positions == 0).cumsum(1)
    is_same = (starts[:, :, None] == starts[:, None, :])[:, None]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    turn, features = rotation(positions), layer.linear("fc", kept)
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    total, agreement = torch.zeros(()), list[float]()
    for depth in range(DEPTH):
        query, key, value = layer.qkv(embedded, features, turn)
        keys.append(key)
        values.append(value)
        scores = query @ keys[0].transpose(2, 3) / HEAD_DIM**0.5
        scores = scores.masked_fill(~(is_same & (distance >= depth)), -torch.inf)
        own = [
            (query * keys[index].roll(depth - index, 2)).sum(-1, keepdim=True) / HEAD_DIM**0.5
            for index in range(1, depth + 1)
        ]
        weights = torch.cat([scores, *own], -1).softmax(-1)
        mixed = weights[..., :length] @ values[0]
        for index in range(1, depth + 1):
            mixed = mixed + weights[..., length + index - 1, None] * values[index].roll(depth - index, 2)
        outputs = layer.rest(features, mixed)
        # The first places of a dialogue have no place before them at this depth.
        valid = counted & (positions >= depth)
        logits = layer.linear("lm_head", layer.norm("norm", outputs[valid]))
        total = total - WEIGHTS[depth] * (targets[valid] * log_softmax(logits, -1)).sum(-1).mean()
        agreement.append(float((logits.argmax(-1) == targets[valid].argmax(-1)).float().mean()))
        features = outputs.roll(1, 1)
    return total, agreement


def frequent_tokens(writer: Writer, tokenizer: Tokenizer) -> torch.Tensor:
    dialogues = [(writer.sample(), index % 4 == 0) for index in range(4000)]
    counts = Counter(token for _, answer in encode(tokenizer, dialogues) for token in answer)
    counts.update(range(tokenizer.get_vocab_size()))  # the others in order
    return torch.tensor(sorted(token for token, _ in counts.most_common(DRAFT_VOCAB)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--folder", type=Path, default=DRAFT_FOLDER)
    chosen = parser.parse_args()
    torch.manual_seed(SEED)
    random.seed(SEED)
    torch.set_flush_denormal(True)
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    model = Qwen3ForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    writer = Writer(read_options(), SEED)
    own_ids = frequent_tokens(Writer(read_options(), SEED + 2), tokenizer)
    packer = Packer(writer, tokenizer, SEED)
    layer = Eagle3(model.config.hidden_size, model.config.intermediate_size, DRAFT_VOCAB)
    with torch.no_grad():
        layer.weights["lm_head"].copy_(model.lm_head.weight[own_ids])
    optimizer = torch.optim.AdamW(layer.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LR, chosen.steps, pct_start=0.05)
    began, seen = time.monotonic(), list[list[float]]()
    for step in range(chosen.steps):
        ids, positions, labels = packer.batch()
        with torch.no_grad():
            found = model.model(input_ids=ids, position_ids=positions, use_cache=False, output_hidden_states=True)
            kept = torch.cat([found.hidden_states[index] for index in READ_LAYERS], -1)
            logits = model.lm_head(found.last_hidden_state)[..., own_ids]
            probabilities = logits.softmax(-1)
            embedded = model.get_input_embeddings()(ids).roll(-1, 1)
        counted = (labels != IGNORED).roll(-2, 1)
        counted[:, -2:] = False
        total, agreement = losses(layer, embedded, kept, probabilities.roll(-1, 1), positions, counted)
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seen.append(agreement)
        if (step + 1) % 50 == 0:
            means = [sum(each) / 50 for each in zip(*seen[-50:], strict=True)]
            print(
                f"step {step + 1}, agreement {' '.join(f'{mean:.3f}' for mean in means)}, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    write(layer, own_ids, model, chosen.folder)
    means = [sum(each) / 50 for each in zip(*seen[-50:], strict=True)]
    (chosen.folder / "MODEL_CARD.md").write_text(card(means, chosen.steps))


def card(agreement: list[float], steps: int) -> str:
    shown = ", ".join(f"{100 * share:.0f} %" for share in agreement)
    return f"""# builtin:tiny-eagle3

A layer of EAGLE-3 that drafts for `builtin:tiny`, so that drafts can be tried without a download:

    engine serve builtin:tiny --spec-model builtin:tiny-eagle3

Trained by `make tiny-drafts` in {steps} steps on the dialogues of the model. In the last 50 steps the most probable
token of the first, second, third and fourth draft was that of the model in {shown} of all places. It knows
{DRAFT_VOCAB} tokens, the most frequent ones.
"""


def write(layer: Eagle3, own_ids: torch.Tensor, model: Qwen3ForCausalLM, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": model.config.hidden_size,
        "intermediate_size": model.config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": model.config.max_position_embeddings,
        "rms_norm_eps": EPS,
        "rope_theta": 10_000.0,
        "vocab_size": model.config.vocab_size,
        "draft_vocab_size": DRAFT_VOCAB,
        "dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(READ_LAYERS)},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {f"{name}.weight": each.detach().to(torch.bfloat16) for name, each in layer.weights.items()}
    weights["d2t"] = own_ids - torch.arange(DRAFT_VOCAB)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


if __name__ == "__main__":
    main()
