"""Writes a checkpoint with the shape of a config.json: random bfloat16 weights and a tokenizer.

    python -m benchmarks.peers.convert.checkpoint MODEL FOLDER

The tokenizer is a byte-level BPE trained on the prompts of `engine bench serve`. Every id of the vocabulary has a text,
so that every token of a stream produces output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM

from stoker.cli.bench.workload import Shape, text_jobs

SPECIAL = ("<|endoftext|>", "<|im_end|>")


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator([job.prompt for job in text_jobs(50, Shape(100, 1), seed=0)], trainer)
    written = json.loads(trained.to_str())
    vocab = written["model"]["vocab"]
    for index in range(len(vocab), vocab_size - len(SPECIAL)):
        vocab[f"Ġt{index}"] = index  # Ġ: a space in byte-level vocabularies
    tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    assert tokenizer.get_vocab_size() == vocab_size
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[1], "pad_token": SPECIAL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_checkpoint(model: Path, folder: Path) -> None:
    config = AutoConfig.from_pretrained(model).get_text_config()
    config.bos_token_id, config.eos_token_id = None, config.vocab_size - 1
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    network.generation_config.bos_token_id, network.generation_config.eos_token_id = None, config.eos_token_id
    network.save_pretrained(folder)
    write_tokenizer(folder, config.vocab_size)


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
