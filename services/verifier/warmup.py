"""The first passes, made before readiness so that no request pays for them, and what they cost."""

from __future__ import annotations

import time

import numpy as np

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier import draw, looks
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.attention import Segment
from dartspec.services.verifier.cost import CONTEXTS, FEWER_ROWS, CostTable, measure
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.invariance import settle
from dartspec.services.verifier.kv_cache import KVCache, rounded_capacity
from dartspec.services.verifier.messages import Open
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.target import Target
from dartspec.services.verifier.tree import depths, visible_rows

# Context length at which passes of all sizes are profiled; longer ones are measured at fewer.
PROFILE_TOKENS = 128
# Largest pass that is profiled; larger ones cost in proportion.
PROFILE_ROWS = 256
# Times that a draft of all offsets is measured, and one of the first alone.
DRAFTS = 3


def positions_needed(max_nodes: int) -> int:
    """KV positions of the sessions that these passes open."""
    return rounded_capacity(PROFILE_TOKENS + 2 * DRAFTS + 2 + max(max_nodes + 1, PROFILE_ROWS))


def warm_up(decoder: Decoder, admission: Admission) -> None:
    """Prefill, draft, decode one token and verify a tree of the largest size, once each, and compile the draw."""
    draw.warm_up()
    looks.warm_up()
    session = _open(decoder, admission)
    try:
        if decoder.proposer is not None:
            decoder.draft([session])
        decoder.verify(session, Tree.empty())
        _run_rows(decoder.target, session.cache, admission.max_nodes + 1)
    finally:
        admission.release(session)


def profile(decoder: Decoder, admission: Admission) -> tuple[CostTable, float, float]:
    """The cost table of target passes, and the milliseconds of a draft of all offsets and of the first alone.

    Needs a draft head.
    """
    session = _open(decoder, admission)
    times: tuple[list[float], list[float]] = ([], [])
    try:
        table = _cost_table(decoder, admission, session)
        for turn in range(2 * DRAFTS):
            decoder.verify(session, Tree.empty())
            begin = time.perf_counter()
            decoder.draft([session], 1 if turn % 2 else None)
            times[turn % 2].append(1e3 * (time.perf_counter() - begin))
        return table, min(times[0]), min(times[1])
    finally:
        admission.release(session)


def _cost_table(decoder: Decoder, admission: Admission, session: Session) -> CostTable:
    target, spare = decoder.target, FEWER_ROWS[-1]
    fit = [
        context
        for context in CONTEXTS
        if context + spare <= admission.context_length and target.pool.room(rounded_capacity(context + spare))
    ]
    scratch: KVCache | None = None

    def run(context: int, rows: int) -> None:
        nonlocal scratch
        if context == session.n:
            return _run_rows(target, session.cache, rows)
        if scratch is None or scratch.length != context:
            if scratch is not None:
                scratch.release()
            scratch = target.new_cache(context + spare)
            # Memory that nobody has written yet is not really there, and so is read too fast.
            scratch.data[:, :, :, :context] = 0.01
            scratch.length = context
        return _run_rows(target, scratch, rows)

    try:
        return measure(run, session.n, fit, max(admission.max_nodes + 1, PROFILE_ROWS))
    finally:
        if scratch is not None:
            scratch.release()


def settle_invariance(choice: str, decoder: Decoder, admission: Admission) -> None:
    """Turn the target's `invariant` mode on or off; see `invariance.settle`."""
    session = _open(decoder, admission)

    def pass_ms(rows: int) -> float:
        begin = time.perf_counter()
        _run_rows(decoder.target, session.cache, rows)
        return 1e3 * (time.perf_counter() - begin)

    try:
        settle(decoder.target, choice, pass_ms)
    finally:
        admission.release(session)


def _open(decoder: Decoder, admission: Admission) -> Session:
    vocab_size = decoder.target.config.vocab_size
    length = min(PROFILE_TOKENS, admission.context_length // 2)
    prompt = [token % vocab_size for token in range(length)]
    sampling = Sampling(temperature=0.0, max_tokens=2 * DRAFTS + 2, ignore_eos=True)
    session = admission.open(Open(0, prompt, length, sampling, 0, 0, "warm-up", True, False), decoder)
    while decoder.prefill(session) is None:
        continue
    return session


def _run_rows(target: Target, cache: KVCache, rows: int) -> None:
    """A pass of ``rows`` rows that commits nothing: a star, whose tokens need not be distinct for this."""
    nodes = rows - 1
    star = Tree(
        np.zeros(nodes, np.int32), np.zeros(nodes, np.int32), np.zeros(nodes, np.float32), np.zeros(nodes, np.uint16)
    )
    out = target.forward([Segment(cache, [0] * rows, depths(star), visible_rows(star))])
    target.logits(out.hidden).cpu()
