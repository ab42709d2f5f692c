"""The verifier's services over real gRPC, with a tiny target behind them."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.services.common.convert import proposals_from_proto, sampling_to_proto, tree_to_proto
from dartspec.services.common.errors import FailedPrecondition, InvalidArgument, Unavailable
from dartspec.services.common.server import Server
from dartspec.services.common.types import Sampling, Tree
from dartspec.services.draft.server import DraftServicer
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.budget import FixedBudget
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.inspect import propose_after
from dartspec.services.verifier.replica import Replica, head_fingerprint
from dartspec.services.verifier.sampling import SAMPLER
from dartspec.services.verifier.server import VerifierServicer
from dartspec.services.verifier.tokenizer import TokenizerFiles
from dartspec.v1 import common_pb2, draft_pb2, draft_pb2_grpc, verifier_pb2, verifier_pb2_grpc

from .driver import IDLE, gauges
from .tiny import CONTEXT, EOS, MAX_NODES, VOCAB, plain, random_tree, tiny_decoder

NAMES = ("dartspec.v1.VerifierService", "dartspec.v1.DraftService")
# Three parts, the last of them not full.
TOKENIZER = TokenizerFiles(
    bytes(random.Random(0).randbytes(2_500_000)), "{{ messages }}", {"eos_token": "</s>"}, "tokenizer-fingerprint"
)
GREEDY = Sampling(0.0, 30, ignore_eos=True)
TOP_K = 8


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder(top_k=TOP_K)


def replica_of(decoder: Decoder, sessions: int = 64) -> Replica:
    head = decoder.proposer.head if decoder.proposer is not None else None
    hello = verifier_pb2.Hello(
        protocol=1,
        model_fingerprint="model-fingerprint",
        tokenizer_fingerprint=TOKENIZER.fingerprint,
        head_fingerprint=head_fingerprint(head) if head is not None else "",
        sampler=SAMPLER,
    )
    description = verifier_pb2.VerifierServiceDescribeResponse(
        hello=hello,
        model="tiny",
        architecture=decoder.target.config.family,
        dtype="float32",
        device="cpu",
        context_length=CONTEXT,
        vocab_size=VOCAB,
        eos_token_ids=[EOS],
        draft_length=8,
        max_sessions=sessions,
        max_nodes=MAX_NODES,
    )
    admission = Admission(sessions, 1 << 20, CONTEXT, MAX_NODES)
    return Replica(decoder, admission, FixedBudget(MAX_NODES), TOKENIZER, head, hello, description)


@dataclass
class Served:
    """A verifier that serves, and stubs to talk to it."""

    replica: Replica
    engine: Engine
    servicer: VerifierServicer
    channel: grpc.aio.Channel

    @property
    def hello(self) -> verifier_pb2.Hello:
        return self.replica.hello

    @property
    def verifier(self) -> Any:
        return verifier_pb2_grpc.VerifierServiceStub(self.channel)

    @property
    def draft(self) -> Any:
        return draft_pb2_grpc.DraftServiceStub(self.channel)

    async def idle(self) -> bool:
        """Nothing is left; the end of a stream reaches the engine a moment after the client sees it."""
        for _ in range(2000):
            if await asyncio.to_thread(gauges, self.engine) == IDLE:
                return True
            await asyncio.sleep(0.01)
        return False


@asynccontextmanager
async def serving(decoder: Decoder, **options: Any) -> AsyncIterator[Served]:
    replica = replica_of(decoder, **options)
    engine = Engine(replica.decoder, replica.admission, replica.budget, idle_seconds=1e3)
    engine.start()
    server = Server(NAMES)
    servicer = VerifierServicer(replica, engine)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server.grpc_server)
    draft = DraftServicer(
        replica.head, replica.hello, TOP_K, decoder.target.feature_layers, propose_after(engine, TOP_K)
    )
    draft_pb2_grpc.add_DraftServiceServicer_to_server(draft, server.grpc_server)
    (address,) = await server.start(["127.0.0.1:0"])
    await server.ready()
    channel = open_channel(address)
    try:
        yield Served(replica, engine, servicer, channel)
    finally:
        await channel.close()
        await server.stop(0)
        await asyncio.to_thread(engine.stop)


class Stream:
    """A gateway's end of one Rounds stream."""

    def __init__(self, served: Served) -> None:
        self.call = served.verifier.Rounds()
        self.hello = served.hello
        self.events: dict[int, list[verifier_pb2.Event]] = defaultdict(list)
        self.load = common_pb2.LoadReport()

    async def begin(self, **fields: Any) -> verifier_pb2.RoundsResponse:
        hello = verifier_pb2.Hello()
        hello.CopyFrom(self.hello)
        for name, value in fields.items():
            setattr(hello, name, value)
        await self.call.write(verifier_pb2.RoundsRequest(hello=hello))
        return await self.read()

    async def send(self, *commands: verifier_pb2.Command) -> None:
        await self.call.write(verifier_pb2.RoundsRequest(commands=commands))

    async def read(self) -> Any:
        message = await asyncio.wait_for(self.call.read(), 60)
        assert message is not grpc.aio.EOF
        return message

    async def event(self, session: int) -> verifier_pb2.Event:
        while not self.events[session]:
            message = await self.read()
            assert message.events
            self.load = message.load
            for event in message.events:
                self.events[event.session].append(event)
        return self.events[session].pop(0)

    async def round(self, session: int) -> verifier_pb2.RoundEvent:
        event = await self.event(session)
        assert event.HasField("round"), event
        return event.round

    async def failed(self, session: int) -> verifier_pb2.FailedEvent:
        event = await self.event(session)
        assert event.HasField("failed"), event
        return event.failed


