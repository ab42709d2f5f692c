"""A tiny tokenizer, targets that are functions, and the honest walk: what a test expects can be computed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dartspec.services.common.types import Proposals, Sampling, TopTokens, Tree
from dartspec.v1 import verifier_pb2

# The token at the end of (tokens); prompt_len says where the answer begins.
Target = Callable[[Sequence[int], int, int], int]

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}"
    "(no thinking){% endif %}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """A byte-level BPE: 256 bytes in the order of the byte-level alphabet, a few merges, <eos> and <sep>, <think>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("a", "b")]
    vocab = {token: index for index, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True), AddedToken("<sep>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


def mix(*values: object) -> int:
    """A number that looks random and is the same everywhere."""
    return int.from_bytes(hashlib.sha256(repr(values).encode()).digest()[:8], "little")


def hash_target(vocab_size: int, *, eos: int | None = None, eos_at: int | None = None) -> Target:
    """Every token depends on all before it and on the seed; ``eos`` comes at index ``eos_at`` of the answer only."""

    def target(tokens: Sequence[int], prompt_len: int, seed: int) -> int:
        if eos_at is not None and len(tokens) - prompt_len == eos_at:
            assert eos is not None
            return eos
        token = mix(tuple(tokens), seed) % vocab_size
        return (token + 1) % vocab_size if token == eos else token

    return target


def scripted_target(answer: Sequence[int]) -> Target:
    """Says ``answer`` whatever the prompt, then its last token for ever."""

    def target(tokens: Sequence[int], prompt_len: int, seed: int) -> int:
        return answer[min(len(tokens) - prompt_len, len(answer) - 1)]

    return target


def plain_answer(target: Target, prompt: Sequence[int], count: int, *, seed: int = 0) -> list[int]:
    """What the target says, token by token: the reference for everything."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(target(tokens, len(prompt), seed))
    return tokens[len(prompt) :]


@dataclass
class FakeSession:
    """One session as the verifier keeps it; tokens[n] is pending."""

    id: int
    tokens: list[int]
    prompt_len: int
    sampling: Sampling
    seed: int
    plain_only: bool
    always_draft: bool
    draft_after: bool
    work: list[verifier_pb2.Command] = field(default_factory=list)
    opened: bool = False
    lapsed: int | None = None  # where credit would have ended that lapsed
    proposals: Proposals | None = None

    @property
    def n(self) -> int:
        return len(self.tokens) - 1

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_len


def walk(target: Target, session: FakeSession, tree: Tree) -> list[int]:
    """Tokens of the longest path from the root that the target would have said itself."""
    children = {(int(p), int(t)): i + 1 for i, (p, t) in enumerate(zip(tree.parents, tree.token_ids, strict=True))}
    node, path = 0, []
    while True:
        token = target([*session.tokens, *path], session.prompt_len, session.seed)
        if (node, token) not in children:
            return path
        node = children[node, token]
        path.append(token)


def top_tokens(tokens: Sequence[int], position: int, width: int) -> TopTokens:
    """Entries that belong to a position of these tokens and to no other; exact in float32."""
    return tuple(((tokens[position] + place) % 250, logprob(tokens, position) - place) for place in range(width))


def logprob(tokens: Sequence[int], position: int) -> float:
    """A number that belongs to the token at a position and to no other; exact in float32."""
    return -((tokens[position] * 31 + position) % 4096) / 64.0
