"""Flags of the verb that measures speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from ..bench.defaults import DEFAULTS

_LATENCY, _MANY, _SERVE, _STARTUP, _SPEC, _EMBED = (
    DEFAULTS[kind] for kind in ("latency", "throughput", "serve", "startup", "spec", "embed")
)


@dataclass(frozen=True, slots=True)
class BenchFlags:
    input_len: Annotated[
        int | None,
        typer.Option(
            "--input-len",
            min=1,
            help=f"Tokens of a prompt; by default {_MANY['input_len']}. spec: the maximum; "
            f"by default {_SPEC['input_len']}.",
        ),
    ] = None
    output_len: Annotated[
        int | None,
        typer.Option(
            "--output-len",
            min=1,
            help=f"Tokens of an answer; by default {_MANY['output_len']}. spec: the maximum; "
            f"by default {_SPEC['output_len']}.",
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            help=f"latency: prompts per batch. embed: texts per request; by default {_LATENCY['batch_size']}.",
        ),
    ] = None
    num_iters: Annotated[
        int | None,
        typer.Option(
            "--num-iters",
            min=1,
            help=f"latency: number of batches; by default {_LATENCY['num_iters']}. spec: how often each case is "
            f"measured; by default {_SPEC['num_iters']}.",
        ),
    ] = None
    num_prompts: Annotated[
        int | None,
        typer.Option(
            "--num-prompts",
            min=1,
            help=f"throughput, serve, embed: number of requests; by default {_MANY['num_prompts']}.",
        ),
    ] = None
    length_spread: Annotated[
        float | None,
        typer.Option(
            "--length-spread",
            min=0,
            max=1,
            help="throughput, serve, embed: share by which lengths vary up and down; "
            f"by default {_MANY['length_spread']}.",
        ),
    ] = None
    prefix_len: Annotated[
        int | None,
        typer.Option(
            "--prefix-len",
            min=0,
            help=f"throughput, serve: tokens that all prompts share; by default {_MANY['prefix_len']}.",
        ),
    ] = None
    num_warmup: Annotated[
        int | None,
        typer.Option(
            "--num-warmup", min=0, help=f"Batches or requests before the measurement; by default {_MANY['num_warmup']}."
        ),
    ] = None
    num_runs: Annotated[
        int | None,
        typer.Option("--num-runs", min=1, help=f"startup: number of starts; by default {_STARTUP['num_runs']}."),
    ] = None
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            help="spec: file whose first half is the prompt and whose second half is the answer; by default a sample.",
        ),
    ] = None
    rows: Annotated[
        str | None,
        typer.Option("--rows", help=f"spec: sequences at the same time; by default {_SPEC['rows']}."),
    ] = None
    draft_lens: Annotated[
        str | None,
        typer.Option(
            "--draft-lens", help=f"spec: maximum numbers of drafted tokens; by default {_SPEC['draft_lens']}."
        ),
    ] = None
    url: Annotated[
        str | None, typer.Option("--url", help=f"serve, embed: base URL of the server; by default {_SERVE['url']}.")
    ] = None
    model_name: Annotated[
        str | None,
        typer.Option(
            "--model-name", help="serve, embed: model to ask; by default the first one that the server lists."
        ),
    ] = None
    api_key: Annotated[
        str | None, typer.Option("--api-key", help="serve, embed: key for the server; by default OPENAI_API_KEY.")
    ] = None
    endpoint: Annotated[
        Literal["chat", "completions"] | None,
        typer.Option("--endpoint", help=f"serve: endpoint; by default {_SERVE['endpoint']}."),
    ] = None
    request_rate: Annotated[
        float | None,
        typer.Option(
            "--request-rate",
            min=0.001,
            help="serve, embed: requests per second, at random times; by default all are sent at the start.",
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            "--max-concurrency",
            min=1,
            max=1024,
            help=f"serve, embed: maximum number of open requests; by default {_SERVE['max_concurrency']}.",
        ),
    ] = None
    ignore_eos: Annotated[
        bool | None,
        typer.Option("--ignore-eos", help="serve: ask for answers of full length; not every server supports it."),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option("--seed", help=f"Seed of prompts, lengths and arrival times; by default {_MANY['seed']}."),
    ] = None
