"""spec: what drafts bring to a deployment, by the number of sequences and by the maximum length of a draft."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...config import Resolved, load_deployment
from ...config.digest import digest
from ...config.exit_codes import EXIT_WRONG_COMMAND_LINE
from ...input_file import open_file
from ...text.tokenizer import Tokenizer
from ..console import print_message
from ..count_progress import count_progress
from ..prepare import read, resolve_here
from ..startup_view import StartupView
from .forced import Decoded, ForcedEngine
from .measured import BenchError, Measurement
from .sample_text import sample_text, tokenizer_of_sample

_MOST_BYTES = 16 << 20  # of a text
_LEAST_TOKENS = 32  # of a prompt and of an answer
_MOST_ROWS, _MOST_DRAFTED = 1024, 64


class Work(NamedTuple):
    prompt: list[int]
    answer: list[int]


def measure_spec(
    files: Sequence[str],
    overrides: Sequence[str],
    view: StartupView,
    *,
    text: str | None,
    rows: str,
    draft_lens: str,
    input_len: int,
    output_len: int,
    num_iters: int,
) -> Measurement:
    """Every case is measured in turn in each iteration, so that what slows the machine down slows all of them.

    text: name of a file; None is a built-in sample. rows, draft_lens: numbers with commas between them.
    """
    all_rows, lens = _numbers(rows, "--rows", _MOST_ROWS), _numbers(draft_lens, "--draft-lens", _MOST_DRAFTED)
    given = None if text is None else _read(text)
    with view:
        deployment = read(files, overrides, view)
        if deployment.config.speculative.method is None:
            deployment = load_deployment(files, [*overrides, "--spec-method", "auto"])
        resolved = resolve_here(deployment, view)
        _check(resolved)
        work = _work(resolved, given, input_len, output_len)
        view.begin("engine")
        own = resolved.speculative.model_copy(update={"num_speculative_tokens": max(lens)})
        engine = ForcedEngine(resolved.model_copy(update={"speculative": own}))
    fitting = [count for count in all_rows if count <= resolved.scheduler.max_num_seqs]
    if left_out := [count for count in all_rows if count not in fitting]:
        most = resolved.scheduler.max_num_seqs
        print_message(f"left out: {', '.join(map(str, left_out))} rows, because max_num_seqs is {most}")
    cases: list[dict[str, Any]] = []
    with count_progress("cases", len(fitting) * num_iters * (1 + len(lens))) as show:
        num_done = 0
        for count in fitting:
            found: dict[int, list[Decoded]] = {length: [] for length in (0, *lens)}  # 0: without drafts
            for _ in range(num_iters):
                for length, decoded in found.items():
                    drafting = engine.drafting(length) if length else None
                    decoded.append(engine.decode(work.prompt, [work.answer] * count, drafting))
                    num_done += 1
                    show(num_done)
            cases += [_case(count, length, found) for length in found]
    return Measurement(
        model=resolved.model.model,
        config_hash=digest(deployment),
        results={"cases": cases},
        details={
            "text": text or "sample",
            "prompt_tokens": len(work.prompt),
            "answer_tokens": len(work.answer),
            "step_seconds": {str(size): seconds for size, seconds in engine.step_seconds.items()},
        },
    )


def _case(rows: int, length: int, found: Mapping[int, Sequence[Decoded]]) -> dict[str, Any]:
    """The median of the iterations; counts are of all of them."""
    own, without = found[length], found[0]
    counts = [decoded.drafts for decoded in own if decoded.drafts is not None]
    drafts, drafted = sum(each.drafts for each in counts), sum(each.tokens for each in counts)
    accepted = sum(sum(each.accepted) for each in counts)
    return {
        "rows": rows,
        "max_drafted": length,
        "output_tokens_per_s": rows / statistics.median(decoded.seconds for decoded in own),
        "ratio": statistics.median(off.seconds / on.seconds for off, on in zip(without, own, strict=True)),
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / drafts if drafts else None,
    }


def table(results: Mapping[str, Any]) -> list[str]:
    """The cases as lines of text."""
    heads = ("rows", "drafted at most", "tokens/s", "ratio", "accepted", "rate", "mean length")
    lines = ["".join(f"{head:>17}" for head in heads)]
    for case in results["cases"]:
        rate, length = case["acceptance_rate"], case["mean_acceptance_length"]
        cells = (
            str(case["rows"]),
            str(case["max_drafted"] or "off"),
            f"{case['output_tokens_per_s']:.1f}",
            f"{case['ratio']:.2f}",
            f"{case['accepted_tokens']}/{case['drafted_tokens']}" if case["max_drafted"] else "",
            "" if rate is None else f"{100 * rate:.0f} %",
            "" if length is None else f"{length:.2f}",
        )
        lines.append("".join(f"{cell:>17}" for cell in cells))
    return lines


def _check(resolved: Resolved) -> None:
    if resolved.speculative.method is None:
        reason = resolved.origin("speculative.method")
        raise BenchError(f"nothing is drafted in this deployment: {reason}", EXIT_WRONG_COMMAND_LINE)
    if resolved.topology.num_ranks > 1 or resolved.topology.num_served > 1:
        message = "this benchmark measures one process: remove the options of `parallel`, or use `engine bench serve`"
        raise BenchError(message, EXIT_WRONG_COMMAND_LINE)


def _work(resolved: Resolved, given: str | None, input_len: int, output_len: int) -> Work:
    """The end of the first part is the prompt, and the beginning of the second one the answer."""
    if resolved.model.skip_tokenizer_init:
        tokenizer = tokenizer_of_sample()
    else:
        tokenizer = Tokenizer.load(resolved.model.tokenizer, resolved.model.tokenizer_mode)
    if given is None:
        before, after = (tokenizer.encode(part) for part in sample_text())
    else:
        token_ids = tokenizer.encode(given)
        before, after = token_ids[: len(token_ids) // 2], token_ids[len(token_ids) // 2 :]
    work = Work(before[-input_len:], after[:output_len])
    if min(map(len, work)) < _LEAST_TOKENS:
        raise BenchError(f"the text must have at least {2 * _LEAST_TOKENS} tokens", EXIT_WRONG_COMMAND_LINE)
    if (num_tokens := sum(map(len, work))) > (most := resolved.model.max_model_len):
        message = f"{num_tokens} tokens do not fit into the context of {most}: lower --input-len or --output-len"
        raise BenchError(message, EXIT_WRONG_COMMAND_LINE)
    if max(map(max, work)) >= resolved.model_spec.vocab_size:
        raise BenchError("the vocabulary is too small for the text", EXIT_WRONG_COMMAND_LINE)
    return work


def _read(name: str) -> str:
    try:
        with open_file(name) as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise BenchError(f"{name}: {getattr(error, 'strerror', None) or error}", EXIT_WRONG_COMMAND_LINE) from None


def _numbers(text: str, flag: str, most: int) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or max(found) > most:
        message = f"{flag} is {text[:40]!r}; allowed: numbers from 1 to {most} with commas between them"
        raise BenchError(message, EXIT_WRONG_COMMAND_LINE)
    return list(dict.fromkeys(found))
