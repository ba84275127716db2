"""tekken.json, the vocabulary of Mistral AI's own format: a byte-level BPE whose special tokens have the first ids."""

from __future__ import annotations

import base64
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS = "<s>", "</s>"
_OF_FIRST_VERSIONS = (  # special tokens of files that do not list theirs, from id 0. Source: mistral-common 1.13
    *("<unk>", BOS, EOS, "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_FIRST_VERSIONS = ("v3", "v7")


def tekken_tokenizer(content: dict[str, Any], alphabet: dict[int, str]) -> Tokenizer:
    """Raises an Exception of some type for content that is not a vocabulary.

    alphabet: the character of each byte in a byte-level vocabulary.
    """
    config, special = content["config"], _special_tokens(content)
    most = config.get("default_vocab_size")
    words = content["vocab"] if most is None else content["vocab"][: most - len(special)]  # the rest is padding
    ranks = {base64.b64decode(word["token_bytes"], validate=True): rank for rank, word in enumerate(words)}
    if len(ranks) != len(words) or not all(bytes([value]) in ranks for value in range(256)):
        raise ValueError("`vocab` must have every byte, and no token twice")
    text = {word: "".join(map(alphabet.__getitem__, word)) for word in ranks}
    vocab = {name: token_id for token_id, name in enumerate(special)}
    vocab |= {text[word]: len(special) + rank for word, rank in ranks.items()}
    backend = Tokenizer(models.BPE(vocab, _merges(ranks, text), ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(config["pattern"]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, special.index(BOS))]
    )
    return backend


def _special_tokens(content: dict[str, Any]) -> list[str]:
    """Special tokens in the order of their ids; a token without a name gets one."""
    listed, config = content.get("special_tokens"), content["config"]
    names: dict[int, str]
    if listed:
        names = {token["rank"]: token["token_str"] for token in listed}
        if sorted(names) != list(range(len(listed))) or BOS not in names.values():
            raise ValueError(f"`special_tokens` must have the ranks from 0, each once, and one of them must be {BOS}")
    else:
        names = dict(enumerate(_OF_FIRST_VERSIONS))
        if config.get("version") not in _FIRST_VERSIONS or config.get("default_num_special_tokens", 0) < len(names):
            raise ValueError("no `special_tokens`, which only the first versions of this format may leave out")
    count = config.get("default_num_special_tokens", len(names))
    return [*(names[rank] for rank in range(len(names))), *(f"<SPECIAL_{rank}>" for rank in range(len(names), count))]


def _merges(ranks: dict[bytes, int], text: dict[bytes, str]) -> list[tuple[str, str]]:
    """Each token as all pairs of tokens that make it: the order of tokens is the order of merges."""
    merges: list[tuple[str, str]] = []
    for word in ranks:
        cuts = ((word[:at], word[at:]) for at in range(1, len(word)))
        pairs = [(left, right) for left, right in cuts if left in ranks and right in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(text[left], text[right]) for left, right in pairs]
    return merges
