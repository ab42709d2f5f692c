"""The loop of the product: draft, search, verify, commit, until the answer ends on one verifier."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from dartspec.gateway import mode_reasons
from dartspec.gateway.ledger import Ledger
from dartspec.gateway.model import Model
from dartspec.gateway.offers import Offers
from dartspec.gateway.search import TreeSearch
from dartspec.gateway.session import Session
from dartspec.gateway.types import Mode, NoDraftReason, Opening, Round

PLAIN_CREDIT = 32  # steps that a plain session may be ahead of its client; refilled at half
ANSWERED_AHEAD = 2  # offers that may be answered before their rounds were read
STEERED_CREDIT = 4  # the same while the policy keeps it from drafting, which may end soon

# No proposals will come in the rest of the session either.
FOR_GOOD = {NoDraftReason.NO_HEAD, NoDraftReason.PLAIN_ONLY, NoDraftReason.NEAR_LIMIT}

WHY_PLAIN = {
    NoDraftReason.NO_HEAD: mode_reasons.NO_HEAD,
    NoDraftReason.DOES_NOT_PAY: mode_reasons.DOES_NOT_PAY,
}


async def rounds(
    session: Session,
    opening: Opening,
    model: Model,
    search: TreeSearch,
    ledger: Ledger,
    speculates: Callable[[], bool] = lambda: True,
) -> AsyncGenerator[Round, None]:
    """The session's rounds, the first token to the last.

    ``speculates``: whether drafting is left to the verifier now; asked in mode auto before each command.

    The next command goes out only when the caller comes back for the next round, but for a few that are allowed
    beforehand: a client that does not read stops its own work.
    """
    drafting = opening.mode is not Mode.PLAIN
    steered = False  # kept from drafting, or on the way back
    credited = False  # has plain credit, which may be refilled any time

    def may_draft() -> bool:
        return opening.mode is not Mode.AUTO or speculates()

    offers = Offers(opening.token_ids, model, search, may_draft)
    session.heard = offers.heard
    while True:
        session.allow(ANSWERED_AHEAD if drafting and not credited and may_draft() else 0)
        round = await session.next_round()
        yield round
        if round.finish_reason:
            return
        if opening.mode is Mode.AUTO and round.no_draft_reason in WHY_PLAIN:
            ledger.mode_reason = WHY_PLAIN[round.no_draft_reason]
        drafting = drafting and round.no_draft_reason not in FOR_GOOD
        search_ms = await session.answered(round)
        if search_ms is not None:
            steered = False
            ledger.searched(search_ms)
            if opening.mode is Mode.AUTO:
                ledger.mode_reason = mode_reasons.OFFERS
            continue
        if session.offered and session.ahead:
            continue  # the round with the proposals has come and is next
        credited = False
        if drafting and not may_draft():
            steered, ledger.mode_reason = True, mode_reasons.STEERED
            credited = True
            _grant(session, STEERED_CREDIT, drafting=False)
        elif round.proposals is not None:
            steered = False
            found = await offers.tree(round)
            ledger.searched(found.search_ms, chain=found.tree is None)
            session.verify(found.tree, draft_after=True)
            if opening.mode is Mode.AUTO:
                ledger.mode_reason = mode_reasons.OFFERS
        elif drafting and (steered or opening.mode is Mode.DART):
            if not session.ahead:
                steered = False
                session.decode(1, draft_after=True)
        else:
            credited = True
            _grant(session, PLAIN_CREDIT, drafting=drafting)


def _grant(session: Session, credit: int, *, drafting: bool) -> None:
    """Fill up plain credit when half of it is used.

    An offer may end it at any moment. The answer must follow what fills it up, so nobody else may give it.
    """
    session.allow(0)
    if session.ahead <= credit // 2:
        session.decode(credit - session.ahead, draft_after=drafting, may_offer=drafting)
