"""What `bench.failover` does to running services, and whether answers come out as if nothing had happened."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc

from bench.failover_client import Got, answer, request, resumption
from bench.failover_stack import Replica, Stack
from bench.relay import Relay, Trap
from dartspec.services.common.errors import DartspecError, Unavailable
from dartspec.v1.gateway_pb2 import GenerateRequest

PROMPT = "The first thing that a gardener does in spring"

OnAnswer = Callable[[], object]


@dataclass
class Outcome:
    """answers: made under the scenario's blows. faults: what was wrong with some. longest_gap_s: silence, of all."""

    answers: int = 0
    faults: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0

    def take(self, got: Got, expected: Got, what: str) -> None:
        """Compare an answer with the undisturbed one."""
        self.answers += 1
        self.longest_gap_s = max(self.longest_gap_s, got.longest_gap_s)
        if not got.same(expected):
            self.faults.append(f"{what}: another answer, {got.token_ids} instead of {expected.token_ids}")


async def kill_verifiers(
    stack: Stack, mode: str, indices: Sequence[int], tokens: int, on_answer: OnAnswer = lambda: None
) -> Outcome:
    """kill -9 of the verifier that makes an answer when so many tokens of it have gone out, another answer each."""

    async def act(relay: Relay) -> None:
        killed.append(stack.behind(relay))
        await killed[-1].kill()
        raise Unavailable("the verifier behind the relay was killed")

    killed: list[Replica] = []
    outcome, asked = Outcome(), request(PROMPT, mode, tokens)
    expected = await answer(stack.gateway, asked)
    for index in indices:
        killed.clear()
        await _blow(stack, Trap(index, act), outcome, asked, expected, f"{mode}, index {index}")
        await asyncio.gather(*(replica.restart() for replica in killed))
        await stack.whole()
        on_answer()
    return outcome


async def stop_verifiers(
    stack: Stack, mode: str, indices: Sequence[int], tokens: int, on_answer: OnAnswer = lambda: None
) -> Outcome:
    """SIGSTOP instead of kill -9: the port stays open. SIGCONT after the answer, whose end does not wait for it."""
    outcome, asked = Outcome(), request(PROMPT, mode, tokens)
    expected = await answer(stack.gateway, asked)
    for index in indices:
        over = asyncio.Event()

        async def act(relay: Relay, over: asyncio.Event = over) -> None:
            stack.behind(relay).signal(signal.SIGSTOP)
            try:
                await over.wait()
            finally:
                stack.behind(relay).signal(signal.SIGCONT)

        await _blow(stack, Trap(index, act), outcome, asked, expected, f"{mode}, index {index}")
        over.set()
        await stack.whole()
        on_answer()
    return outcome


async def kill_gateways(
    stack: Stack, mode: str, indices: Sequence[int], tokens: int, on_answer: OnAnswer = lambda: None
) -> Outcome:
    """kill -9 of the gateway when the client has so many tokens; it goes on at the other one of two."""
    outcome, asked = Outcome(), request(PROMPT, mode, tokens)
    expected = await answer(stack.gateway, asked)
    for turn, index in enumerate(indices):
        first, other, got = turn % 2, 1 - turn % 2, Got()

        async def act(got: Got, index: int = index, first: int = first) -> None:
            if len(got.token_ids) >= index:
                await stack.gateways[first].kill()
                raise Unavailable("the gateway was killed")

        try:
            await answer(stack.gateways[first].address, asked, got, act)
            outcome.faults.append(f"{mode}, index {index}: the gateway was not killed")
        except (Unavailable, grpc.aio.AioRpcError):
            rest = await answer(stack.gateways[other].address, resumption(asked, got), got)
            outcome.take(rest, expected, f"{mode}, index {index}")
        await stack.restart_gateway(first)
        await stack.whole()
        on_answer()
    return outcome


async def kill_ngram(stack: Stack, times: int, tokens: int, on_answer: OnAnswer = lambda: None) -> Outcome:
    """kill -9 of ngram during answers: the verifier's own chain stands in, and searches come back by themselves."""
    outcome, asked = Outcome(), request(PROMPT, "dart", tokens)
    expected = await answer(stack.gateway, asked)

    async def until(seen: Callable[[Got], bool], what: str) -> None:
        async with asyncio.timeout(60):
            while True:
                got = await answer(stack.gateway, asked)
                outcome.take(got, expected, what)
                if seen(got):
                    return

    for time in range(times):
        running = asyncio.create_task(answer(stack.gateway, asked))
        await asyncio.sleep(0)
        assert stack.ngram is not None
        await stack.ngram.kill()
        outcome.take(await running, expected, f"kill {time}")
        await until(lambda got: got.finish is not None and got.finish.ledger.chain_fallbacks > 0, f"after kill {time}")
        await stack.restart_ngram()
        await until(lambda got: got.finish is not None and got.finish.ledger.search_ms > 0, f"after restart {time}")
        on_answer()
    return outcome


async def roll(stack: Stack, clients: int, tokens: int, on_answer: OnAnswer = lambda: None) -> Outcome:
    """SIGTERM and a new process for one verifier after the other, while so many clients ask all the time."""
    outcome, rolling = Outcome(), True
    prompts = [f"{PROMPT}, number {number}," for number in range(clients)]
    asked = [request(prompt, ("plain", "dart", "auto")[i % 3], tokens) for i, prompt in enumerate(prompts)]
    expected = [await answer(stack.gateway, each) for each in asked]

    async def ask(number: int) -> None:
        while rolling:
            try:
                got = await answer(stack.gateway, asked[number])
            except (DartspecError, grpc.aio.AioRpcError) as error:
                outcome.faults.append(f"client {number}: {error}")
                return
            outcome.take(got, expected[number], f"client {number}")

    asking = [asyncio.create_task(ask(number)) for number in range(clients)]
    for number, replica in enumerate(stack.replicas):
        code = await replica.terminate()
        if code != 0:
            outcome.faults.append(f"verifier {number} ended with exit code {code}")
        await replica.restart()
        await stack.whole()
        on_answer()
    rolling = False
    await asyncio.gather(*asking)
    return outcome


async def _blow(stack: Stack, trap: Trap, outcome: Outcome, asked: GenerateRequest, expected: Got, what: str) -> None:
    """One answer that meets the trap."""
    stack.arm(trap)
    try:
        got = await answer(stack.gateway, asked)
    except (DartspecError, grpc.aio.AioRpcError) as error:
        outcome.faults.append(f"{what}: {error}")
    else:
        outcome.take(got, expected, what)
    if not trap.sprung.is_set():
        outcome.faults.append(f"{what}: the answer did not get there")