def open_command(
    session: int,
    prompt: Sequence[int] = (5, 6, 7),
    sampling: Sampling = GREEDY,
    seed: int = 0,
    draft_after: bool = False,
) -> verifier_pb2.Command:
    return verifier_pb2.Command(
        session=session,
        open=verifier_pb2.OpenCommand(
            token_ids=prompt,
            prompt_len=len(prompt),
            sampling=sampling_to_proto(sampling),
            seed=seed,
            request_id=f"request-{session}",
            draft_after=draft_after,
        ),
    )


def verify_command(
    session: int, n: int, tree: Tree | common_pb2.Tree, draft_after: bool = False
) -> verifier_pb2.Command:
    message = tree if isinstance(tree, common_pb2.Tree) else tree_to_proto(tree)
    return verifier_pb2.Command(
        session=session, verify=verifier_pb2.VerifyCommand(n=n, tree=message, draft_after=draft_after)
    )


def chain_command(session: int, n: int, draft_after: bool = True) -> verifier_pb2.Command:
    candidates = verifier_pb2.ChainCandidates()
    return verifier_pb2.Command(
        session=session, verify=verifier_pb2.VerifyCommand(n=n, chain=candidates, draft_after=draft_after)
    )


def decode_command(session: int, n: int, steps: int, draft_after: bool = False) -> verifier_pb2.Command:
    return verifier_pb2.Command(
        session=session, decode=verifier_pb2.DecodeCommand(n=n, steps=steps, draft_after=draft_after)
    )


def close_command(session: int) -> verifier_pb2.Command:
    return verifier_pb2.Command(session=session, close=verifier_pb2.CloseCommand())


async def test_the_verifier_says_hello_first(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        stream = Stream(served)
        first = await stream.begin()
        assert first.hello == served.hello
        assert not first.events
        assert first.load.kv_capacity == 1 << 20
        # Fields that the gateway leaves empty are not compared.
        other = Stream(served)
        other.hello = verifier_pb2.Hello(protocol=1)
        assert (await other.begin()).hello == served.hello


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol", 2),
        ("model_fingerprint", "another"),
        ("tokenizer_fingerprint", "another"),
        ("head_fingerprint", "another"),
        ("sampler", "another/2"),
    ],
)
async def test_a_hello_that_does_not_fit_ends_the_stream(decoder: Decoder, field: str, value: Any) -> None:
    async with serving(decoder) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stream(served).begin(**{field: value})
        error = error_from_rpc(caught.value, "verifier")
        assert isinstance(error, FailedPrecondition)
        assert error.field == f"hello.{field}"
        assert repr(value) in error.message or str(value) in error.message
        assert (await Stream(served).begin()).HasField("hello")


