"""The loop of the product: draft, search, verify, commit, until the answer ends on one verifier."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator

from dartspec.gateway.ledger import Ledger
from dartspec.gateway.model import Model
from dartspec.gateway.search import CONTEXT_TOKENS, TreeSearch
from dartspec.gateway.session import Session
from dartspec.gateway.types import Mode, NoDraftReason, Opening, Round

PLAIN_CREDIT = 32  # steps that a plain session may be ahead of its client; refilled at half

# No proposals will come in the rest of the session either.
FOR_GOOD = {NoDraftReason.NO_HEAD, NoDraftReason.PLAIN_ONLY, NoDraftReason.NEAR_LIMIT}

WHY_DART = "the verifier offers candidates"
WHY_PLAIN = {
    NoDraftReason.NO_HEAD: "the verifier has no draft head",
    NoDraftReason.DOES_NOT_PAY: "the verifier expects plain decoding to be faster",
}


async def rounds(
    session: Session, opening: Opening, model: Model, search: TreeSearch, ledger: Ledger
) -> AsyncGenerator[Round, None]:
    """The session's rounds, the first token to the last.

    The next command goes out only when the caller comes back for the next round: a client that does not read stops
    its own work, and nothing is searched after a stop string.
    """
    drafting = opening.mode is not Mode.PLAIN
    context = deque(opening.token_ids, maxlen=CONTEXT_TOKENS)
    while True:
        round = await session.next_round()
        context.extend(round.token_ids)
        yield round
        if round.finish_reason:
            return
        if round.proposals is not None and not session.ahead:
            found = await search.tree(model, context, round.proposals, round.search_nodes)
            ledger.searched(found)
            session.verify(found.tree, draft_after=True)
            if opening.mode is Mode.AUTO:
                ledger.mode_reason = WHY_DART
            continue
        if opening.mode is Mode.AUTO and round.no_draft_reason in WHY_PLAIN:
            ledger.mode_reason = WHY_PLAIN[round.no_draft_reason]
        drafting = drafting and round.no_draft_reason not in FOR_GOOD
        if session.offered:
            continue  # the round with the proposals has come and is next
        if drafting and opening.mode is Mode.DART:
            if not session.ahead:
                session.decode(1, draft_after=True)
        elif session.ahead <= PLAIN_CREDIT // 2:
            session.decode(PLAIN_CREDIT - session.ahead, draft_after=drafting, may_offer=drafting)
