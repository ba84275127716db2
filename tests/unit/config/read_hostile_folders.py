"""A child process with little memory that reads the model folders named on standard input, one answer a line.

The answer is JSON: the exit codes of `validate` and `plan`, what they print, and the exception if there is one.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import traceback

from stoker.cli import plan, validate
from stoker.cli.flags.checking import PlanFlags
from stoker.text.tokenizer import Tokenizer, TokenizerError

MEMORY_BYTES = 3 << 30  # of addresses, of which libraries map one


def read(folder: str, load_format: str) -> dict[str, object]:
    printed = io.StringIO()
    words = ["--model", folder, "--load-format", load_format]
    answer: dict[str, object] = {}
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            answer["validate"] = validate.run([], [], words)
            answer["plan"] = plan.run([], words, PlanFlags())
            with contextlib.suppress(TokenizerError):
                Tokenizer.load(folder)
    except BaseException:  # also a panic of Rust
        answer["traceback"] = traceback.format_exc()
    return {**answer, "printed": printed.getvalue()[:20_000]}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        print(json.dumps(read(*json.loads(line))), flush=True)
