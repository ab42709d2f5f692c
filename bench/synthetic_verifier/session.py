"""One session of a synthetic verifier: its commands in, rounds out, as the protocol says."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from bench.synthetic_verifier.model import LETTERS, VOCAB_SIZE, draft_is_right, prompt_key, token_at
from dartspec.services.common.convert import tree_from_proto
from dartspec.services.common.errors import InvalidArgument
from dartspec.v1 import common_pb2, verifier_pb2

WIDTH = 10  # candidates of an offset
RECHECK = 16  # plain steps after which the verifier asks itself again whether drafting pays
NEW = 0.1  # weight of the newest round in a session's own mean
_LOGPROBS = np.log(np.array([0.7, *[0.2 / (WIDTH - 1)] * (WIDTH - 1)], "<f4")).tobytes()


@dataclass
class Work:
    """A command that waits for a pass. at: when it came, a clock in seconds."""

    command: verifier_pb2.Command
    at: float


class SyntheticSession:
    """Holds what a session's next pass needs. accepted: its own running mean of A, high before the first round."""

    def __init__(self, opened: verifier_pb2.OpenCommand, rate: float, draft_length: int, context_length: int) -> None:
        self.prompt_len = opened.prompt_len
        self.rate = rate
        self.draft_length = draft_length
        self.key = prompt_key(opened.token_ids[: opened.prompt_len])
        self.n = len(opened.token_ids) - 1
        self.end = opened.prompt_len + min(opened.sampling.max_tokens, context_length - opened.prompt_len)
        self.stops = frozenset(opened.sampling.stop_token_ids)
        self.top = opened.sampling.top_logprobs
        self.plain_only = opened.plain_only
        self.always_draft = opened.always_draft
        self.draft_after = opened.draft_after
        self.kv = opened.prompt_len + opened.sampling.max_tokens
        self.work: deque[Work] = deque()
        self.unread = len(opened.token_ids)
        self.accepted = float(draft_length)
        self.proposed = False
        self.lapsed: int | None = None
        self.steps = 0  # plain ones since it was last asked whether drafting pays

    @property
    def begun(self) -> bool:
        """Whether its prompt is read."""
        return self.unread == 0

    def take(self, command: verifier_pb2.Command, now: float) -> None:
        """Queue a command; credit that was granted behind credit that lapsed is dropped."""
        if command.HasField("decode") and command.decode.n == self.lapsed:
            self.lapsed += command.decode.steps
            return
        self.lapsed = None
        self.work.append(Work(command, now))

    def rows(self) -> int:
        """Tokens that its next pass holds."""
        command = self.work[0].command
        match command.WhichOneof("kind"):
            case "open":
                return self.unread
            case "verify":
                tree = command.verify.WhichOneof("candidates") == "tree"
                return 1 + (len(command.verify.tree.token_ids) // 4 if tree else self.draft_length)
        return 1

    def run(self) -> tuple[verifier_pb2.RoundEvent, bool]:
        """One pass: the round, and whether proposals are wanted after it. Raises InvalidArgument."""
        command = self.work[0].command
        kind = command.WhichOneof("kind")
        nodes, accepted, wanted = 0, 0, False
        if kind == "open":
            self.work.popleft()
            self.unread, wanted = 0, self.draft_after
        elif kind == "verify":
            self.work.popleft()
            self._check("verify.n", command.verify.n)
            nodes, accepted = self._walk(command.verify)
            wanted = command.verify.draft_after
            self.accepted += NEW * (accepted - self.accepted)
            self.steps = 0
        else:
            wanted = self._step(command.decode)
        count = min(accepted + 1, self.end - self.n - 1)
        tokens = [token_at(self.key, self.n + 1 + index) for index in range(count)]
        stop = next((index for index, token in enumerate(tokens) if token in self.stops), None)
        finish = common_pb2.FINISH_REASON_UNSPECIFIED
        if stop is not None:
            tokens, finish = tokens[: stop + 1], common_pb2.FINISH_REASON_STOP
        elif self.n + count + 1 >= self.end:
            finish = common_pb2.FINISH_REASON_LENGTH
        self.n += len(tokens)
        self.proposed = False
        event = verifier_pb2.RoundEvent(
            n=self.n,
            token_ids=tokens,
            logprobs=[-0.5] * len(tokens),
            margins=[1.0] * len(tokens),
            accepted=accepted,
            nodes_offered=nodes,
            nodes_verified=nodes,
            finish_reason=finish,
        )
        if self.top:
            event.top_logprobs.width = self.top
            event.top_logprobs.token_ids.extend(LETTERS[: self.top] * len(tokens))
            event.top_logprobs.logprobs.extend([-1.0 - place for place in range(self.top)] * len(tokens))
        return event, wanted

    def propose(self) -> common_pb2.Proposals:
        """Candidates for the next offsets, likeliest first; ends plain credit that is left."""
        if self.work:
            last = self.work[-1].command.decode
            self.lapsed = last.n + last.steps
            self.work.clear()
        self.proposed = True
        ids = np.empty((self.draft_length, WIDTH), "<i4")
        for offset in range(self.draft_length):
            position = self.n + 1 + offset
            right = token_at(self.key, position)
            first = right if draft_is_right(self.key, position, self.rate) else right + 1
            ids[offset] = (first + np.arange(0, 2 * WIDTH, 2)) % (VOCAB_SIZE - 1)
        return common_pb2.Proposals(
            revision=1,
            widths=[WIDTH] * self.draft_length,
            token_ids=ids.tobytes(),
            logprobs=_LOGPROBS * self.draft_length,
        )

    def _walk(self, verify: verifier_pb2.VerifyCommand) -> tuple[int, int]:
        """(nodes, A): how far the target's own tokens lead into the candidates."""
        if verify.WhichOneof("candidates") == "tree":
            tree = tree_from_proto(verify.tree)
            children = {
                (int(parent), int(token)): index + 1
                for index, (parent, token) in enumerate(zip(tree.parents, tree.token_ids, strict=True))
            }
            node, depth = 0, 0
            while (found := children.get((node, token_at(self.key, self.n + 1 + depth)))) is not None:
                node, depth = found, depth + 1
            return len(tree), depth
        if not self.proposed:
            raise InvalidArgument("verify.chain", "a chain was asked for without proposals")
        longest = verify.chain.max_nodes or self.draft_length
        depth = 0
        while depth < longest and draft_is_right(self.key, self.n + 1 + depth, self.rate):
            depth += 1
        return longest, depth

    def _step(self, decode: verifier_pb2.DecodeCommand) -> bool:
        """Spend one step of credit; whether proposals are wanted now. The command is counted down in place."""
        self._check("decode.n", decode.n)
        decode.n += 1
        decode.steps -= 1
        self.steps += 1
        if decode.steps:
            return decode.may_offer and self.steps >= RECHECK
        self.work.popleft()
        return decode.draft_after if not self.work else decode.may_offer and self.steps >= RECHECK

    def _check(self, field: str, n: int) -> None:
        if n != self.n:
            raise InvalidArgument(field, f"session is at {self.n}, got {n}")
