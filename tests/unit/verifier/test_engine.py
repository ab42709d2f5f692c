"""The engine: commands in, events out, and nothing left behind whatever happens in between."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest
import torch

from dartspec.services.common.errors import InvalidArgument, NotFound
from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.adaptive import AdaptiveBudget
from dartspec.services.verifier.cost import CostTable
from dartspec.services.verifier.decoder import PREFILL_ROWS, Decoder, Work, best_chain
from dartspec.services.verifier.draft_depth import DraftDepth
from dartspec.services.verifier.kv_cache import rounded_capacity
from dartspec.services.verifier.messages import Event, Finish, Load, Malformed, NoDraft, Round
from dartspec.services.verifier.open_sessions import MAX_CREDIT
from dartspec.services.verifier.session import Session

from .driver import (
    GREEDY,
    IDLE,
    NOTHING_KEPT,
    PATIENCE_SECONDS,
    FakeOwner,
    chain,
    gauges,
    held,
    kept,
    running,
    settle,
)
from .tiny import CONTEXT, EOS, MAX_NODES, VOCAB, plain, random_tree, tiny_decoder

INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
HOT = Sampling(1.0, 60, ignore_eos=True)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


def test_interleaved_sessions_give_their_plain_answers(decoder: Decoder) -> None:
    rng = random.Random(0)
    cases = []
    for number in range(32):
        prompt = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 40))]
        sampling = replace(
            HOT,
            temperature=rng.choice([0.0, 0.7, 1.3]),
            max_tokens=rng.randint(20, 40),
            repetition_penalty=rng.choice([1.0, 1.3]),
            top_p=rng.choice([0.8, 1.0]),
        )
        cases.append((prompt, sampling, number))
    truths = [plain(decoder, *case) for case in cases]
    with running(decoder) as engine:
        owners = [FakeOwner(engine), FakeOwner(engine)]  # two streams that use the same session ids
        events = []
        for number, case in enumerate(cases):
            owners[number % 2].open(number // 2 + 1, *case, draft_after=True)
        for number in range(len(cases)):
            events.append(owners[number % 2].round(number // 2 + 1))
        answers = [list(event.token_ids) for event in events]
        while running_now := [i for i, event in enumerate(events) if event.finish is None]:
            # All at once, so that they share a pass.
            with held(engine):
                for i in running_now:
                    owner, session = owners[i % 2], i // 2 + 1
                    if rng.random() < 0.3 and events[i].proposals is not None:
                        owner.verify(session, events[i].n, None, draft_after=True)
                    elif rng.random() < 0.3:
                        owner.decode(session, events[i].n, 1, draft_after=rng.random() < 0.5)
                    else:
                        owner.verify(session, events[i].n, random_tree(rng, truths[i][len(answers[i]) :]))
            for i in running_now:
                events[i] = owners[i % 2].round(i // 2 + 1)
                answers[i] += events[i].token_ids
        assert answers == truths
        assert all(owner.nothing_more() for owner in owners)
        assert gauges(engine) == IDLE


def test_the_last_tokens_do_not_wait_until_their_memory_is_free(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(decoder) as engine:
        owner, order = FakeOwner(engine), []
        deliver, free = owner.deliver, engine.admission.free

        def delivering(events: list[Event], load: Load) -> None:
            order.append("told")
            deliver(events, load)

        def freeing(session: Session) -> None:
            order.append("freed")
            free(session)

        monkeypatch.setattr(owner, "deliver", delivering)
        monkeypatch.setattr(engine.admission, "free", freeing)
        owner.open(1, sampling=replace(GREEDY, max_tokens=1))
        assert owner.round(1).finish is Finish.LENGTH
        assert owner.load.sessions == owner.load.kv_used == 0  # it does not count any more
        settle(engine)
        assert order == ["told", "freed"]
        assert kept(engine)[:2] == (0, 0)


def test_memory_that_cannot_be_freed_ends_nobody_elses_answer(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_left(session: Session) -> None:
        raise MemoryError("no pages")

    with running(decoder) as engine:
        owner = FakeOwner(engine)
        monkeypatch.setattr(engine.admission, "free", nothing_left)
        with held(engine):  # so that both are in one step
            owner.open(1, sampling=replace(GREEDY, max_tokens=1))
            owner.open(2)
            owner.open(3)
        first, second = owner.round(1), owner.round(2)
        assert (first.finish, second.finish) == (Finish.LENGTH, None)
        owner.close(3)
        owner.decode(2, second.n, 2)
        assert [owner.round(2).n for _ in range(2)] == [second.n + 1, second.n + 2]
        owner.verify(2, 0, None)  # which fails, and so does freeing what it held
        assert owner.failure(2).error.field == "n"
        settle(engine)
        assert gauges(engine) == IDLE
        assert kept(engine)[:3] == (0, 0, 0)


@pytest.mark.parametrize("wrong", [-1, 1, 1000])
@pytest.mark.parametrize("kind", ["verify", "decode"])
def test_a_wrong_n_fails_that_session_only(decoder: Decoder, wrong: int, kind: str) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        owner.open(2)
        n = owner.round(1).n
        owner.round(2)
        assert n == 3
        if kind == "verify":
            owner.verify(1, n + wrong, Tree.empty())
        else:
            owner.decode(1, n + wrong, 1)
        failed = owner.failure(1)
        assert (failed.error.number, failed.error.field, failed.committed) == (INVALID, "n", 1)
        assert f"the session is at {n}, the command says {n + wrong}" in failed.error.message
        owner.decode(2, n, 1)
        assert owner.round(2).n == n + 1
        owner.decode(1, n, 1)  # for a session that is gone: no answer
        owner.close(2)
        assert gauges(engine) == IDLE
        assert owner.nothing_more()


def test_ids_are_not_used_twice_on_a_stream(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner, other = FakeOwner(engine), FakeOwner(engine)
        owner.open(5, sampling=replace(GREEDY, max_tokens=1))
        assert owner.round(5).finish is Finish.LENGTH
        for session in (5, 4):
            owner.open(session)
            assert owner.failure(session).error.field == "session"
        other.open(5)
        assert other.round(5).n == 3
        # The first command of a stream cannot be for a session that it never opened.
        owner.decode(9, 3, 1)
        assert "never opened" in owner.failure(9).error.message
        other.close(5)
        assert gauges(engine) == IDLE


def test_credit_is_refilled_before_it_runs_out(decoder: Decoder) -> None:
    truth = plain(decoder, [5, 6, 7], replace(GREEDY, max_tokens=12))
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        event = owner.round(1)
        tokens = list(event.token_ids)
        with held(engine):
            # n of a refill is where the session will be when the credit before it is used up.
            owner.decode(1, event.n, 3, draft_after=True)
            owner.decode(1, event.n + 3, 2, draft_after=True)
            owner.decode(1, event.n + 5, 1, draft_after=True)
        events = [owner.round(1) for _ in range(6)]
        tokens += [token for e in events for token in e.token_ids]
        assert tokens == truth[:7]
        assert [e.n for e in events] == list(range(event.n + 1, event.n + 7))
        assert [e.proposals is not None for e in events] == [False] * 5 + [True]
        with held(engine):
            owner.decode(1, event.n + 6, 3)
            owner.decode(1, event.n + 6, 3)
        failed = owner.failure(1)
        assert f"the session is at {event.n + 9}, the command says {event.n + 6}" in failed.error.message
        assert gauges(engine) == IDLE


@pytest.mark.parametrize("steps", [0, MAX_CREDIT + 1])
def test_steps_out_of_range_are_refused(decoder: Decoder, steps: int) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        owner.decode(1, owner.round(1).n, steps)
        assert owner.failure(1).error.field == "decode.steps"
        assert gauges(engine) == IDLE


@pytest.mark.parametrize(
    "second",
    [lambda o, n: o.verify(1, n, Tree.empty()), lambda o, n: o.decode(1, n, 1), lambda o, n: o.decode(1, n + 1, 1)],
)
def test_a_second_command_beside_a_verify_is_refused(
    decoder: Decoder, second: Callable[[FakeOwner, int], None]
) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        n = owner.round(1).n
        with held(engine):
            owner.verify(1, n, Tree.empty())
            second(owner, n)
        failed = owner.failure(1)
        assert failed.error.field == "n"
        assert "outstanding" in failed.error.message
        assert gauges(engine) == IDLE


def test_the_chain_is_the_best_one_of_the_last_proposals(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1, draft_after=True)
        event = owner.round(1)
        assert event.proposals is not None
        assert event.proposals.depth == 8
        for longest, nodes in ((0, 8), (3, 3), (100, 8)):
            assert event.proposals is not None
            expected = best_chain(event.proposals, longest or 8, frozenset())
            assert expected.token_ids.tolist() == [int(ids[0]) for ids in event.proposals.token_ids[:nodes]]
            owner.verify(1, event.n, None, longest, draft_after=True)
            event = owner.round(1)
            assert (event.nodes_offered, event.nodes_verified) == (nodes, nodes)
        owner.close(1)
        assert gauges(engine) == IDLE


def test_a_chain_without_proposals_is_refused(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        # Never asked for; and used up by a round that asked for none.
        owner.open(1)
        owner.verify(1, owner.round(1).n, None)
        assert owner.failure(1).error.field == "verify.chain"
        owner.open(2, draft_after=True)
        owner.decode(2, owner.round(2).n, 1)
        owner.verify(2, owner.round(2).n, None)
        assert owner.failure(2).error.field == "verify.chain"
        assert gauges(engine) == IDLE


def test_why_there_are_no_proposals(decoder: Decoder) -> None:
    headless = Decoder(decoder.target, None, 8)
    cases: list[tuple[Decoder, dict[str, Any], NoDraft | None]] = [
        (decoder, {}, None),
        (decoder, {"plain_only": True}, NoDraft.PLAIN_ONLY),
        (decoder, {"sampling": replace(GREEDY, max_tokens=1)}, NoDraft.FINISHED),
        (decoder, {"sampling": replace(GREEDY, max_tokens=2)}, NoDraft.NEAR_LIMIT),
        (decoder, {"sampling": replace(GREEDY, max_tokens=3)}, None),
        (headless, {}, NoDraft.NO_HEAD),
    ]
    for which, options, reason in cases:
        with running(which) as engine:
            owner = FakeOwner(engine)
            owner.open(1, draft_after=True, **options)
            event = owner.round(1)
            assert event.no_draft is reason
            assert (event.proposals is None) == (reason is not None)
            if reason is NoDraft.NO_HEAD:
                owner.verify(1, event.n, chain([3, 4]))
                assert owner.round(1).nodes_verified == 2


def test_plain_mode_never_runs_the_head(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoder.proposer is not None
    calls: list[str] = []
    for name in ("propose", "append", "new_cache"):
        monkeypatch.setattr(decoder.proposer, name, lambda *_, name=name: calls.append(name))
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1, list(range(3, 60)) * 10, replace(GREEDY, max_tokens=30), plain_only=True)
        owner.decode(1, owner.round(1).n, 29)
        while owner.round(1).finish is None:
            continue
    assert calls == []


def test_a_draft_long_after_the_last_is_as_good_as_ever(decoder: Decoder) -> None:
    # The prompt alone exceeds what may wait for the head, so it is handed over in a batch before the first draft.
    prompt = [3 + i * i % 50 for i in range(PREFILL_ROWS + 30)]
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1, prompt)
        owner.decode(1, owner.round(1).n, 1, draft_after=True)
        late = owner.round(1)
        owner.open(2, prompt, draft_after=True)
        owner.decode(2, owner.round(2).n, 1, draft_after=True)
        early = owner.round(2)
    assert late.proposals is not None
    assert early.proposals is not None
    for got, want in zip(late.proposals.logprobs, early.proposals.logprobs, strict=True):
        assert got == pytest.approx(want, abs=1e-4)


LONG = [3 + i % 50 for i in range(PREFILL_ROWS + 88)]


@pytest.mark.parametrize("end", ["close", "drop"])
@pytest.mark.parametrize(
    "phase", ["queued", "prefill", "first pass", "verify pass", "decode", "waiting verify", "between", "over", "never"]
)
def test_an_end_in_every_phase_frees_everything(
    decoder: Decoder, phase: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)

        def leave() -> None:
            owner.close(1) if end == "close" else engine.drop(owner)

        def leave_during_the_pass() -> None:
            real = decoder.step

            def pass_and_leave(works: Sequence[Work]) -> Any:
                leave()
                return real(works)

            monkeypatch.setattr(decoder, "step", pass_and_leave)

        if phase == "queued":
            with held(engine):
                owner.open(1)
                leave()
        elif phase == "prefill":
            leave_during_the_pass()
            owner.open(1, LONG)
            settle(engine)
            settle(engine)
        elif phase == "first pass":
            leave_during_the_pass()
            owner.open(1)
            owner.round(1)
        elif phase == "over":
            owner.open(1, sampling=replace(GREEDY, max_tokens=1))
            owner.round(1)
            leave()
        elif phase == "never":
            leave()
        else:
            owner.open(1, draft_after=True)
            n = owner.round(1).n
            if phase == "verify pass":
                leave_during_the_pass()
                owner.verify(1, n, None, draft_after=True)
                owner.round(1)
            elif phase == "decode":
                leave_during_the_pass()
                owner.decode(1, n, 300)
                owner.round(1)
            else:
                with held(engine):
                    if phase == "waiting verify":
                        owner.verify(1, n, None)
                    leave()
        assert gauges(engine) == IDLE
        assert owner.nothing_more()
        # The engine goes on, and the stream too unless it was dropped.
        owner.open(2)
        assert owner.round(2).n == 3
        owner.close(2)
        assert gauges(engine) == IDLE


def test_dropping_a_stream_leaves_the_others_alone(decoder: Decoder) -> None:
    with running(decoder) as engine:
        gone, stays = FakeOwner(engine), FakeOwner(engine)
        for session in (1, 2, 3):
            gone.open(session)
            stays.open(session)
        for session in (1, 2, 3):
            gone.round(session)
            n = stays.round(session).n
        engine.drop(gone)
        stays.decode(2, n, 5)
        assert [stays.round(2).n for _ in range(5)] == [n + i for i in range(1, 6)]
        settle(engine)
        assert engine.load.sessions == engine.admission.sessions == 3
        engine.drop(stays)
        assert gauges(engine) == IDLE


def test_a_deadline_ends_a_session_wherever_it_is(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        # At its first pass or behind it, between two chunks of its prompt, and while nothing is asked of it.
        owner.open(1, time_left_ms=1)
        owner.open(2, LONG, time_left_ms=1)
        owner.open(3, time_left_ms=300)
        for session in (1, 2, 3):
            event = owner.next(session)
            while isinstance(event, Round):
                event = owner.next(session)
            assert event.error.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert gauges(engine) == IDLE


def test_an_idle_session_is_evicted_and_can_be_resumed(decoder: Decoder) -> None:
    truth = plain(decoder, [5, 6, 7], replace(GREEDY, max_tokens=12))
    with running(decoder, idle_seconds=0.2) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        owner.decode(1, owner.round(1).n, 4)
        tokens = truth[:1] + [token for _ in range(4) for token in owner.round(1).token_ids]
        failed = owner.failure(1)
        assert failed.error.code is grpc.StatusCode.ABORTED
        assert failed.committed == 5
        assert gauges(engine) == IDLE
        owner.open(2, [5, 6, 7, *tokens], prompt_len=3)
        assert tokens + owner.round(2).token_ids == truth[:6]


def test_a_pass_that_raises_fails_the_sessions_in_it(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    step = decoder.step

    def sometimes(works: Sequence[Work]) -> Any:
        if any(work.session.opened.request_id == "1" and not work.rows for work in works):
            raise RuntimeError("no such kernel")
        return step(works)

    monkeypatch.setattr(decoder, "step", sometimes)
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        for session in (1, 2, 3):
            owner.open(session)
            assert owner.round(session).n == 3
        with held(engine):
            owner.decode(1, 3, 3)
            owner.decode(2, 3, 3)
        for session in (1, 2):
            failed = owner.failure(session)
            assert failed.error.code is grpc.StatusCode.INTERNAL
            assert "RuntimeError: no such kernel" in failed.error.message
            assert failed.committed == 1
        owner.decode(3, 3, 3)
        assert [owner.round(3).n for _ in range(3)] == [4, 5, 6]
        owner.close(3)
        assert gauges(engine) == IDLE


def test_logits_that_are_no_numbers_fail_one_session(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = decoder.target.logits
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        for session in (1, 2):
            owner.open(session)
            assert owner.round(session).n == 3

        def broken(hidden: torch.Tensor) -> torch.Tensor:
            values = logits(hidden).clone()
            values[0] = float("nan")
            return values

        with held(engine):
            owner.decode(1, 3, 1)
            owner.decode(2, 3, 1)
            monkeypatch.setattr(decoder.target, "logits", broken)
        failed = owner.failure(1)
        assert "NaN" in failed.error.message
        assert failed.committed == 1
        assert owner.round(2).n == 4
        owner.close(2)
        assert gauges(engine) == IDLE


def test_a_draft_that_raises_fails_the_sessions_that_drafted(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(sessions: Sequence[Session], offsets: int) -> None:
        raise RuntimeError("no such head")

    with running(decoder) as engine:
        owner = FakeOwner(engine)
        for session in (1, 2, 3):
            owner.open(session)
            assert owner.round(session).n == 3
        with held(engine):
            monkeypatch.setattr(decoder, "draft", broken)
            for session in (1, 2):
                owner.decode(session, 3, 1, draft_after=True)
            owner.decode(3, 3, 1)
        for session in (1, 2):
            failed = owner.failure(session)
            assert "the draft failed: RuntimeError: no such head" in failed.error.message
            # What the pass chose was not delivered, so it does not count.
            assert failed.committed == 1
        assert owner.round(3).n == 4
        owner.close(3)
        assert gauges(engine) == IDLE


@pytest.mark.parametrize("row_ms", [0.01, 5.0])
def test_an_adaptive_engine_answers_one_session_after_another(decoder: Decoder, row_ms: float) -> None:
    cost = CostTable.of((1, 60), (10.0, 10.0 + 59 * row_ms))
    prompts = [[5 + i, 6, 7] for i in range(6)]
    truths = [plain(decoder, prompt, replace(GREEDY, max_tokens=20)) for prompt in prompts]
    with running(decoder, policy=AdaptiveBudget(cost, 59, 1.0, DraftDepth(8, 0.0))) as engine:
        owner = FakeOwner(engine)
        for session, (prompt, truth) in enumerate(zip(prompts, truths, strict=True), start=1):
            owner.open(session, prompt, replace(GREEDY, max_tokens=20), draft_after=True)
            event = owner.round(session)
            answer = list(event.token_ids)
            while event.finish is None:
                if event.proposals is not None:
                    owner.verify(
                        session, event.n, random_tree(random.Random(1), truth[len(answer) :]), draft_after=True
                    )
                else:
                    assert event.no_draft is NoDraft.DOES_NOT_PAY or event.no_draft is NoDraft.NEAR_LIMIT
                    owner.decode(session, event.n, 1, draft_after=True)
                event = owner.round(session)
                answer += event.token_ids
            assert answer == truth
        assert gauges(engine) == IDLE


def test_a_fault_in_a_step_fails_its_sessions_and_the_engine_goes_on(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        for session in (1, 2):
            owner.open(session)
            assert owner.round(session).n == 3

        def broken(*_: Any) -> list[int]:
            monkeypatch.undo()
            raise ZeroDivisionError("a fault")

        monkeypatch.setattr(engine.budget, "admit", broken)
        owner.decode(1, 3, 1)
        failed = owner.failure(1)
        assert "the step failed: ZeroDivisionError: a fault" in failed.error.message
        assert failed.committed == 1
        owner.decode(2, 3, 1)
        assert owner.round(2).n == 4
        owner.close(2)
        assert gauges(engine) == IDLE


def test_a_pass_that_fails_half_way_has_committed_nothing(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = plain(decoder, [5, 6, 7], replace(GREEDY, max_tokens=12))
    logits = decoder.target.logits

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        rows = logits(hidden).clone()
        rows[2:] = float("nan")
        return rows

    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        n = owner.round(1).n
        monkeypatch.setattr(decoder.target, "logits", broken)
        # Two rows are fine and choose what the tree holds, the third is not: none of it was delivered.
        owner.verify(1, n, chain(truth[1:6]))
        failed = owner.failure(1)
        assert failed.error.code is grpc.StatusCode.INTERNAL
        assert "NaN" in failed.error.message
        assert failed.committed == 1
        assert gauges(engine) == IDLE


def test_memory_that_is_not_there_fails_the_open_only(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(capacity: int) -> None:
        raise RuntimeError(f"cannot allocate {capacity} positions")

    with running(decoder) as engine:
        owner = FakeOwner(engine)
        with monkeypatch.context() as patch:
            patch.setattr(decoder.target, "new_cache", no_memory)
            owner.open(1)
            failed = owner.failure(1)
        assert failed.error.code is grpc.StatusCode.INTERNAL
        assert "cannot allocate" in failed.error.message
        assert gauges(engine) == IDLE
        owner.open(2)
        assert owner.round(2).n == 3


def test_a_command_that_could_not_be_read_fails_its_session_once(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        engine.submit(owner, Malformed(1, InvalidArgument("open.sampling", "bad")))
        assert owner.failure(1).committed == 0
        owner.open(2)
        owner.decode(2, owner.round(2).n, 1)
        owner.round(2)
        engine.submit(owner, Malformed(2, InvalidArgument("verify.tree", "bad")))
        failed = owner.failure(2)
        assert (failed.error.field, failed.committed) == ("verify.tree", 2)
        owner.close(2)
        assert gauges(engine) == IDLE
        assert owner.nothing_more()


def test_a_full_verifier_says_so_and_when_to_come_back(decoder: Decoder) -> None:
    need = rounded_capacity(3 + 400 + MAX_NODES + 1)
    for limits in ({"sessions": 2}, {"kv_positions": 2 * need}, {"kv_positions": 3 * need - 1}):
        with running(decoder, **limits) as engine:
            owner = FakeOwner(engine)
            owner.open(1)
            owner.open(2)
            owner.round(1)
            owner.round(2)
            owner.open(3)
            failed = owner.failure(3)
            assert failed.error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert failed.error.retry_after_ms > 0
            assert engine.admission.sessions == 2
            owner.close(1)
            owner.open(4)
            assert owner.round(4).n == 3
            engine.drop(owner)
            assert gauges(engine) == IDLE


def test_an_answer_that_can_never_fit_is_the_callers_mistake(decoder: Decoder) -> None:
    with running(decoder, kv_positions=512) as engine:
        owner = FakeOwner(engine)
        owner.open(1, sampling=replace(GREEDY, max_tokens=448))
        failed = owner.failure(1)
        assert (failed.error.number, failed.error.field) == (INVALID, "sampling.max_tokens")
        assert failed.error.retry_after_ms == 0
        # Exactly what fits: 3 + 444 tokens, 64 nodes and the root are 512 positions.
        owner.open(2, sampling=replace(GREEDY, max_tokens=444))
        assert owner.round(2).n == 3
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1, sampling=replace(GREEDY, max_tokens=2**32 - 1))  # the context limits it
        owner.round(1)
        settle(engine)
        assert engine.admission.kv_used == rounded_capacity(CONTEXT + MAX_NODES + 1)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("open.token_ids", {"prompt": []}),
        ("open.token_ids", {"prompt": [5, VOCAB]}),
        ("open.prompt_len", {"prompt": [5, 6], "prompt_len": 0}),
        ("open.prompt_len", {"prompt": [5, 6], "prompt_len": 3}),
        ("sampling.temperature", {"sampling": replace(GREEDY, temperature=float("nan"))}),
        ("sampling.temperature", {"sampling": replace(GREEDY, temperature=-1.0)}),
        ("sampling.max_tokens", {"sampling": replace(GREEDY, max_tokens=0)}),
        ("sampling.max_tokens", {"prompt": [5, 6, 7], "prompt_len": 1, "sampling": replace(GREEDY, max_tokens=2)}),
        ("sampling.stop_token_ids", {"sampling": replace(GREEDY, stop_token_ids=(VOCAB,))}),
        ("sampling.min_tokens", {"sampling": Sampling(0.0, 9, allowed_token_ids=(EOS,), min_tokens=1)}),
    ],
)
def test_a_bad_open_names_its_field(decoder: Decoder, field: str, options: dict[str, Any]) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1, **options)
        failed = owner.failure(1)
        assert (failed.error.number, failed.error.field, failed.committed) == (INVALID, field, 0)
        owner.open(2)
        assert owner.round(2).n == 3
        owner.close(2)
        assert gauges(engine) == IDLE


def test_a_bad_tree_names_its_field(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        owner.verify(1, owner.round(1).n, chain([3, VOCAB]))
        assert owner.failure(1).error.field == "tree.token_ids"
        assert gauges(engine) == IDLE


def test_the_load_report_counts(decoder: Decoder) -> None:
    truth = plain(decoder, [5, 6, 7], replace(GREEDY, max_tokens=12))
    need = rounded_capacity(3 + 400 + MAX_NODES + 1)
    with running(decoder, kv_positions=10 * need, budget=MAX_NODES) as engine:
        owner = FakeOwner(engine)
        assert engine.load.kv_capacity == 10 * need
        owner.open(1)
        n = owner.round(1).n
        assert (owner.load.sessions, owner.load.kv_used, owner.load.committed_tokens) == (1, need, 1)
        owner.open(2)
        owner.round(2)
        assert (owner.load.sessions, owner.load.kv_used, owner.load.committed_tokens) == (2, 2 * need, 2)
        owner.verify(1, n, chain([*truth[1:4], truth[4] % 50 + 3 if truth[4] % 50 + 3 != truth[4] else 4]))
        event = owner.round(1)
        assert (event.accepted, event.token_ids) == (3, truth[1:5])
        assert (owner.load.committed_tokens, owner.load.rounds, owner.load.accepted_tokens) == (6, 1, 3)
        owner.verify(1, event.n, Tree.empty())
        owner.round(1)
        # An empty tree is plain decoding and no round.
        assert (owner.load.committed_tokens, owner.load.rounds, owner.load.accepted_tokens) == (7, 1, 3)
        with held(engine):
            owner.decode(1, event.n + 1, 1)
            owner.decode(2, n, 1)
            owner.open(3)
        for session in (1, 2, 3):
            owner.round(session)
        assert owner.load.queued == 0
        owner.close(3)
        owner.close(1)
        settle(engine)
        assert (engine.load.sessions, engine.load.kv_used) == (1, need)
        owner.close(2)
        assert gauges(engine) == IDLE


def test_hundreds_of_sessions_ended_at_random_leave_nothing(decoder: Decoder) -> None:
    rng = random.Random(7)
    gc.collect()
    taken = decoder.target.pool.taken
    with running(decoder, sessions=12) as engine:
        owners = [FakeOwner(engine) for _ in range(3)]
        last = [0, 0, 0]
        for _ in range(300):
            i = rng.randrange(3)
            owner = owners[i]
            last[i] += 1
            session = last[i]
            sampling = replace(HOT, temperature=rng.choice([0.0, 1.0]), max_tokens=rng.randint(1, 6))
            prompt = [rng.randrange(VOCAB + 1) for _ in range(rng.randint(0, 4))]  # some are refused
            owner.open(session, prompt, sampling, seed=session, draft_after=rng.random() < 0.5)
            action = rng.choice(["nothing", "close", "decode", "wrong", "chain", "tree", "drop"])
            n = len(prompt)
            if action == "close":
                owner.close(session)
            elif action == "wrong":
                owner.decode(session, n + 7, 1)
            elif action in ("decode", "chain", "tree"):
                event = owner.next(session)
                if isinstance(event, Round) and event.finish is None:
                    if action == "decode":
                        owner.decode(session, event.n, rng.randint(1, 8))
                    else:
                        owner.verify(session, event.n, None if action == "chain" else random_tree(rng, []))
                    if rng.random() < 0.5:
                        owner.close(session)
            elif rng.random() < 0.2:
                engine.drop(owner)
                owners[i], last[i] = FakeOwner(engine), 0
        for owner in owners:
            engine.drop(owner)
        assert gauges(engine) == IDLE
        held_by_engine = engine.call(lambda: kept(engine))
        assert held_by_engine.result(PATIENCE_SECONDS) == NOTHING_KEPT
        assert decoder.target.pool.taken == taken


def test_a_call_runs_on_the_engine_thread_and_brings_back_its_result_or_error(decoder: Decoder) -> None:
    def fail() -> None:
        raise NotFound("nothing here")

    with running(decoder) as engine:
        assert engine.call(lambda: 6 * 7).result(PATIENCE_SECONDS) == 42
        with pytest.raises(NotFound, match="nothing here"):
            engine.call(fail).result(PATIENCE_SECONDS)
        with held(engine):
            cancelled = engine.call(fail)
            assert cancelled.cancel()
        assert engine.call(_thread_name).result(PATIENCE_SECONDS) == "engine"


def _thread_name() -> str:
    return threading.current_thread().name


def test_a_call_goes_between_the_steps_of_running_sessions(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        owner.decode(1, owner.round(1).n, 200)
        assert engine.call(lambda: engine.admission.sessions).result(PATIENCE_SECONDS) == 1
        owner.close(1)
        assert gauges(engine) == IDLE


def test_stop_ends_the_thread_with_work_left(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        owner.decode(1, owner.round(1).n, 300)
    assert not engine._thread.is_alive()
