"""Time to parse answers, for each token of about four characters: `python -m benchmarks.formats`."""

from __future__ import annotations

import time

from tests.unit.formats.golden import GOLDEN, TOOLS

from stoker.formats.parser import AnswerParser
from stoker.formats.registry import FORMATS

CHARS_PER_TOKEN = 4
TEXT = "The quick brown fox jumps over the lazy dog, and then it does so again. "


def microseconds(name: str, text: str, repeat: int = 200) -> float:
    """The fastest of some rounds, for each token."""
    pieces = [text[at : at + CHARS_PER_TOKEN] for at in range(0, len(text), CHARS_PER_TOKEN)]
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(repeat):
            parser = AnswerParser(FORMATS[name], tools=TOOLS, starts_in_reasoning=False, new_id=lambda: "call")
            for piece in pieces:
                parser.feed(piece)
            parser.finish()
        best = min(best, (time.perf_counter() - began) / repeat / len(pieces))
    return best * 1e6


def main() -> None:
    print(f"{'format':<18}{'golden answer':>14}{'plain text':>12}{'long string':>13}   us per token")
    for name, golden in GOLDEN.items():
        long = golden.replace("São Paulo", TEXT * 20)
        print(
            f"{name:<18}{microseconds(name, golden):>14.2f}{microseconds(name, TEXT * 10):>12.2f}"
            f"{microseconds(name, long, 40):>13.2f}"
        )


if __name__ == "__main__":
    main()
