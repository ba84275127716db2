"""KeptStates: places for recurrent states at the ends of blocks, by block hash.

The runner has a state for each slot, at the place of the slot's number; these places come after. A kept state is
overwritten when another one takes its place: the one least recently used, first. No sequence holds a place: a plan that
continues from a kept state copies it before its step, and plans are executed in order.

Does not decide which states are kept: see sequence_states.py.
"""

from __future__ import annotations

from collections import OrderedDict


class KeptStates:
    def __init__(self, num_states: int = 0, first_place: int = 0) -> None:
        self._places = range(first_place, first_place + num_states)
        self._free = list(reversed(self._places))
        self._by_hash: OrderedDict[bytes, int] = OrderedDict()  # the least recently used first
        self._passing: set[bytes] = set()  # hashes of states that the next one of their sequence replaces

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._by_hash

    def use(self, block_hash: bytes) -> int:
        """The place of a state that was found. From now on it is kept as long as others use it."""
        self._by_hash.move_to_end(block_hash)
        self._passing.discard(block_hash)
        return self._by_hash[block_hash]

    def take(self, replaced: bytes | None = None) -> int | None:
        """A place for a state that will be computed; None if all are taken by such. Call `publish` or `give_back` next.

        replaced: hash of an earlier state of the same sequence, whose place is taken if no other sequence used it.
        """
        self.drop_passing(replaced)
        if not self._free:
            if not self._by_hash:
                return None
            self._drop(next(iter(self._by_hash)))
        return self._free.pop()

    def drop_passing(self, replaced: bytes | None) -> None:
        """Another state of the same sequence replaces this one, unless another sequence used it."""
        if replaced is not None and replaced in self._passing:
            self._drop(replaced)

    def publish(self, block_hash: bytes, place: int, *, is_passing: bool) -> None:
        """Let others find the state at `place`. is_passing: the next one of the same sequence replaces it."""
        assert block_hash not in self._by_hash, "the state after this prefix is kept already"
        self._by_hash[block_hash] = place
        if is_passing:
            self._passing.add(block_hash)

    def give_back(self, place: int) -> None:
        """The state that `take` was called for is not kept."""
        self._free.append(place)

    def forget(self, block_hash: bytes) -> None:
        """A block of the prefix is about to be overwritten: no sequence can continue from this state."""
        if block_hash in self._by_hash:
            self._drop(block_hash)

    def forget_all(self) -> None:
        """Forget all states, also those that steps in flight were to compute."""
        self._by_hash.clear()
        self._passing.clear()
        self._free = list(reversed(self._places))

    def _drop(self, block_hash: bytes) -> None:
        self._free.append(self._by_hash.pop(block_hash))
        self._passing.discard(block_hash)
