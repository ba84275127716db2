"""Stop strings: where they end a text that arrives in pieces of any size."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Text that could be the beginning of a stop string is held back until that is decided. Of several stop strings,
    the first to be complete ends the text, so the result does not depend on how the text is divided.
    """

    def __init__(self, stops: Sequence[str], *, is_shown: bool) -> None:
        """is_shown: the text includes the stop string that ends it."""
        self._stops = [_StopString(stop) for stop in stops]
        self._is_shown = is_shown
        self._held = ""

    def feed(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """The text that is decided, and the stop string that ended it. Nothing may be fed after that.

        may_stop: whether a stop string that is complete within `text` ends it.
        """
        if not self._stops:
            return text, None
        for index, character in enumerate(text):
            complete = [stop.stop for stop in self._stops if stop.step(character)]
            if complete and may_stop:
                found = max(complete, key=len)
                whole = self._held + text[: index + 1]
                self._held = ""
                return whole if self._is_shown else whole[: len(whole) - len(found)], found
        whole = self._held + text
        keep = max(stop.matched for stop in self._stops)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep], None

    def flush(self) -> str:
        """What was held back: the text ends here, and another one may follow."""
        held, self._held = self._held, ""
        for stop in self._stops:
            stop.matched = 0
        return held

    @property
    def state(self) -> tuple[list[int], str]:
        """The state to return to, if what was fed turns out not to belong to the text."""
        return [stop.matched for stop in self._stops], self._held

    @state.setter
    def state(self, value: tuple[list[int], str]) -> None:
        matched, self._held = value
        for stop, number in zip(self._stops, matched, strict=True):
            stop.matched = number


class _StopString:
    """Knuth-Morris-Pratt: how many characters of one stop string the text ends with, in constant work per character."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = [0] * len(stop)  # [i]: longest proper prefix of stop that is a suffix of stop[: i + 1]
        length = 0
        for index in range(1, len(stop)):
            while length and stop[index] != stop[length]:
                length = self._fallback[length - 1]
            length += stop[index] == stop[length]
            self._fallback[index] = length

    def step(self, character: str) -> bool:
        """Add the next character; True if the text now ends with the stop string."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.stop[self.matched] == character
        if self.matched < len(self.stop):
            return False
        self.matched = self._fallback[-1]
        return True