async def test_a_stream_without_hello_is_refused(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        stream = Stream(served)
        await stream.send(open_command(1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        error = error_from_rpc(caught.value, "verifier")
        assert isinstance(error, InvalidArgument)
        assert error.field == "hello"
        empty = Stream(served)
        await empty.call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await empty.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert await served.idle()


def wrong(**changes: Any) -> common_pb2.Tree:
    tree = tree_to_proto(Tree.chain(*(_arrays([3, 4]))))
    for name, value in changes.items():
        setattr(tree, name, value)
    return tree


def _arrays(tokens: Sequence[int]) -> tuple[Any, Any]:
    return np.array(tokens, np.int32), np.full(len(tokens), 0.5, np.float32)


def without_kind(session: int, n: int) -> verifier_pb2.Command:
    return verifier_pb2.Command(session=session)


def without_candidates(session: int, n: int) -> verifier_pb2.Command:
    return verifier_pb2.Command(session=session, verify=verifier_pb2.VerifyCommand(n=n))


BAD: dict[str, tuple[str, Callable[[int, int], verifier_pb2.Command]]] = {
    "revision": ("tree.revision", lambda s, n: verify_command(s, n, wrong(revision=2))),
    "short parents": ("tree.parents", lambda s, n: verify_command(s, n, wrong(parents=b"\0\0\0\0"))),
    "half a number": ("tree.token_ids", lambda s, n: verify_command(s, n, wrong(token_ids=b"\3\0\0\0\4\0\0"))),
    "long survival": ("tree.survival", lambda s, n: verify_command(s, n, wrong(survival=bytes(12)))),
    "no bins": ("tree.feature_bins", lambda s, n: verify_command(s, n, wrong(feature_bins=b""))),
    "huge": ("tree.token_ids", lambda s, n: verify_command(s, n, wrong(token_ids=bytes(4 * 1025)))),
    "unknown token": (
        "tree.token_ids",
        lambda s, n: verify_command(s, n, Tree.chain(*_arrays([3, VOCAB]))),
    ),
    "parent after child": (
        "tree.parents",
        lambda s, n: verify_command(s, n, wrong(parents=(2).to_bytes(4, "little") + bytes(4))),
    ),
    "no candidates": ("verify.candidates", without_candidates),
    "no kind": ("command.kind", without_kind),
    "chain without proposals": ("verify.chain", chain_command),
    "wrong n": ("n", lambda s, n: decode_command(s, n + 1, 1)),
    "no steps": ("decode.steps", lambda s, n: decode_command(s, n, 0)),
}


async def test_a_malformed_command_fails_its_session_and_the_stream_lives_on(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        stream = Stream(served)
        await stream.begin()
        await stream.send(open_command(1))
        good = await stream.round(1)
        for session, (name, (field, command)) in enumerate(BAD.items(), start=2):
            await stream.send(open_command(session))
            event = await stream.round(session)
            await stream.send(command(session, event.n))
            failed = await stream.failed(session)
            assert (failed.code, failed.field) == (3, field), name
            assert failed.message.startswith(field.split(".")[0]), name
            assert failed.committed == 1, name
            await stream.send(decode_command(session, event.n, 1))  # for a session that is gone
            await stream.send(decode_command(1, good.n, 1))
            good = await stream.round(1)
        assert not any(stream.events.values())
        await stream.send(close_command(1))
        assert await served.idle()


async def test_bad_numbers_of_top_logprobs_are_refused(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        stream = Stream(served)
        await stream.begin()
        for session, asked in enumerate((21, 2**32 - 1), start=1):
            await stream.send(open_command(session, sampling=replace(GREEDY, top_logprobs=asked)))
            failed = await stream.failed(session)
            assert (failed.code, failed.field, failed.committed) == (3, "sampling.top_logprobs", 0)
            assert f"must be between 0 (off) and 20, got {asked}" in failed.message
        assert await served.idle()


@pytest.mark.parametrize("asked", [0, 1, 20])
async def test_top_logprobs_come_with_their_tokens(decoder: Decoder, asked: int) -> None:
    sampling = replace(GREEDY, top_logprobs=asked)
    truth = plain(decoder, [5, 6, 7], sampling)
    async with serving(decoder) as served:
        stream = Stream(served)
        await stream.begin()
        await stream.send(open_command(1, sampling=sampling))
        event, tokens = await stream.round(1), []
        while True:
            tokens += event.token_ids
            if not asked:
                assert not event.HasField("top_logprobs")
            else:
                top = event.top_logprobs
                assert top.width == asked
                assert len(top.token_ids) == len(top.logprobs) == asked * len(event.token_ids)
                # Without noise and penalties the likeliest token is the chosen one, and is told the same twice.
                assert list(top.token_ids[::asked]) == list(event.token_ids)
                assert list(top.logprobs[::asked]) == list(event.logprobs)
            if event.finish_reason:
                break
            following = truth[len(tokens) : len(tokens) + 4]
            await stream.send(verify_command(1, event.n, Tree.chain(*_arrays(following))))
            event = await stream.round(1)
        assert tokens == truth


@pytest.mark.parametrize("absent", ["temperature", "max_tokens"])
async def test_an_incomplete_open_fails_once(decoder: Decoder, absent: str) -> None:
    async with serving(decoder) as served:
        stream = Stream(served)
        await stream.begin()
        command = open_command(1)
        command.open.sampling.ClearField(absent)
        await stream.send(command)
        failed = await stream.failed(1)
        assert (failed.code, failed.field, failed.committed) == (3, f"sampling.{absent}", 0)
        await stream.send(open_command(2))
        await stream.round(2)
        assert not stream.events[1]
        await stream.send(close_command(2))
        assert await served.idle()


async def test_many_sessions_share_a_stream(decoder: Decoder) -> None:
    rng = random.Random(3)
    cases = []
    for number in range(8):
        sampling = replace(GREEDY, temperature=rng.choice([0.0, 1.0]), max_tokens=rng.randint(1, 20))
        cases.append(([rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 9))], sampling, number))
    truths = [plain(decoder, *case) for case in cases]
    async with serving(decoder) as served:
        stream = Stream(served)
        await stream.begin()
        await stream.send(*(open_command(i + 1, *case, draft_after=True) for i, case in enumerate(cases)))
        events = [await stream.round(i + 1) for i in range(len(cases))]
        answers = [list(event.token_ids) for event in events]
        while open_now := [i for i, event in enumerate(events) if not event.finish_reason]:
            commands = []
            for i in open_now:
                n = events[i].n
                if rng.random() < 0.4 and events[i].HasField("proposals"):
                    commands.append(chain_command(i + 1, n))
                elif rng.random() < 0.4:
                    commands.append(decode_command(i + 1, n, 1, draft_after=True))
                else:
                    commands.append(verify_command(i + 1, n, random_tree(rng, truths[i][len(answers[i]) :]), True))
            await stream.send(*commands)
            for i in open_now:
                events[i] = await stream.round(i + 1)
                assert len(events[i].logprobs) == len(events[i].token_ids) == len(events[i].margins)
                answers[i] += events[i].token_ids
        assert answers == truths
        assert (stream.load.sessions, stream.load.kv_used) == (0, 0)
        assert stream.load.committed_tokens == sum(len(truth) for truth in truths)


@pytest.mark.parametrize("end", ["cancel", "half-close"])
async def test_the_end_of_a_stream_frees_its_sessions_only(decoder: Decoder, end: str) -> None:
    async with serving(decoder) as served:
        gone, stays = Stream(served), Stream(served)
        await gone.begin()
        await stays.begin()
        await gone.send(open_command(1), open_command(2), open_command(3, [5] * 900))
        await stays.send(open_command(1))
        n = (await gone.round(1)).n
        await stays.round(1)
        await gone.send(decode_command(1, n, 20))
        if end == "cancel":
            gone.call.cancel()
        else:
            await gone.call.done_writing()
            while await asyncio.wait_for(gone.call.read(), 60) is not grpc.aio.EOF:
                continue
            assert await gone.call.code() is grpc.StatusCode.OK
        for _ in range(2000):
            if (await asyncio.to_thread(gauges, served.engine))[0] == 1:
                break
            await asyncio.sleep(0.01)
        assert served.engine.load.sessions == 1
        await stays.send(decode_command(1, n, 1))
        assert (await stays.round(1)).n == n + 1
        stays.call.cancel()
        assert await served.idle()


async def test_a_full_verifier_fails_the_session_with_a_retry_hint(decoder: Decoder) -> None:
    async with serving(decoder, sessions=1) as served:
        stream = Stream(served)
        await stream.begin()
        await stream.send(open_command(1), open_command(2))
        failed = await stream.failed(2)
        assert failed.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert failed.retry_after_ms > 0


async def test_a_stopping_verifier_ends_its_streams_as_unavailable(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        stream = Stream(served)
        await stream.begin()
        await stream.send(open_command(1))
        await stream.round(1)
        served.servicer.stop()
        for call in (stream.read, Stream(served).begin):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call()
            assert isinstance(error_from_rpc(caught.value, "verifier"), Unavailable)
        assert await served.idle()


async def test_a_draining_verifier_ends_what_is_open_and_takes_nothing_new(decoder: Decoder) -> None:
    truth = plain(decoder, [5, 6, 7], GREEDY)
    async with serving(decoder) as served:
        busy, quiet = Stream(served), Stream(served)
        await busy.begin()
        await quiet.begin()
        await busy.send(open_command(1))
        event = await busy.round(1)
        tokens = list(event.token_ids)
        await served.servicer.drain()
        # Both streams are told at once, also the one that has nothing open.
        assert (await quiet.read()).load.draining
        assert (await busy.read()).load.draining
        for stream, session in ((busy, 2), (quiet, 1)):
            await stream.send(open_command(session))
            failed = await stream.failed(session)
            assert failed.code == grpc.StatusCode.UNAVAILABLE.value[0]
            assert failed.retry_after_ms > 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stream(served).begin()
        error = error_from_rpc(caught.value, "verifier")
        assert isinstance(error, Unavailable)
        assert error.retry_after_ms > 0
        described = await served.verifier.Describe(verifier_pb2.VerifierServiceDescribeRequest())
        assert (described.load.draining, described.load.sessions) == (True, 1)
        assert not served.engine.drained.done()
        await busy.send(decode_command(1, event.n, 29))
        while not event.finish_reason:
            event = await busy.round(1)
            tokens += event.token_ids
        assert tokens == truth
        await asyncio.wait_for(asyncio.wrap_future(served.engine.drained), 60)
        assert await served.idle()


async def test_a_verifier_with_nothing_open_is_drained_at_once(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        await served.servicer.drain()
        await asyncio.wait_for(asyncio.wrap_future(served.engine.drained), 60)


async def test_a_load_report_says_all_that_the_engine_knows(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        stream = Stream(served)
        await stream.begin()
        await stream.send(open_command(1, draft_after=True))
        await stream.send(chain_command(1, (await stream.round(1)).n))
        await stream.round(1)
        assert len(stream.load.verified_per_depth) == len(stream.load.accepted_per_depth) == 8
        assert sum(stream.load.accepted_per_depth) == stream.load.accepted_tokens
        assert stream.load.pass_ms > 0
        assert stream.load.draft_ms > 0
        assert stream.load.committed_tokens_per_second > 0
        assert (stream.load.running_sessions, stream.load.waiting_sessions, stream.load.draining) == (1, 0, False)


async def test_describe_says_what_is_served_and_the_load_now(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        before = await served.verifier.Describe(verifier_pb2.VerifierServiceDescribeRequest())
        assert before.hello == served.hello
        assert (before.model, before.architecture, before.dtype, before.device) == ("tiny", "llama", "float32", "cpu")
        assert (before.context_length, before.vocab_size, list(before.eos_token_ids)) == (CONTEXT, VOCAB, [EOS])
        assert (before.draft_length, before.max_nodes, before.invariant) == (8, MAX_NODES, False)
        assert (before.load.sessions, before.load.kv_capacity) == (0, 1 << 20)
        stream = Stream(served)
        await stream.begin()
        await stream.send(open_command(1))
        await stream.round(1)
        after = await served.verifier.Describe(verifier_pb2.VerifierServiceDescribeRequest())
        assert (after.load.sessions, after.load.committed_tokens) == (1, 1)


async def test_the_tokenizer_comes_in_parts_that_join_to_the_file(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        parts = [part async for part in served.verifier.GetTokenizer(verifier_pb2.GetTokenizerRequest())]
        assert len(parts) == 3
        assert b"".join(part.tokenizer_json for part in parts) == TOKENIZER.json_bytes
        assert parts[0].chat_template == TOKENIZER.chat_template
        assert dict(parts[0].special_tokens) == TOKENIZER.special_tokens
        assert parts[0].fingerprint == TOKENIZER.fingerprint


async def test_propose_equals_a_sessions_proposals(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        stream = Stream(served)
        await stream.begin()
        prompt = [9, 8, 7, 6, 5]
        await stream.send(open_command(1, prompt, draft_after=True))
        tokens = list(prompt)
        for _ in range(4):
            event = await stream.round(1)
            tokens += event.token_ids
            expected = proposals_from_proto(event.proposals)
            answer = await served.draft.Propose(draft_pb2.ProposeRequest(token_ids=tokens))
            assert len(answer.offsets) == expected.depth == 8
            for offset, ids, logprobs in zip(answer.offsets, expected.token_ids, expected.logprobs, strict=True):
                assert list(offset.token_ids) == ids.tolist()
                assert list(offset.logprobs) == pytest.approx(logprobs.tolist(), abs=1e-5)
            await stream.send(chain_command(1, event.n))
        wide = await served.draft.Propose(draft_pb2.ProposeRequest(token_ids=tokens, top_k=1000))
        assert [len(offset.token_ids) for offset in wide.offsets] == [VOCAB] * 8
        for offset in wide.offsets:
            assert sorted(offset.token_ids) == list(range(VOCAB))
        stream.call.cancel()
        assert await served.idle()


@pytest.mark.parametrize("tokens", [[], [5], [5, VOCAB], [5] * CONTEXT])
async def test_propose_refuses_a_bad_prefix(decoder: Decoder, tokens: list[int]) -> None:
    async with serving(decoder) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.draft.Propose(draft_pb2.ProposeRequest(token_ids=tokens))
        error = error_from_rpc(caught.value, "verifier")
        assert isinstance(error, InvalidArgument)
        assert error.field == "token_ids"
        assert await served.idle()


async def test_the_draft_service_describes_its_head_or_says_that_there_is_none(decoder: Decoder) -> None:
    request = draft_pb2.DraftServiceDescribeRequest()
    async with serving(decoder) as served:
        answer = await served.draft.Describe(request)
        assert answer.head_fingerprint == served.hello.head_fingerprint != ""
        assert (answer.draft_length, answer.draft_vocab_size, answer.top_k) == (8, VOCAB, TOP_K)
        assert list(answer.feature_layers) == [2, 4, 5]  # of 8 layers: hidden_states[2], [N // 2], [N - 3]
    async with serving(Decoder(decoder.target, None, TOP_K)) as served:
        assert served.hello.head_fingerprint == ""
        for call in (served.draft.Describe(request), served.draft.Propose(draft_pb2.ProposeRequest(token_ids=[5, 6]))):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_health_and_reflection_answer(decoder: Decoder) -> None:
    async with serving(decoder) as served:
        health = health_pb2_grpc.HealthStub(served.channel)
        for name in ("", *NAMES):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

        def ask() -> Iterator[reflection_pb2.ServerReflectionRequest]:
            yield reflection_pb2.ServerReflectionRequest(list_services="")

        reflection = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        async for message in reflection.ServerReflectionInfo(ask()):
            listed = {service.name for service in message.list_services_response.service}
        assert set(NAMES) <= listed
        assert "grpc.health.v1.Health" in listed
