"""Answers from an engine in this process: a stand-in for a Rounds stream, with plain credit or an oracle's trees."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tokenizers import Tokenizer

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.messages import Decode, Event, Failed, Load, Open, Round, Verify
from dartspec.services.verifier.replica import Replica

# A pass takes well under a second; without an event for so long the engine hangs.
PATIENCE_SECONDS = 300.0
# More than an answer has.
CREDIT = 4096
MANY = 4096
GREEDY = Sampling(0.0, 1)
PROMPT_TOKENS = 32
SENTENCE = "Write a short story about a lighthouse keeper who finds a message in a bottle and answers it. "

# Of an answer's number and the tokens that it has, what to verify next; None: the head's own chain.
Candidates = Callable[[int, int], Tree | None]


def text_windows(replica: Replica, count: int) -> list[list[int]]:
    """Prompts that differ, of one length: windows of one text."""
    tokenizer = Tokenizer.from_str(replica.tokenizer.json_bytes.decode())
    ids = tokenizer.encode(SENTENCE * (2 + count // 8)).ids
    return [ids[i : i + PROMPT_TOKENS] for i in range(count)]


@dataclass
class Answer:
    """A session's tokens, and of its rounds with candidates how many there were and what they committed."""

    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    committed: int = 0


class EngineClient:
    """Sessions of one stream.

    seconds: of the last answers, from the moment when all that were opened at first had a token to the end.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
        self._last = 0
        self.seconds = 0.0

    def deliver(self, events: list[Event], load: Load) -> None:
        """Called by the engine."""
        self._events.put(events)

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        *,
        width: int = MANY,
        candidates: Candidates | None = None,
        forced: bool = False,
        samplings: Sequence[Sampling] = (GREEDY,),
        on_answer: Callable[[], object] = lambda: None,
    ) -> list[Answer]:
        """``tokens`` tokens after each prompt, whatever they are, at most ``width`` answers at a time.

        Ways of sampling are taken in turn; an answer's number is its seed. With ``candidates`` sessions ask for drafts,
        and what it says is verified; ``forced``: in every round. Raises the first session's error.
        """
        waiting = deque(enumerate(prompts))
        found = [Answer() for _ in prompts]
        numbers: dict[int, int] = {}

        def begin() -> None:
            index, prompt = waiting.popleft()
            self._last += 1
            numbers[self._last] = index
            sampling = replace(samplings[index % len(samplings)], max_tokens=tokens, ignore_eos=True)
            drafts = candidates is not None
            self._engine.submit(
                self,
                Open(self._last, list(prompt), len(prompt), sampling, index, 0, "bench", drafts, not drafts, forced),
            )

        for _ in range(min(width, len(prompts))):
            begin()
        first = time.perf_counter()
        while numbers:
            for event in self._events.get(timeout=PATIENCE_SECONDS):
                if isinstance(event, Failed):
                    raise event.error
                index = numbers[event.session]
                answer = found[index]
                if not answer.tokens and index < width:
                    first = time.perf_counter()
                answer.tokens += event.token_ids
                if event.nodes_offered:
                    answer.rounds += 1
                    answer.committed += len(event.token_ids)
                if event.finish is None:
                    self._go_on(event, answer, index, candidates)
                    continue
                del numbers[event.session]
                on_answer()
                if waiting:
                    begin()
        self.seconds = time.perf_counter() - first
        return found

    def _go_on(self, event: Round, answer: Answer, index: int, candidates: Candidates | None) -> None:
        if event.proposals is not None:
            assert candidates is not None
            tree = candidates(index, len(answer.tokens))
            self._engine.submit(self, Verify(event.session, event.n, tree, 0, True))
        elif len(answer.tokens) == 1 or event.nodes_offered:
            # The rest of the answer as credit, unless candidates end it.
            drafts = candidates is not None
            self._engine.submit(self, Decode(event.session, event.n, CREDIT, drafts, drafts))


def true_chains(truths: Sequence[Sequence[int]], depth: int) -> Candidates:
    """The next ``depth`` tokens of answers that are known."""

    def candidates(index: int, done: int) -> Tree:
        chain = np.array(truths[index][done : done + depth], np.int32)
        return Tree.chain(chain, np.full(len(chain), 0.99, np.float32))

    return candidates


def own_chain(index: int, done: int) -> None:
    """The likeliest chain of what the head drafted."""
