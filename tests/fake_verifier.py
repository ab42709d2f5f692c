"""A verifier without a model: the real protocol over real gRPC, a function as the target.

It checks what it is told as strictly as the protocol says and walks trees honestly, so an answer that comes out right
went through every command right. Faults are switched on by attributes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import numpy as np
from tokenizers import Tokenizer

from dartspec.services.common.convert import (
    proposals_to_proto,
    sampling_from_proto,
    top_logprobs_to_proto,
    tree_from_proto,
)
from dartspec.services.common.errors import DartspecError, InvalidArgument
from dartspec.services.common.fingerprint import tokenizer_fingerprint
from dartspec.services.common.types import Proposals, Tree
from dartspec.v1 import (
    common_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
)
from tests.toy import CHAT_TEMPLATE, FakeSession, Target, byte_tokenizer, hash_target, logprob, mix, top_tokens, walk


class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Counts what it does; see the attributes for its faults."""

    def __init__(
        self,
        target: Target | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        model: str = "toy",
        eos: Sequence[int] = (),
        draft_length: int = 4,
        context_length: int = 4096,
        default_sampling: common_pb2.Sampling | None = None,
        chat_template: str = CHAT_TEMPLATE,
        weights: str = "weights",
        vocab_size: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer or byte_tokenizer()
        vocab = self.tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = vocab_size or len(vocab)
        self.target = target or hash_target(self.vocab_size)
        self.model = model
        self.eos = tuple(eos)
        self.draft_length = draft_length
        self.context_length = context_length
        self.default_sampling = default_sampling or common_pb2.Sampling()
        self.chat_template = chat_template
        self.hello = verifier_pb2.Hello(
            protocol=1,
            model_fingerprint=weights,
            tokenizer_fingerprint=tokenizer_fingerprint(vocab),
            head_fingerprint="head" if draft_length else "",
            sampler="toy-1",
        )
        # Faults.
        self.die_after_events: int | None = None  # the stream is aborted instead of the event after so many
        self.hang_after_events: int | None = None  # no further events, the port stays open
        self.reject: DartspecError | None = None  # every open fails with this
        self.draining = False  # what its load reports say
        self.search_nodes = 0  # said with proposals
        self.fail_at: dict[int, DartspecError] = {}  # by index of the answer's next token, once each
        self.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_UNSPECIFIED
        self.pays: Callable[[int], bool] | None = None  # whether drafting pays after so many generated tokens
        self.step_seconds = 0.0
        # What happened.
        self.sessions: dict[int, FakeSession] = {}
        self.highest: dict[int, int] = {}  # by stream
        self.opens: list[verifier_pb2.OpenCommand] = []
        self.commands: Counter[str] = Counter()
        self.batches: list[int] = []  # commands in each message
        self.responses: list[int] = []  # events in each message
        self.trees: list[common_pb2.Tree] = []
        self.events = 0
        self.drafts = 0
        self.tokens_made = 0
        self.streams = 0

    async def Describe(self, request: Any, context: Any) -> verifier_pb2.VerifierServiceDescribeResponse:  # noqa: N802
        return verifier_pb2.VerifierServiceDescribeResponse(
            hello=self.hello,
            model=self.model,
            architecture="toy",
            dtype="float32",
            device="cpu",
            context_length=self.context_length,
            vocab_size=self.vocab_size,
            eos_token_ids=self.eos,
            default_sampling=self.default_sampling,
            draft_length=self.draft_length,
            max_sessions=1024,
            max_nodes=64,
            load=self._load(),
        )

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        text = self.tokenizer.to_str().encode()
        half = len(text) // 2
        yield verifier_pb2.GetTokenizerResponse(
            tokenizer_json=text[:half],
            chat_template=self.chat_template,
            special_tokens={"eos_token": "<eos>"},
            fingerprint=self.hello.tokenizer_fingerprint,
        )
        yield verifier_pb2.GetTokenizerResponse(tokenizer_json=text[half:])

    async def Rounds(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        first = await anext(aiter(requests))
        assert first.hello == self.hello
        self.streams += 1
        yield verifier_pb2.RoundsResponse(hello=self.hello, load=self._load())
        sessions: dict[int, FakeSession] = {}
        wake = asyncio.Event()
        reader = asyncio.create_task(self._read(requests, sessions, wake))
        sent = 0
        try:
            while True:
                await wake.wait()
                if reader.done():
                    reader.result()
                    return
                if self.step_seconds:
                    await asyncio.sleep(self.step_seconds)
                events = []
                for session in [s for s in sessions.values() if s.work]:
                    event = self._step(session)
                    events.append(event)
                    if event.HasField("failed") or event.round.finish_reason:
                        self._drop(sessions, session.id)
                if not any(session.work for session in sessions.values()):
                    wake.clear()
                if self.hang_after_events is not None and sent + len(events) > self.hang_after_events:
                    await asyncio.Event().wait()
                if self.die_after_events is not None and sent + len(events) > self.die_after_events:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "told to die")
                if events:
                    sent += len(events)
                    self.events += len(events)
                    self.responses.append(len(events))
                    yield verifier_pb2.RoundsResponse(events=events, load=self._load())
                await asyncio.sleep(0)
        finally:
            reader.cancel()
            self.highest.pop(id(sessions), None)
            for session_id in list(sessions):
                self._drop(sessions, session_id)

    async def _read(self, requests: AsyncIterator[Any], sessions: dict[int, FakeSession], wake: asyncio.Event) -> None:
        try:
            async for request in requests:
                self.batches.append(len(request.commands))
                for command in request.commands:
                    self._take(command, sessions)
                wake.set()
        finally:
            wake.set()

    def _take(self, command: verifier_pb2.Command, sessions: dict[int, FakeSession]) -> None:
        kind = command.WhichOneof("kind")
        self.commands[kind] += 1
        if kind == "open":
            assert command.session > self.highest.get(id(sessions), 0), "session ids must rise"
            self.highest[id(sessions)] = command.session
            opened = command.open
            self.opens.append(opened)
            session = FakeSession(
                id=command.session,
                tokens=list(opened.token_ids),
                prompt_len=opened.prompt_len,
                sampling=sampling_from_proto(opened.sampling),
                seed=opened.seed,
                plain_only=opened.plain_only,
                always_draft=opened.always_draft,
                draft_after=opened.draft_after,
                work=[command],
            )
            sessions[command.session] = self.sessions[id(session)] = session
        elif command.session in sessions:
            session = sessions[command.session]
            if kind == "close":
                self._drop(sessions, command.session)
            elif kind == "decode" and command.decode.n == session.lapsed:
                session.lapsed += command.decode.steps
            else:
                session.lapsed = None
                session.work.append(command)

    def _drop(self, sessions: dict[int, FakeSession], session_id: int) -> None:
        session = sessions.pop(session_id)
        self.sessions.pop(id(session))

    def _step(self, session: FakeSession) -> verifier_pb2.Event:
        try:
            return verifier_pb2.Event(session=session.id, round=self._pass(session))
        except DartspecError as error:
            failed = verifier_pb2.FailedEvent(
                code=error.number,
                field=error.field,
                message=error.message,
                retry_after_ms=error.retry_after_ms,
                committed=session.generated,
            )
            return verifier_pb2.Event(session=session.id, failed=failed)

    def _pass(self, session: FakeSession) -> verifier_pb2.RoundEvent:
        command = session.work[0]
        kind = command.WhichOneof("kind")
        if kind == "open" and self.reject is not None:
            raise self.reject
        if session.generated in self.fail_at:
            raise self.fail_at.pop(session.generated)
        offered: Tree = Tree.empty()
        draft_after = False
        if kind == "open":
            session.work.pop(0)
            draft_after = session.draft_after
        elif kind == "verify":
            session.work.pop(0)
            offered = self._candidates(session, command.verify)
            draft_after = command.verify.draft_after
        else:
            draft_after = self._spend_credit(session, command.decode)
        accepted = walk(self.target, session, offered)
        committed = [*accepted, self._next(session, accepted)]
        finish = self._cut(session, committed)
        session.tokens += committed
        session.proposals = None
        self.tokens_made += len(committed)
        width = session.sampling.top_logprobs
        positions = range(session.n - len(committed) + 1, session.n + 1)
        event = verifier_pb2.RoundEvent(
            n=session.n,
            token_ids=committed,
            logprobs=[logprob(session.tokens, position) for position in positions],
            top_logprobs=top_logprobs_to_proto(
                [top_tokens(session.tokens, position, width) for position in positions] if width else []
            ),
            margins=[0.5] * len(committed),
            accepted=len(accepted),
            nodes_offered=len(offered),
            nodes_verified=len(offered),
            timings=common_pb2.Timings(draft_ms=0.25, verify_ms=0.5, wait_ms=0.125),
            finish_reason=finish,
        )
        if draft_after:
            self._draft(session, event)
        return event

    def _next(self, session: FakeSession, accepted: Sequence[int]) -> int:
        return self.target([*session.tokens, *accepted], session.prompt_len, session.seed)

    def _candidates(self, session: FakeSession, command: verifier_pb2.VerifyCommand) -> Tree:
        if command.n != session.n:
            raise InvalidArgument("verify.n", f"session is at {session.n}, got {command.n}")
        if command.WhichOneof("candidates") == "tree":
            self.trees.append(command.tree)
            return tree_from_proto(command.tree)
        assert session.proposals is not None, "a chain was asked for without proposals"
        best = np.array([ids[0] for ids in session.proposals.token_ids], np.int32)
        return Tree.chain(best, np.ones(len(best)))

    def _spend_credit(self, session: FakeSession, command: verifier_pb2.DecodeCommand) -> bool:
        """Take one step of the command; its n is the one before its own first step, here counted down with it."""
        if command.n != session.n:
            raise InvalidArgument("decode.n", f"session is at {session.n}, got {command.n}")
        command.steps -= 1
        command.n += 1
        if command.steps:
            return command.may_offer
        session.work.pop(0)
        return command.draft_after if not session.work else command.may_offer

    def _cut(self, session: FakeSession, committed: list[int]) -> int:
        ends = set(session.sampling.stop_token_ids) | (set() if session.sampling.ignore_eos else set(self.eos))
        longest = min(session.sampling.max_tokens, self.context_length - session.prompt_len)
        for index, token in enumerate(committed):
            if token in ends:
                del committed[index + 1 :]
                return common_pb2.FINISH_REASON_STOP
            if session.generated + index + 1 >= longest:
                del committed[index + 1 :]
                return common_pb2.FINISH_REASON_LENGTH
        return common_pb2.FINISH_REASON_UNSPECIFIED

    def _draft(self, session: FakeSession, event: verifier_pb2.RoundEvent) -> None:
        if event.finish_reason:
            event.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_FINISHED
        elif not self.draft_length:
            event.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_NO_HEAD
        elif session.plain_only:
            event.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_PLAIN_ONLY
        elif session.generated + 1 >= session.sampling.max_tokens:
            event.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_NEAR_LIMIT
        elif self.no_draft_reason and not session.always_draft:
            event.no_draft_reason = self.no_draft_reason
        elif self.pays is not None and not self.pays(session.generated):
            event.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_DOES_NOT_PAY
        else:
            self.drafts += 1
            if session.work:
                last = session.work[-1].decode
                session.lapsed = last.n + last.steps
                session.work.clear()
            session.proposals = self._propose(session)
            event.proposals.CopyFrom(proposals_to_proto(session.proposals))
            event.search_nodes = self.search_nodes

    def _propose(self, session: FakeSession) -> Proposals:
        """Three candidates an offset; two times in three the right one is the first."""
        ids, logprobs, tokens = [], [], list(session.tokens)
        for offset in range(self.draft_length):
            right = self.target(tokens, session.prompt_len, session.seed)
            wrong = [(right + 1) % self.vocab_size, (right + 2) % self.vocab_size]
            place = 0 if mix("draft", len(tokens), offset) % 3 else 1
            row = [*wrong[:place], right, *wrong[place:]]
            ids.append(np.array(row, np.int32))
            logprobs.append(np.log(np.array([0.6, 0.3, 0.1], np.float32)))
            tokens.append(right)
        return Proposals(tuple(ids), tuple(logprobs))

    def _load(self) -> common_pb2.LoadReport:
        return common_pb2.LoadReport(
            sessions=len(self.sessions),
            kv_capacity=1 << 20,
            committed_tokens=self.tokens_made,
            draining=self.draining,
        )
