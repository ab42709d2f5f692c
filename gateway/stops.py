"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on, except what may still become a stop string; ends before the stop string that ends first.

    Of several that end at the same character the longest counts. How the text is cut into pieces changes nothing.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._matchers = [_Matcher(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """(text that is certain now, the stop string that was completed or ""). Nothing may follow a completed one."""
        if not self._matchers:
            return text, ""
        for index, character in enumerate(text):
            done = [matcher.stop for matcher in self._matchers if matcher.advance(character)]
            if done:
                whole = self._held + text[: index + 1]
                self._held = ""
                return whole[: len(whole) - len(done[0])], done[0]
        whole = self._held + text
        keep = max(matcher.matched for matcher in self._matchers)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep], ""

    def finish(self) -> str:
        """Held text that did not become a stop string."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Knuth-Morris-Pratt: ``matched`` is the longest prefix of the stop string that ends the text so far."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._border = [0] * (len(stop) + 1)  # longest proper border of each prefix
        border = 0
        for index in range(1, len(stop)):
            while border and stop[index] != stop[border]:
                border = self._border[border]
            border += stop[index] == stop[border]
            self._border[index + 1] = border

    def advance(self, character: str) -> bool:
        """Take one character; True when it completes the stop string."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._border[self.matched]
        self.matched += self.stop[self.matched] == character
        if self.matched < len(self.stop):
            return False
        self.matched = 0
        return True
