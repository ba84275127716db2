"""Mutation tests of the stores, and of what supervises engines: the simulation finds a fault in each of them.

As in test_mutations.py, which says how.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from stoker.engine.api import EngineOutput
from stoker.engine.client.replicated import ReplicatedClient
from stoker.engine.client.routing import Router
from stoker.engine.client.streams import Streams
from stoker.engine.core.stored_prefixes import StoredPrefixes
from stoker.engine.host.supervision import RestartBudget
from stoker.engine.kv_stores import block_connection, block_files, engine_blocks
from stoker.engine.kv_stores.block_files import BlockFiles
from stoker.engine.kv_stores.host_blocks import HostBlocks
from stoker.engine.loop.held_outputs import HeldOutputs
from stoker.engine.ranks import followers
from stoker.engine.ranks.followers import Follower
from stoker.engine.step import StepPlan

from .ast_mutation import Mutation, dropped_call, dropped_update, swap
from .deployed_worlds import DeployedWorld, run_deployed_story
from .test_mutations import Fault
from .worlds import Broken, World, run_story

pytestmark = pytest.mark.slow

MAX_WORLDS = 60
# Of faults that few worlds show: one that does, which is tried before the others.
KNOWN_WORLDS = {
    "damaged_blocks_are_read": 45,
    "blocks_that_are_there_already_are_not_left_out": 24,
    "blocks_after_a_missing_one_are_sent": 22,
    "outputs_of_aborted_requests_stay_held": 14,
    "ranks_that_are_silent_are_waited_for": 16,
    "one_restart_more_than_allowed": 6,
    "blocks_get_places_that_are_not_there": 6,
    "blocks_of_another_fingerprint_are_sent": 8,
}


def _damaged_blocks_are_read(right: Any, *_: object) -> bytes:
    return bytes(4)


def _files_of_another_fingerprint_are_read(right: Any, files: BlockFiles, block_hash: bytes) -> str:
    return f"alike/{block_hash.hex()}.kv"


def _blocks_of_another_fingerprint_are_sent(right: Any, connection: Any, fingerprint: str, answer: Any) -> None:
    answer(connection, block_connection._receive_header(connection, 1 << 20)[1])


def _blocks_after_a_missing_one_are_sent(right: Any, blocks: HostBlocks, connection: Any, hashes: list[bytes]) -> None:
    right(blocks, connection, [each for each in hashes if each in blocks])


def _what_is_loaded_is_loaded_again(right: Any, stored: StoredPrefixes) -> Any:
    return list(stored._loads)


def _requests_that_ended_count_as_reading(right: Any, stored: StoredPrefixes) -> Any:
    return stored._reading


def _outputs_of_aborted_requests_stay_held(right: Any, held: HeldOutputs, request_id: str) -> None:
    pass


def _outputs_announce_blocks_that_are_not_stored(right: Any, held: HeldOutputs, output: Any) -> bool:
    named = output.stored
    must_wait: bool = right(held, output)
    output.stored = replace(output.stored, hashes=named.hashes)
    return must_wait


def _requests_of_an_engine_that_ended_wait(right: Any, its: Streams, error_of: Any, reason: str) -> None:
    pass


def _requests_that_ended_are_work_of_a_replica(right: Any, router: Router, placement: Any) -> None:
    router.started(placement)


def _what_is_stored_is_lost_where_outputs_are_merged(right: Any, earlier: Any, later: Any) -> None:
    right(earlier, later)
    earlier.stored = None


def _ranks_that_are_silent_are_waited_for(right: Any, follower: Any, now: float) -> str:
    return ""


def _forced_tokens_do_not_reach_other_ranks(right: Any, message: Any) -> Any:
    return right(replace(message, forced=[]) if isinstance(message, StepPlan) else message)


def _requests_are_sent_to_engines_that_start(
    right: Any, client: ReplicatedClient, rank: int | None, full: set[int]
) -> Any:
    return right(client, 0 if rank is None else rank, full)


OF_STORES: dict[str, Fault | Mutation] = {
    fault.wrong.__name__.strip("_"): fault
    for fault in (
        Fault(block_files, "checksum", _damaged_blocks_are_read),
        Fault(BlockFiles, "_name", _files_of_another_fingerprint_are_read),
        Fault(block_connection, "_serve", _blocks_of_another_fingerprint_are_sent),
        Fault(engine_blocks, "send_blocks", _blocks_after_a_missing_one_are_sent),
        Fault(StoredPrefixes, "take_loads", _what_is_loaded_is_loaded_again),
        Fault(StoredPrefixes, "_still_reading", _requests_that_ended_count_as_reading),
        Fault(HeldOutputs, "forget", _outputs_of_aborted_requests_stay_held),
        Fault(HeldOutputs, "_must_wait", _outputs_announce_blocks_that_are_not_stored),
    )
} | {
    "blocks_after_evicted_ones_get_places": Mutation(StoredPrefixes, "place", swap(ast.Lt, ast.Gt)),
    "blocks_that_are_there_already_are_not_left_out": Mutation(StoredPrefixes, "place", swap(ast.Sub, ast.Add), 2),
    "blocks_get_places_that_are_not_there": Mutation(StoredPrefixes, "place", swap(ast.Gt, ast.Lt)),
    "blocks_stay_about_to_be_written": Mutation(BlockFiles, "_write", dropped_call("remove")),
    "the_buffer_for_others_has_no_limit": Mutation(HostBlocks, "put", dropped_update, 1),
}
OF_DEPLOYMENTS: dict[str, Fault | Mutation] = {
    fault.wrong.__name__.strip("_"): fault
    for fault in (
        Fault(Streams, "fail_all", _requests_of_an_engine_that_ended_wait),
        Fault(Router, "ended", _requests_that_ended_are_work_of_a_replica),
        Fault(EngineOutput, "merge", _what_is_stored_is_lost_where_outputs_are_merged),
        Fault(Follower, "trouble", _ranks_that_are_silent_are_waited_for),
        Fault(followers, "packed", _forced_tokens_do_not_reach_other_ranks),
        Fault(ReplicatedClient, "_available", _requests_are_sent_to_engines_that_start),
    )
} | {"one_restart_more_than_allowed": Mutation(RestartBudget, "take", swap(ast.GtE, ast.Gt), 1)}


def _first_broken(run: Callable[[int], object], known: int) -> Broken | None:
    for number in sorted(range(MAX_WORLDS), key=lambda number: number != known):
        try:
            run(number)
        except Broken as broken:
            return broken
    return None


def _with_stores(number: int) -> None:
    run_story(World.with_stores(f"mutations {number}"), 200)


def _deployed(number: int) -> None:
    run_deployed_story(DeployedWorld.of(f"mutations {number}"), 150)


def _cases() -> Iterator[tuple[str, Fault | Mutation, Callable[[int], None]]]:
    yield from ((name, fault, _with_stores) for name, fault in OF_STORES.items())
    yield from ((name, fault, _deployed) for name, fault in OF_DEPLOYMENTS.items())


CASES = {name: partial(_first_broken, run, KNOWN_WORLDS.get(name, 0)) for name, _, run in _cases()}


@pytest.mark.parametrize("name", CASES)
def test_the_simulation_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = (OF_STORES | OF_DEPLOYMENTS)[name]
    monkeypatch.setattr(fault.owner, fault.name, fault.attribute())
    assert CASES[name]() is not None
