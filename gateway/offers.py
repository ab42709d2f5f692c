"""The search for a session's tree, begun the moment its proposals come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from dartspec.gateway.model import Model
from dartspec.gateway.search import CONTEXT_TOKENS, Found, TreeSearch
from dartspec.gateway.types import Round


class Offers:
    """Searches while the round's tokens are still made into text for the client.

    ``wanted``: whether drafting is left to the verifier; asked when proposals come. Where a stop string ends the answer
    in that round, the search was for nothing.
    """

    def __init__(self, token_ids: Sequence[int], model: Model, search: TreeSearch, wanted: Callable[[], bool]) -> None:
        self._context = deque(token_ids, maxlen=CONTEXT_TOKENS)
        self._model = model
        self._search = search
        self._wanted = wanted
        self._begun: asyncio.Future[Found] | None = None

    def heard(self, round: Round, answering: bool) -> None:
        """A round has come; each is told once, in order. ``answering``: its proposals need no search from here."""
        self._context.extend(round.token_ids)
        self._begun = None
        if round.proposals is not None and not answering and self._wanted():
            self._begun = self._begin(round)

    async def tree(self, round: Round) -> Found:
        """What was found for the proposals of the last round that came, which is ``round``."""
        return await (self._begun or self._begin(round))

    def _begin(self, round: Round) -> asyncio.Future[Found]:
        assert round.proposals is not None
        return self._search.begin(self._model, self._context, round.proposals, round.search_nodes)
