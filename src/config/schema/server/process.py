"""Section `server`: the processes of a server, and what it does when the engine ends."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ..section import Section, about
from ..types import Count, DurationFromZero, Flag, Whole


class ProcessOptions(Section):
    """How the server and its engine run."""

    engine: Literal["own", "none"] = Field(
        "own",
        description=(
            "Whether the server computes. `none` has a tokenizer and a chat template only: it reads no weights, needs "
            "no GPU, and renders, tokenises, and makes answers of tokens that other servers generate. Options of the "
            "engine have no effect then."
        ),
        examples=["none"],
    )

    headless: Flag = Field(
        False,
        description=(
            "Whether this process computes without an API, for the server of another machine. Follows from "
            "`parallel.node_rank`, or `data_parallel_start_rank` with `data_parallel_address`, and need not be "
            "written."
        ),
        json_schema_extra=about(devices=("cpu",)),
    )

    disable_frontend_multiprocessing: Flag = Field(
        False,
        description=(
            "Run the engine inside the API process. Saves one process and its start; the API then pauses during each "
            "step, and a crash of the engine is a crash of the server."
        ),
    )

    api_server_count: Count = Field(
        1,
        description=(
            "Number of HTTP processes that accept connections of the same address and send their requests to one "
            "engine. More of them help if one uses a whole core, as with many fast streams, and if cores are free; "
            "each needs the memory of a tokenizer. Limits of connections and bodies are divided among them."
        ),
        examples=[4],
        json_schema_extra=about(unit="processes", aliases=("-asc",)),
    )

    drain_timeout: DurationFromZero = Field(
        30,
        description=(
            "Time that running requests have to finish after SIGTERM; then they end with an error event. 0 ends them "
            "at once. A supervisor's own grace period must be longer."
        ),
        examples=["30s", "2m"],
        json_schema_extra=about(reload="hot", unit="seconds", aliases=("--shutdown-timeout",)),
    )

    on_engine_death: Literal["restart", "exit"] = Field(
        "restart",
        description=(
            "What happens when the engine process dies: `restart` loads it again while the API answers 503, `exit` "
            "ends the server with code 1 so that a supervisor starts it again."
        ),
        examples=["exit"],
        json_schema_extra=about(reload="hot"),
    )

    max_engine_restarts: Whole = Field(
        3,
        ge=0,
        description=(
            "Maximum number of engine restarts within 10 minutes; the next failure ends the server with code 1. A "
            "higher number hides a recurring fault; 0 is the same as `on_engine_death: exit`."
        ),
        examples=[3],
        json_schema_extra=about(reload="hot", unit="restarts per 10 minutes"),
    )

    @property
    def has_engine(self) -> bool:
        return self.engine != "none"

    @property
    def engine_restarts(self) -> int:
        """How often an engine may be started again within 10 minutes."""
        return self.max_engine_restarts if self.on_engine_death == "restart" else 0
