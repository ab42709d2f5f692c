"""What of committed tokens is delivered: text without broken characters, cut exactly at stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dartspec.gateway.detokenize import Detokenizer
from dartspec.gateway.stops import StopStrings


@dataclass(frozen=True)
class Piece:
    """The part of a committed span that is delivered: so many of its tokens, and the text that is complete now.

    ``stop`` is the stop string that the last of them completed.
    """

    tokens: int
    text: str
    stop: str


class AnswerStream:
    """One answer's text. Tokens are pushed one after the other, so the size of the spans changes nothing."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)

    def replay(self, token_ids: Sequence[int]) -> tuple[int, str]:
        """Take tokens whose text was delivered before, up to the first that completes a stop string.

        Returns (tokens taken, the stop string or "").
        """
        for index, token_id in enumerate(token_ids):
            _, stop = self._stops.push(self._detokenizer.push(token_id))
            if stop:
                return index + 1, stop
        return len(token_ids), ""

    def push(self, token_ids: Sequence[int], *, last: bool) -> Piece:
        """Take a committed span; ``last`` says that nothing follows, so that held text is let go."""
        parts = []
        for index, token_id in enumerate(token_ids):
            text, stop = self._stops.push(self._detokenizer.push(token_id))
            parts.append(text)
            if stop:
                return Piece(index + 1, "".join(parts), stop)
        stop = ""
        if last:
            text, stop = self._stops.push(self._detokenizer.finish())
            parts += [text, self._stops.finish()]
        return Piece(len(token_ids), "".join(parts), stop)
