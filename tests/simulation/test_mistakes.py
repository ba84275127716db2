"""The simulation finds mistakes: each of these one-line changes of the scheduler and its parts is seen in some world.

A mistake lives in a method that takes the place of the right one while its test runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.engine.core.block_names import BlockNames
from stoker.engine.core.block_pool import BlockPool
from stoker.engine.core.policy import WaitingQueue
from stoker.engine.core.prefix_cache import PrefixCache
from stoker.engine.core.request import Request
from stoker.engine.core.scheduler import Scheduler
from stoker.engine.core.stop import StopRule
from stoker.engine.runner.slot_table import SlotTable

from .shrink import shrink
from .simulation import Abort, Add
from .worlds import Broken, World, live_through

MAX_WORLDS = 60
STEPS_PER_WORLD = 300


def _keeps_shared_blocks(pool: BlockPool, block_ids: list[int]) -> None:
    RIGHT["release"](pool, [block_id for block_id in block_ids if pool.ref_count(block_id) == 1])


def _holds_without_counting(pool: BlockPool, block_ids: list[int]) -> None:
    RIGHT["hold"](pool, [block_id for block_id in block_ids if not pool.ref_count(block_id)])


def _forgets_half(cache: PrefixCache, block_id: int) -> None:
    cache._hashes.pop(block_id)


def _names_without_what_came_before(
    names: BlockNames, known: list[bytes], root: bytes, token_ids: list[int], block_size: int, num_blocks: int
) -> None:
    for start in range(len(known) * block_size, num_blocks * block_size, block_size):
        block = np.array(token_ids[start : start + block_size], np.int32)
        known.append(names._next(root, block.tobytes()))


def _publishes_a_block_begun(scheduler: Scheduler, request: Request, num_tokens: int) -> None:
    more = min(num_tokens + scheduler.settings.block_size - 1, len(request.token_ids))
    RIGHT["_publish"](scheduler, request, max(more, num_tokens))


def _finds_the_last_token_too(scheduler: Scheduler, request: Request, num_held: int) -> list[int]:
    num_blocks = len(request.token_ids) // scheduler.settings.block_size
    request.name_blocks(scheduler._names, scheduler.settings.block_size, num_blocks)
    return scheduler._cache.find(request.block_hashes, num_held, num_blocks)


def _ignores_cache_salt(names: BlockNames, cache_salt: str) -> bytes:
    return RIGHT["root"](names, "")


def _gives_blocks_back_at_once(scheduler: Scheduler, request: Request) -> None:
    scheduler._last_step[request.slot] = -1
    RIGHT["_leave_slot"](scheduler, request)


def _gives_a_long_prompt_all(scheduler: Scheduler, start: int, known: int, left: int, half: int, others: bool) -> int:
    return RIGHT["_chunk_end"](scheduler, start, known, left, half, False)


def _forgets_what_was_drawn(scheduler: Scheduler, request: Request) -> None:
    pass


def _keeps_cached_blocks_after_a_failure(pool: BlockPool) -> None:
    pass


def _serves_the_latest_first(queue: WaitingQueue, place: int = 0) -> Request:
    return queue._entries[place][2]


def _forgets_the_queue_of_tokens(queue: WaitingQueue, request: Request) -> None:
    queue._entries.remove(queue._entry(request))


def _ends_one_token_late(rule: StopRule, token_id: int, length: int) -> Any:
    return RIGHT["check"](rule, token_id, length - 1)


def _appends_blocks_in_one_place(table: SlotTable, slots: Any, block_ids: Any) -> None:
    table.block_ids[slots, table.num_blocks[slots]] = block_ids
    np.add.at(table.num_blocks, slots, 1)


MISTAKES: list[tuple[type, str, Callable[..., Any]]] = [
    (BlockPool, "release", _keeps_shared_blocks),
    (BlockPool, "hold", _holds_without_counting),
    (BlockPool, "forget_all", _keeps_cached_blocks_after_a_failure),
    (PrefixCache, "forget", _forgets_half),
    (BlockNames, "extend", _names_without_what_came_before),
    (BlockNames, "root", _ignores_cache_salt),
    (Scheduler, "_publish", _publishes_a_block_begun),
    (Scheduler, "_find_hits", _finds_the_last_token_too),
    (Scheduler, "_leave_slot", _gives_blocks_back_at_once),
    (Scheduler, "_chunk_end", _gives_a_long_prompt_all),
    (Scheduler, "_read_tail", _forgets_what_was_drawn),
    (WaitingQueue, "peek", _serves_the_latest_first),
    (WaitingQueue, "remove", _forgets_the_queue_of_tokens),
    (StopRule, "check", _ends_one_token_late),
    (SlotTable, "_append_blocks", _appends_blocks_in_one_place),
]
RIGHT = {name: getattr(owner, name) for owner, name, _ in MISTAKES}


def first_broken() -> Broken | None:
    for number in range(MAX_WORLDS):
        try:
            live_through(World.of(f"mistakes {number}"), STEPS_PER_WORLD)
        except Broken as broken:
            return broken
    return None


@pytest.mark.parametrize(
    ("owner", "name", "wrong"), MISTAKES, ids=[wrong.__name__.strip("_") for _, _, wrong in MISTAKES]
)
def test_a_mistake_is_found(owner: type, name: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, wrong)
    assert first_broken() is not None


def test_a_story_that_broke_is_told_again_in_few_actions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(WaitingQueue, "remove", _forgets_the_queue_of_tokens)
    broken = first_broken()
    assert broken is not None
    added, aborted = shrink(broken, limit_s=30)
    assert isinstance(added, Add)
    assert aborted == Abort(added.request_id)
