"""Sessions that take over the rows of others: the same rows, proposals and tokens as without, whatever became of those.

The twin of every session here is one of an admission without prefix reuse, which computes everything itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.draft.propose import Proposer
from dartspec.services.verifier import prefix_index
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.decoder import Decoder, Work
from dartspec.services.verifier.features import PREFIX_BLOCK, WAITING_ROWS
from dartspec.services.verifier.kv_cache import SLOT_BLOCK
from dartspec.services.verifier.linear import ONE_SHAPE
from dartspec.services.verifier.messages import Open
from dartspec.services.verifier.prefix_store import PrefixStore
from dartspec.services.verifier.session import Session

from .driver import GREEDY, IDLE, FakeOwner, gauges, held, running
from .tiny import CONTEXT, MAX_NODES, VOCAB, finished, plain, random_tree, tiny_decoder

B = PREFIX_BLOCK


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


def admission(positions: int = 1 << 20, prefix_reuse: bool = True) -> Admission:
    return Admission(64, positions, CONTEXT, MAX_NODES, prefix_reuse)


def start(
    where: Admission,
    decoder: Decoder,
    tokens: Sequence[int],
    sampling: Sampling = GREEDY,
    plain_only: bool = False,
    prompt_len: int | None = None,
    seed: int = 0,
) -> Session:
    """An open session that has read nothing of its prompt itself."""
    order = Open(1, list(tokens), prompt_len or len(tokens), sampling, seed, 0, "test", not plain_only, plain_only)
    return where.open(order, decoder)


def read(decoder: Decoder, session: Session, chunk: int = 512) -> Session:
    """Read the prompt to its end, ``chunk`` rows a pass."""
    while session.prefilling:
        decoder.step([Work(session, Tree.empty(), min(chunk, session.prompt_left))])
    return session


def text(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


def store(where: Admission) -> PrefixStore:
    assert where.prefixes is not None
    return where.prefixes


def check_twin(decoder: Decoder, session: Session, exact: bool = False, tolerance: float = 1e-4) -> None:
    """A session's rows, those of its head and its next proposals are those of one that computed everything itself.

    exact: the target's rows bit by bit. (The head's products depend on the rows beside them; see `linear.py`.)
    decoder: has the session's weights; its memory may be other memory, with room for the twin.
    """
    bound = 0.0 if exact else tolerance
    twin = start(
        admission(prefix_reuse=False),
        decoder,
        session.tokens[: session.n],
        plain_only=session.head_cache is None,
    )
    read(decoder, twin)
    assert twin.n == session.n
    n = session.n
    torch.testing.assert_close(session.cache.data[:, :, :, :n], twin.cache.data[:, :, :, :n], rtol=bound, atol=bound)
    if session.head_cache is None:
        return
    assert twin.head_cache is not None
    twin.tokens[n] = session.tokens[n]
    decoder.draft([session])
    decoder.draft([twin])
    assert session.head_cache.length == twin.head_cache.length == n
    torch.testing.assert_close(
        session.head_cache._store[:, :, :n], twin.head_cache._store[:, :, :n], rtol=tolerance, atol=tolerance
    )
    assert session.proposals is not None
    assert twin.proposals is not None
    for got, want in zip(session.proposals.logprobs, twin.proposals.logprobs, strict=True):
        np.testing.assert_allclose(got, want, atol=tolerance)


def go_on(decoder: Decoder, session: Session, truth: list[int], rounds: int, rng: random.Random) -> None:
    """Rounds with trees around ``truth``, the plain answer, most of which the target rejects, and some drafts."""
    for _ in range(rounds):
        if finished(session):
            return
        done = len(session.tokens) - session.opened.prompt_len
        decoder.verify(session, random_tree(rng, truth[done:]))
        if session.head_cache is not None and rng.random() < 0.5 and not finished(session):
            decoder.draft([session])
    assert session.tokens[session.opened.prompt_len :] == truth[: len(session.tokens) - session.opened.prompt_len]


@pytest.mark.parametrize("plain_only", [False, True])
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(
    ("shared", "own", "reused"),
    [
        (3 * B, 10, 3 * B),
        (3 * B + 20, 10, 3 * B),  # all whole blocks are shared, the prompts end differently
        (3 * B, 0, 2 * B),  # exactly whole blocks: at least one token is always computed
        (3 * B + 1, 0, 3 * B),
        (B, 0, 0),
        (B - 1, 200, 0),
        (7 * B + 5, 400, 7 * B),
    ],
)
def test_a_shared_beginning_is_taken_over_in_whole_blocks(
    decoder: Decoder, shared: int, own: int, reused: int, ended: bool, plain_only: bool
) -> None:
    where = admission()
    common = text(shared, shared)
    source = read(decoder, start(where, decoder, [*common, *text(-1, 30)], plain_only=plain_only))
    if ended:
        where.release(source)
    session = start(where, decoder, [*common, *text(-2, own)], plain_only=plain_only)
    assert (session.n, where.reused_tokens) == (reused, reused)
    read(decoder, session)
    check_twin(decoder, session)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reused_rows_are_bitwise_those_computed_where_rows_do_not_depend_on_their_company(dtype: torch.dtype) -> None:
    decoder = tiny_decoder(dtype=dtype)
    decoder.target.rows = ONE_SHAPE
    where = admission()
    common = text(1, 5 * B + 3)
    source = read(decoder, start(where, decoder, [*common, 7]), chunk=100)
    decoder.draft([source])  # the head has seen everything
    session = read(decoder, start(where, decoder, [*common, 9, 11]))
    assert where.reused_tokens == 5 * B
    where.release(source)
    kept = read(decoder, start(where, decoder, [*common, 13, 15, 17]), chunk=90)
    for each in (session, kept):
        check_twin(decoder, each, exact=True, tolerance=1e-4 if dtype == torch.float32 else 0.1)


def test_rejected_rows_of_a_source_in_the_middle_of_its_answer_stay_behind(decoder: Decoder) -> None:
    rng = random.Random(5)
    where = admission()
    sampling = replace(GREEDY, max_tokens=300)
    truth = plain(decoder, text(2, B + 9), sampling)
    source = read(decoder, start(where, decoder, text(2, B + 9), sampling))
    others: list[Session] = []
    for _ in range(12):
        go_on(decoder, source, truth, 4, rng)
        # Its rows up to n are committed; behind them lie rejected ones, which a longer prompt must not meet.
        prompt = [*source.tokens, *text(source.n, rng.randint(1, 80))]
        session = start(where, decoder, prompt)
        drafted = source.head_cache.length + 1 if source.head_cache is not None else 0
        most = max(min(source.n, drafted) // B * B, max((o.n // B * B for o in others), default=0))
        assert 0 < session.n <= most
        check_twin(decoder, read(decoder, session))
        others.append(session)
    assert where.reused_tokens > 12 * B
    where.release(source)
    again = start(where, decoder, [*source.tokens, 5])
    assert again.n >= (len(source.tokens) - WAITING_ROWS) // B * B
    check_twin(decoder, read(decoder, again))


def test_answers_are_the_plain_ones_when_everything_is_reused(decoder: Decoder) -> None:
    rng = random.Random(6)
    where = admission()
    for number in range(8):
        prompt = [*text(3, 2 * B + 11), *text(number % 3, 20)]
        sampling = replace(GREEDY, temperature=rng.choice([0.0, 0.9]), max_tokens=60)
        session = start(where, decoder, prompt, sampling, seed=number)
        assert session.n == (0 if number == 0 else 2 * B)
        read(decoder, session)
        go_on(decoder, session, plain(decoder, prompt, sampling, number), 100, rng)
        assert finished(session)
        where.release(session)


def test_a_resumed_answer_reuses_prompt_and_answer(decoder: Decoder) -> None:
    where = admission()
    sampling = replace(GREEDY, temperature=0.8, max_tokens=150, repetition_penalty=1.2, presence_penalty=0.3)
    prompt = text(4, B - 10)
    truth = plain(decoder, prompt, sampling, 3)
    first = read(decoder, start(where, decoder, prompt, sampling, seed=3))
    for _ in range(99):
        decoder.verify(first, Tree.empty())
    decoder.draft([first])
    assert first.tokens[len(prompt) :] == truth[:100]
    where.release(first)
    resumed = start(where, decoder, [*prompt, *truth[:100]], sampling, prompt_len=len(prompt), seed=3)
    assert resumed.n == 2 * B
    read(decoder, resumed)
    while not finished(resumed):
        decoder.verify(resumed, Tree.empty())
    assert resumed.tokens[len(prompt) :] == truth


def test_branches_of_one_prefix_have_their_own_rows_of_the_head(decoder: Decoder) -> None:
    # The head's row at the end of a block depends on the token after it, which differs from branch to branch.
    where = admission()
    common = text(5, 2 * B)
    branches = [[*common, *text(10 + number, 2 * B)] for number in range(3)]
    for branch in branches:
        where.release(read(decoder, start(where, decoder, [*branch, 4])))
    assert store(where).kept_tokens == (2 + 3 * 2) * B
    for branch in reversed(branches):
        session = start(where, decoder, [*branch, 6, 8])
        assert session.n == 4 * B
        check_twin(decoder, read(decoder, session))


def test_a_session_that_never_drafts_serves_only_such(decoder: Decoder) -> None:
    where = admission()
    prompt = text(6, 2 * B + 5)
    source = read(decoder, start(where, decoder, prompt, plain_only=True))
    for ended in (False, True):
        if ended:
            where.release(source)
        assert start(where, decoder, [*prompt, 4], plain_only=True).n == 2 * B
        drafting = start(where, decoder, [*prompt, 5])
        assert drafting.n == 0
        where.release(drafting)
    # What a drafting session leaves behind serves both.
    where.release(read(decoder, start(where, decoder, [*prompt, 7])))
    assert start(where, decoder, [*prompt, 8]).n == 2 * B
    assert start(where, decoder, [*prompt, 8], plain_only=True).n == 2 * B


def test_a_head_that_lags_limits_what_drafting_sessions_reuse(decoder: Decoder) -> None:
    where = admission()
    source = read(decoder, start(where, decoder, text(7, B), replace(GREEDY, max_tokens=200)))
    seen = set()
    for _ in range(150):
        decoder.verify(source, Tree.empty())
        assert source.lag() <= WAITING_ROWS
        assert source.head_cache is not None
        assert source.head_cache.length + source.lag() == source.n
        if source.n % 16:
            continue
        session = start(where, decoder, [*source.tokens, 5])
        seen.add(source.n - session.n)
        assert session.n == (source.head_cache.length + 1) // B * B
        where.release(session)
        other = start(where, decoder, [*source.tokens, 5], plain_only=True)
        assert other.n == source.n // B * B
        where.release(other)
    assert max(seen) >= B
    check_twin(decoder, source)


def test_a_source_that_goes_away_before_it_is_used(decoder: Decoder) -> None:
    where = admission()
    prompt = text(8, 3 * B + 5)
    source = read(decoder, start(where, decoder, prompt))
    prefixes = store(where)
    # Between the look-up and the copy: closed with nothing kept, and closed and kept.
    prefixes.reserve([*prompt, 5], True)
    source.sound = False
    where.release(source)
    assert prefixes.kept_tokens == 0
    session = start(where, decoder, [*prompt, 5])
    assert session.n == 0
    check_twin(decoder, read(decoder, session))
    prefixes.reserve([*prompt, 6], True)
    where.release(session)
    again = start(where, decoder, [*prompt, 6])
    assert again.n == 3 * B
    check_twin(decoder, read(decoder, again))


def test_a_source_cancelled_in_the_middle_of_its_prompt(decoder: Decoder) -> None:
    where = admission()
    prompt = text(9, 5 * B)
    source = start(where, decoder, prompt)
    decoder.step([Work(source, Tree.empty(), 2 * B + 30)])
    where.release(source)
    session = start(where, decoder, [*prompt, 5])
    assert session.n == 2 * B
    check_twin(decoder, read(decoder, session))


def test_two_sessions_with_one_prompt_opened_at_the_same_time(decoder: Decoder) -> None:
    where = admission()
    prompt = text(10, 6 * B)
    first, second = (start(where, decoder, prompt) for _ in range(2))
    assert (first.n, second.n) == (0, 0)
    decoder.step([Work(first, Tree.empty(), 4 * B), Work(second, Tree.empty(), B + 7)])
    # The second takes over what the first has read meanwhile, in place of what it began itself.
    where.reuse([second])
    assert second.n == 4 * B
    where.reuse([first, second])
    assert (first.n, second.n, where.reused_tokens) == (4 * B, 4 * B, 3 * B - 7)
    for session in (first, second):
        check_twin(decoder, read(decoder, session))
    assert first.tokens == second.tokens
    for session in (first, second):
        where.release(session)
    assert store(where).kept_tokens == 6 * B  # once, not twice
    where.reuse([])


def test_a_hash_that_always_collides_decides_nothing(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "chain_hash", lambda previous, tokens: b"always the same")
    rng = random.Random(11)
    where = admission()
    pieces = [text(20 + number, B) for number in range(3)]
    seen: list[list[int]] = []
    for number in range(14):
        prompt = [token for _ in range(3) for token in rng.choice(pieces)] + [5 + number]
        most = max((B * _common_blocks(prompt, other) for other in seen), default=0)
        session = start(where, decoder, prompt)
        assert session.n == most
        check_twin(decoder, read(decoder, session))
        seen.append(prompt)
        if rng.random() < 0.6:
            where.release(session)
    assert where.reused_tokens > 10 * B


def _common_blocks(one: Sequence[int], other: Sequence[int]) -> int:
    blocks = 0
    while (blocks + 1) * B < len(one) and one[: (blocks + 1) * B] == other[: (blocks + 1) * B]:
        blocks += 1
    return blocks


def test_kept_prefixes_give_way_to_sessions_and_never_stop_one(decoder: Decoder) -> None:
    unlimited, decoder = decoder, tiny_decoder()
    decoder.target.pool.limit = 4 * SLOT_BLOCK
    where = admission(4 * SLOT_BLOCK)
    short = replace(GREEDY, max_tokens=3)
    prompts = [text(30 + number, 4 * B + 1) for number in range(20)]
    for prompt in prompts:
        where.release(read(decoder, start(where, decoder, prompt, short)))
        pool = decoder.target.pool
        assert sum(region.positions for region in pool.regions) == 4 * SLOT_BLOCK
        assert store(where).kept_tokens <= 4 * SLOT_BLOCK
    # The last ones are there, the first ones are not.
    reused = []
    for prompt in reversed(prompts):
        session = start(where, decoder, [*prompt, 5], short)
        reused.append(session.n)
        where.release(session)
    assert reused[0] == 4 * B
    assert 3 <= sum(n > 0 for n in reused) <= 8
    assert reused == sorted(reused, reverse=True)
    # All of the memory is for sessions as soon as they want it.
    open_now = [start(where, decoder, [*prompt, 5], short) for prompt in prompts[:4]]
    assert where.kv_used == 4 * SLOT_BLOCK
    assert store(where).kept_tokens == 0
    for session in open_now:
        check_twin(unlimited, read(decoder, session))
    assert store(where).evicted_blocks > 0


def test_the_prefix_that_is_about_to_be_used_is_not_what_gives_way(decoder: Decoder) -> None:
    unlimited, decoder = decoder, tiny_decoder()
    decoder.target.pool.limit = 3 * SLOT_BLOCK
    where = admission(3 * SLOT_BLOCK)
    short = replace(GREEDY, max_tokens=3)
    old, filler, new = text(50, 6 * B + 1), text(51, 2 * B + 1), text(52, 6 * B + 1)
    for prompt in (old, filler, new):  # old and filler fill a unit, new begins another
        where.release(read(decoder, start(where, decoder, prompt, short, plain_only=True)))
    start(where, decoder, text(53, 9), short, plain_only=True)
    session = start(where, decoder, [*old, 5], short, plain_only=True)
    assert session.n == 6 * B
    assert store(where).evicted_blocks == 6
    check_twin(unlimited, read(decoder, session))
    assert start(where, decoder, [*new, 5], short, plain_only=True).n == 0


def test_what_is_being_kept_does_not_push_itself_out(decoder: Decoder) -> None:
    unlimited, decoder = decoder, tiny_decoder()
    decoder.target.pool.limit = 5 * SLOT_BLOCK
    where = admission(5 * SLOT_BLOCK)
    short = replace(GREEDY, max_tokens=3)
    prompts = [text(54 + number, 6 * B + 1) for number in range(3)]
    for prompt in prompts:  # fill two units and begin a third
        where.release(read(decoder, start(where, decoder, prompt, short, plain_only=True)))
    for prompt in prompts[:2]:  # the third is now the one that was used least recently
        where.release(start(where, decoder, [*prompt, 5], short, plain_only=True))
    long = text(57, 10 * B + 1)
    where.release(read(decoder, start(where, decoder, long, short, plain_only=True)))
    assert store(where).evicted_blocks > 0
    again = start(where, decoder, [*long, 5], short, plain_only=True)
    assert again.n == 10 * B
    check_twin(unlimited, read(decoder, again))


def test_it_can_be_turned_off(decoder: Decoder) -> None:
    where = admission(prefix_reuse=False)
    prompt = text(12, 3 * B)
    where.release(read(decoder, start(where, decoder, prompt)))
    assert start(where, decoder, [*prompt, 5]).n == 0
    assert (where.prefixes, where.reused_tokens) == (None, 0)


def test_rows_of_another_model_or_head_are_not_taken(decoder: Decoder) -> None:
    where = admission()
    prompt = text(13, 3 * B)
    read(decoder, start(where, decoder, prompt))
    other = tiny_decoder(seed=1, dtype=torch.bfloat16)
    assert start(where, other, [*prompt, 5]).n == 0
    other_head = tiny_decoder(seed=2).proposer
    assert other_head is not None
    assert start(where, Decoder(decoder.target, Proposer(other_head.head), 8), [*prompt, 5]).n == 0
    assert start(where, Decoder(decoder.target, None, 8), [*prompt, 5], plain_only=True).n == 0
    assert start(where, Decoder(decoder.target, decoder.proposer, 3), [*prompt, 5]).n == 2 * B + B


def test_rows_of_a_session_whose_logits_were_no_numbers_are_not_kept(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = text(14, 3 * B)
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        with monkeypatch.context() as patch:
            patch.setattr(decoder.target, "logits", lambda hidden: torch.full((len(hidden), VOCAB), float("nan")))
            owner.open(1, prompt)
            assert "NaN" in owner.failure(1).error.message
        owner.open(2, [*prompt, 5])
        owner.round(2)
        assert engine.admission.reused_tokens == 0
        owner.open(3, [*prompt, 6])
        owner.round(3)
        assert engine.admission.reused_tokens == 3 * B
        owner.close(2)
        owner.close(3)
        assert gauges(engine) == IDLE


def test_rows_of_a_pass_that_failed_half_way_are_not_kept(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(inputs: object) -> None:
        raise RuntimeError("no such head")

    where = admission()
    prompt = text(17, 4 * B)
    session = start(where, decoder, prompt)
    assert decoder.proposer is not None
    with monkeypatch.context() as patch:
        patch.setattr(decoder.proposer, "append", broken)  # keys and values are committed by then, features are not
        with pytest.raises(RuntimeError, match="no such head"):
            read(decoder, session)
    where.release(session)
    assert start(where, decoder, [*prompt, 5]).n == 0


def test_an_engine_under_pressure_gives_plain_answers(decoder: Decoder) -> None:
    truth_decoder = decoder
    decoder = tiny_decoder()
    decoder.target.pool.limit = 8 * SLOT_BLOCK
    rng = random.Random(15)
    beginnings = [text(60 + number, rng.choice((B, 2 * B, 3 * B + 7))) for number in range(4)]
    with running(decoder, kv_positions=8 * SLOT_BLOCK) as engine:
        owner = FakeOwner(engine)
        session = 0
        for _ in range(12):
            cases = []
            for _ in range(6):
                prompt = [*rng.choice(beginnings), *text(rng.randrange(3), rng.randint(1, 90))]
                sampling = replace(GREEDY, temperature=rng.choice([0.0, 1.0]), max_tokens=rng.randint(1, 20))
                cases.append((prompt, sampling, rng.randrange(3)))
            first = session + 1
            with held(engine):
                for prompt, sampling, seed in cases:
                    session += 1
                    owner.open(session, prompt, sampling, seed, draft_after=True, plain_only=rng.random() < 0.3)
            for number, (prompt, sampling, seed) in enumerate(cases, start=first):
                truth = plain(truth_decoder, prompt, sampling, seed)
                event = owner.round(number)
                answer = list(event.token_ids)
                quits = rng.random() < 0.2
                while event.finish is None and not (quits and len(answer) > 3):
                    owner.verify(number, event.n, random_tree(rng, truth[len(answer) :]), draft_after=True)
                    event = owner.round(number)
                    answer += event.token_ids
                if quits:
                    owner.close(number)
                assert answer == truth[: len(answer)]
                assert quits or answer == truth
        assert engine.admission.reused_tokens > 20 * B
        assert gauges(engine) == IDLE
        assert decoder.target.pool.taken == 0
        assert sum(region.positions for region in decoder.target.pool.regions) == 8 * SLOT_BLOCK


def test_random_sessions_are_what_they_would_be_alone(decoder: Decoder) -> None:
    unlimited, decoder = decoder, tiny_decoder()
    decoder.target.pool.limit = 10 * SLOT_BLOCK
    where = admission(10 * SLOT_BLOCK)
    rng = random.Random(16)
    pieces = [text(70 + number, B) for number in range(3)]
    sessions: list[Session] = []
    checked = 0
    for _ in range(250):
        action = rng.random()
        if action < 0.35 and len(sessions) < 5:
            prompt = _prompt(rng, pieces, sessions)
            sampling = replace(GREEDY, max_tokens=rng.randint(1, 80))
            sessions.append(start(where, decoder, prompt, sampling, plain_only=rng.random() < 0.3))
        elif action < 0.5 and sessions:
            where.release(sessions.pop(rng.randrange(len(sessions))))
        elif sessions:
            where.reuse(sessions)
            works = []
            for session in rng.sample(sessions, rng.randint(1, len(sessions))):
                if session.prefilling:
                    works.append(Work(session, Tree.empty(), rng.randint(1, session.prompt_left)))
                elif not finished(session):
                    works.append(Work(session, random_tree(rng, [], max_nodes=min(20, session.room))))
            if works:
                decoder.step(works)
                for work in works:
                    session = work.session
                    if not session.prefilling and not finished(session) and rng.random() < 0.5:
                        checked += 1
                        check_twin(unlimited, session)
    assert checked > 15
    assert where.reused_tokens > 10 * B


def _prompt(rng: random.Random, pieces: list[list[int]], sessions: Iterable[Session]) -> list[int]:
    prompt = [token for _ in range(rng.randint(0, 4)) for token in rng.choice(pieces)]
    going = [session for session in sessions if len(session.tokens) < 400]
    if going and rng.random() < 0.4:
        prompt = list(rng.choice(going).tokens)
    return [*prompt, *text(rng.randrange(5), rng.randint(1, 30))]
