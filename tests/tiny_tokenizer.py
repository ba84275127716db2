"""A byte-level BPE tokenizer of a few hundred tokens with a chat template, trained in a second, for tests."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = (
    "Hello, world! How are you today? The answer is 42, and the question is unknown.",
    "日本語のテキスト、你好世界。 emoji 😀😃👩‍👩‍👧 naïve café Ünïcödé",
    "def f(x):\n    return x + 1\n\n\tif x: STOP\n",
    "user assistant system tool message content role the of and to in is it you that was for on are",
)
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think></think>
{% endif %}{% endif %}"""


def write_tokenizer(folder: Path, *, template: str | None = TEMPLATE, has_bos: bool = False, **config: object) -> Path:
    """Write tokenizer.json and tokenizer_config.json into `folder`. has_bos: special tokens begin with id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    if has_bos:
        bos = ("<|endoftext|>", 0)
        tokenizer.post_processor = processors.TemplateProcessing(single=[bos[0], "$A"], special_tokens=[bos])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", **config}
    if template is not None:
        written["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return folder
