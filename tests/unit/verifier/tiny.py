"""A random tiny target with a random draft head, and sessions driven without engine or wire."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dartspec.services.common.types import Proposals, Sampling, Tree
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.propose import Proposer
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.loader import target_from_model
from dartspec.services.verifier.messages import Open
from dartspec.services.verifier.session import Session

VOCAB = 61
EOS = 2
CONTEXT = 1024
MAX_NODES = 64


def tiny_decoder(
    seed: int = 0, top_k: int = 8, dtype: torch.dtype = torch.float32, transition_rank: int = 0
) -> Decoder:
    """A Llama of 8 layers with random weights, large enough that it has preferences."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=EOS,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval().to(dtype)
    loaded = target_from_model(model, "tiny")
    head = DraftHead(
        HeadConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            draft_length=7,
            draft_vocab_size=VOCAB,
            target_hidden_size=32,
            target_fingerprint=loaded.info.fingerprint,
            transition_rank=transition_rank,
        ),
        loaded.info.embedding,
    )
    for name, parameter in head.named_parameters():
        torch.nn.init.normal_(parameter, std=1.0 if name.startswith("transition") else 0.2)
    head.to(dtype).requires_grad_(False).eval()
    return Decoder(loaded.target, Proposer(head), top_k)


def open_session(
    decoder: Decoder,
    prompt: Sequence[int],
    sampling: Sampling,
    seed: int = 0,
    committed: Sequence[int] = (),
    drafts: bool = False,
) -> Session:
    """A prefilled session with its first token chosen."""
    order = Open(1, [*prompt, *committed], len(prompt), sampling, seed, 0, "test", drafts, not drafts)
    session = Admission(1, 1 << 20, CONTEXT, MAX_NODES).open(order, decoder)
    while decoder.prefill(session) is None:
        continue
    return session


def answer(session: Session) -> list[int]:
    """Tokens generated so far, committed ones included."""
    return session.tokens[session.opened.prompt_len :]


def finished(session: Session) -> bool:
    """The last token ended the answer."""
    return session.finish_of(session.tokens[-1]) is not None


def plain(decoder: Decoder, prompt: Sequence[int], sampling: Sampling, seed: int = 0) -> list[int]:
    """The whole answer, one token a pass."""
    session = open_session(decoder, prompt, sampling, seed)
    while not finished(session):
        decoder.verify(session, Tree.empty())
    return answer(session)


def random_tree(rng: random.Random, truth: Sequence[int], vocab: int = VOCAB, max_nodes: int = MAX_NODES) -> Tree:
    """A tree of a random shape around the tokens that the target will really choose, some of which it may miss.

    Kinds: empty, a chain, full width at the root, and bushes in which equal tokens stand at different depths.
    """
    kind = rng.choice(("empty", "chain", "wide", "bush", "bush", "bush"))
    edges: list[tuple[int, int]] = []  # parent, token
    if kind == "wide":
        edges = [(0, token) for token in rng.sample(range(vocab), min(vocab, max_nodes))]
    elif kind == "chain":
        length = rng.randint(1, 10)
        tokens = list(truth[:length]) + [rng.randrange(vocab) for _ in range(length)]
        spoiled = rng.randint(0, length)
        tokens[spoiled:] = [rng.randrange(vocab) for _ in tokens[spoiled:]]
        edges = [(i, token) for i, token in enumerate(tokens[:length])]
    elif kind == "bush":
        last_true, true_depth = 0, 0
        few = rng.sample(range(vocab), 3)  # few tokens, so that they repeat at many depths
        for _ in range(rng.randint(1, max_nodes)):
            if true_depth < len(truth) and rng.random() < 0.3:
                parent, token = last_true, truth[true_depth]
            else:
                parent, token = rng.randint(0, len(edges)), rng.choice([*few, rng.randrange(vocab)])
            if (parent, token) in edges:
                continue
            edges.append((parent, token))
            if parent == last_true and true_depth < len(truth) and token == truth[true_depth]:
                last_true, true_depth = len(edges), true_depth + 1
    parents = np.array([parent for parent, _ in edges], dtype=np.int32)
    tokens_array = np.array([token for _, token in edges], dtype=np.int32)
    return Tree(tokens_array, parents, np.full(len(edges), 0.5, np.float32), np.zeros(len(edges), np.uint16))


def drafted(decoder: Decoder, session: Session) -> Proposals:
    """What the head proposes for one session."""
    decoder.draft([session])
    assert session.proposals is not None
    return session.proposals
