"""What the draft head proposes after a prefix, outside of any session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.sampling_rules import check_token_ids
from dartspec.services.common.types import Proposals, Sampling
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.messages import Open


def propose_after(engine: Engine, default_top_k: int) -> Callable[[Sequence[int], int], Awaitable[Proposals]]:
    """A function (x[0..n], top_k or 0) -> Proposals for x[n+1], ... that runs between the engine's steps."""

    async def propose(token_ids: Sequence[int], top_k: int) -> Proposals:
        context_length = engine.admission.context_length
        if not 2 <= len(token_ids) < context_length:
            raise InvalidArgument(
                "token_ids", f"must hold between 2 and {context_length - 1} tokens, got {len(token_ids)}"
            )
        check_token_ids("token_ids", tuple(token_ids), engine.decoder.target.config.vocab_size)
        work = engine.call(lambda: _propose(engine, list(token_ids), top_k or default_top_k))
        return await asyncio.wrap_future(work)

    return propose


def _propose(engine: Engine, token_ids: list[int], top_k: int) -> Proposals:
    prefix, pending = token_ids[:-1], token_ids[-1]
    order = Open(0, prefix, len(prefix), Sampling(temperature=0.0, max_tokens=2), 0, 0, "propose", True, False)
    decoder = Decoder(engine.decoder.target, engine.decoder.proposer, top_k)
    session = engine.admission.open(order, decoder)
    try:
        while decoder.prefill(session) is None:
            continue
        # The caller says what follows the prefix; what the target would have chosen does not matter here.
        session.tokens[-1] = pending
        decoder.draft([session])
        assert session.proposals is not None
        return session.proposals
    finally:
        engine.admission.release(session)
