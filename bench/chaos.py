"""Faults in a compose stack under load, and whether any answer noticed: `python -m bench.chaos`.

Answers every prompt once in peace. Then a number of clients ask again and again, while verifiers are killed, paused
and cut off, ngram and redis are killed, and everything but the gateway is restarted in turn. An answer must come to its
end with the same tokens. A difference where plain decoding's best two were nearer than rounding (docs/exactness.md) is
listed and is no fault. Exit code 1 when an answer failed or differs otherwise.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import click

from bench.compose import Container, containers
from bench.identity import FLOAT32_TOLERANCE
from dartspec.cli.answer import Answer
from dartspec.cli.client import GatewayClient
from dartspec.cli.compare import Pair, first_difference
from dartspec.cli.request_settings import RequestSettings
from dartspec.services.common.errors import DartspecError

PROMPTS = (
    "What is a prime number?",
    "Write a haiku about rivers.",
    "Explain recursion to a child.",
    "List five uses of salt.",
    "Why is the sky blue?",
    "Write a Python function that reverses a string.",
    "Who wrote Don Quixote, and when?",
    "Describe how bread is made.",
)
TEMPERATURES = (0.0, 0.8)
HEALTHY_SECONDS = 300.0
GRACE_SECONDS = 40  # stop_grace_period of the compose file


@dataclass
class Phase:
    """What happened between the begin of one fault and that of the next."""

    name: str
    seconds: float = 0.0
    answers: int = 0
    tokens: int = 0
    near_ties: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    totals_s: list[float] = field(default_factory=list)

    def report(self) -> dict[str, object]:
        """For the JSON."""
        values = dataclasses.asdict(self)
        totals = values.pop("totals_s")
        longest = max(totals, default=None)
        return {**values, "median_s": statistics.median(totals) if totals else None, "longest_s": longest}


class Load:
    """Clients that ask the same questions until told to stop, and compare."""

    def __init__(self, client: GatewayClient, max_tokens: int) -> None:
        self.phase = Phase("peace")
        self.phases = [self.phase]
        self._client = client
        self._questions = [
            (prompt, RequestSettings(max_tokens=max_tokens, temperature=temperature, seed=7 + number))
            for number, temperature in enumerate(TEMPERATURES)
            for prompt in PROMPTS
        ]
        self._expected: list[Answer] = []
        self._next = 0
        self._stopping = False

    async def expect(self) -> None:
        """Ask everything once, before anything fails."""
        for prompt, settings in self._questions:
            self._expected.append(await self._client.answer(prompt, settings))

    async def run(self, clients: int) -> None:
        """Ask until `stop`, so many at a time."""
        await asyncio.gather(*(self._ask_on() for _ in range(clients)))

    def stop(self) -> None:
        """Let what is open come to its end, and ask no more."""
        self._stopping = True

    def begin(self, name: str) -> None:
        """What ends from now on counts for this phase."""
        self.phase = Phase(name)
        self.phases.append(self.phase)

    async def _ask_on(self) -> None:
        while not self._stopping:
            number = self._next % len(self._questions)
            self._next += 1
            prompt, settings = self._questions[number]
            began = time.perf_counter()
            try:
                answer = await self._client.answer(prompt, settings)
            except DartspecError as error:
                self.phase.faults.append(f"{prompt} T={settings.temperature}: {type(error).__name__}: {error.message}")
                await asyncio.sleep(1.0)
                continue
            self.phase.answers += 1
            self.phase.tokens += len(answer.token_ids)
            self.phase.totals_s.append(time.perf_counter() - began)
            self._compare(Pair(f"{prompt} T={settings.temperature}", self._expected[number], answer))

    def _compare(self, pair: Pair) -> None:
        difference = first_difference(pair)
        if difference is None:
            if pair.plain.text != pair.dart.text or pair.plain.reason != pair.dart.reason:
                self.phase.faults.append(f"{pair.prompt}: same tokens, another text or end")
            return
        line = f"{pair.prompt}: token {difference.index} differs, gap {difference.gap}"
        numeric = difference.gap is not None and difference.gap < FLOAT32_TOLERANCE
        (self.phase.near_ties if numeric else self.phase.faults).append(line)


def faults(stack: dict[str, Container]) -> list[tuple[str, Callable[[], Awaitable[None]], Sequence[Container]]]:
    """Name, what to do, and whose health to wait for afterwards."""
    verifiers = [stack[name] for name in sorted(stack) if name.startswith("verifier")]
    if len(verifiers) < 2:
        raise click.ClickException("two verifiers are needed, one to fail and one to go on")
    one, other = verifiers[:2]
    ngram, redis = stack["ngram"], stack["redis"]

    async def rolling() -> None:
        for each in (redis, ngram, *verifiers):
            await each.restart(GRACE_SECONDS)
            await each.healthy(HEALTHY_SECONDS)

    return [
        ("verifier killed", lambda: one.kill(5.0), [one]),
        # Longer than --between-tokens-seconds, so that its answers go on elsewhere.
        ("verifier paused for 45 s", lambda: other.pause(45.0), [other]),
        ("ngram killed", lambda: ngram.kill(5.0), [ngram]),
        ("redis killed", lambda: redis.kill(5.0), [redis]),
        ("verifier off the network for 20 s", lambda: one.cut(20.0), [one]),
        ("all but the gateway restarted in turn", rolling, []),
    ]


async def run(project: str, gateway: str, clients: int, max_tokens: int, settle: float) -> list[Phase]:
    """All faults in turn; gives a phase for each, after that of peace."""
    stack = await containers(project)
    todo = faults(stack)
    async with GatewayClient(gateway) as client:
        load = Load(client, max_tokens)
        click.echo("asking everything once", err=True)
        await load.expect()
        asking = asyncio.create_task(load.run(clients))
        began = time.perf_counter()
        try:
            await asyncio.sleep(settle)
            for name, do, sick in todo:
                load.phase.seconds, began = time.perf_counter() - began, time.perf_counter()
                click.echo(f"{name}; so far {sum(each.answers for each in load.phases)} answers", err=True)
                load.begin(name)
                await do()
                for each in sick:
                    await each.healthy(HEALTHY_SECONDS)
                await asyncio.sleep(settle)
        finally:
            load.stop()
            await asking
        load.phase.seconds = time.perf_counter() - began
        return load.phases


@click.command()
@click.option("--project", default="dartspec", show_default=True, help="Name of the compose project.")
@click.option("--gateway", default="127.0.0.1:7000", show_default=True, help="Its gateway's address.")
@click.option("--clients", default=4, show_default=True, help="Answers at a time.")
@click.option("--tokens", default=48, show_default=True, help="Longest answer.")
@click.option("--settle", default=10.0, show_default=True, help="Seconds of load after each fault.")
def main(project: str, gateway: str, clients: int, tokens: int, settle: float) -> None:
    """Faults in a compose stack under load."""
    phases = asyncio.run(run(project, gateway, clients, tokens, settle))
    holds = not any(phase.faults for phase in phases)
    report = {
        "holds": holds,
        "answers": sum(phase.answers for phase in phases),
        "tokens": sum(phase.tokens for phase in phases),
        "near_ties": sum(len(phase.near_ties) for phase in phases),
        "faults": sum(len(phase.faults) for phase in phases),
        "phases": [phase.report() for phase in phases],
    }
    print(json.dumps(report))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
