"""Replayed rounds commit what rounds of a verifier commit, and a budget's tree is the beginning of a larger one's."""

from __future__ import annotations

import random
from pathlib import Path

import ngram_index
import numpy as np
import pytest

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.evaluate.grid import Grid, Search
from dartspec.services.evaluate.record import Ask, Recording, hit_rates, record
from dartspec.services.evaluate.rounds import Committed, committed_by_budget, true_path
from dartspec.services.evaluate.run import pooled
from dartspec.services.ngram.trees import TreeReader
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.decoder import Decoder, best_chain
from dartspec.services.verifier.tree import cut
from tests.unit.verifier.tiny import CONTEXT, MAX_NODES, VOCAB, drafted, finished, open_session, plain, tiny_decoder

LENGTH = 24
BUDGETS = (3, 30)
SEARCHES = [
    Search("survival", 8, rule="auto", weight=0.7),
    Search("survival", 4, weight=0.0),
    Search("survival", 8, weight=0.0, transition=0.4),
    Search("reference", 8, w=5, rule="auto"),
    Search("chain", 8),
]


@pytest.fixture(scope="module", params=[0, 3], ids=["without transitions", "with"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return tiny_decoder(transition_rank=request.param)


@pytest.fixture(scope="module")
def asks() -> list[Ask]:
    rng = random.Random(0)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 20))] for _ in range(2)]
    return [
        Ask(prompt, Sampling(temperature, LENGTH), number, (True, False) if temperature else (False,))
        for temperature in (0.0, 1.0)
        for number, prompt in enumerate(prompts)
    ]


@pytest.fixture(scope="module")
def recordings(decoder: Decoder, asks: list[Ask]) -> list[Recording]:
    # Fewer sessions than answers, so that some wait.
    return record(decoder, Admission(3, 1 << 20, CONTEXT, MAX_NODES), asks)


@pytest.fixture(scope="module")
def reader(decoder: Decoder, recordings: list[Recording], tmp_path_factory: pytest.TempPathFactory) -> TreeReader:
    """Counts of half of the answers, so that they help now and then."""
    documents = [recording.tokens for recording in recordings[::2]]
    builder = ngram_index.Builder(3, VOCAB)
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    builder.add(np.array([token for tokens in documents for token in tokens], np.uint32), offsets)
    path = tmp_path_factory.mktemp("index") / "answers.ngx"
    builder.finish(path, "0" * 32)
    return TreeReader.open(Path(path), "0" * 32, VOCAB)


def live(
    decoder: Decoder, ask: Ask, answer: list[int], shared: bool, search: Search, budget: int, reader: TreeReader
) -> Committed:
    """Rounds of a session that verifies the trees that a gateway would send; its tokens are the answer's."""
    decoder = Decoder(decoder.target, decoder.proposer, search.k if search.mode != "chain" else 8, shared)
    session = open_session(decoder, ask.prompt, ask.sampling, ask.seed, drafts=True)
    rounds = accepted = 0
    while not finished(session) and session.room >= 2:
        proposals = drafted(decoder, session)
        if search.mode == "chain":
            tree = best_chain(proposals, budget, session.enders)
        else:
            ((tokens, parents),) = reader.search(
                [(session.tokens[-4:], proposals)],
                mode=search.mode,
                node_budget=budget,
                beam_width=search.w or 1,
                ngram_weight=search.weight,
                transition_weight=search.transition,
                stop_token_ids=sorted(session.enders),
            )
            nodes = len(tokens)
            # Falling, so that `cut` keeps them in order.
            survival = np.linspace(1.0, 0.5, nodes, dtype=np.float32)
            tree = Tree(tokens, parents, survival, np.zeros(nodes, np.uint16))
        commit = decoder.verify(session, cut(tree, len(tree), max_depth=session.room))
        rounds, accepted = rounds + 1, accepted + commit.walk.accepted
        assert session.tokens == answer[: len(session.tokens)]
    return Committed(rounds, accepted)


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: f"{search.mode}-{search.weight}")
def test_replayed_rounds_are_those_of_live_decoding(
    decoder: Decoder, asks: list[Ask], recordings: list[Recording], reader: TreeReader, search: Search
) -> None:
    committed = []
    for shared in (True, False):
        chosen = [number for number, ask in enumerate(asks) if shared in ask.share_noise]
        found = committed_by_budget([recordings[number] for number in chosen], shared, search, BUDGETS, reader)
        for budget in BUDGETS if search.mode != "chain" else BUDGETS[1:]:
            expected = [
                live(decoder, asks[number], recordings[number].tokens, shared, search, budget, reader)
                for number in chosen
            ]
            assert found[budget] == expected
        committed.append(pooled(found[BUDGETS[-1]]).accepted)
    if search.mode != "chain":  # of a random head
        assert min(committed) > 0  # else this would prove little


def test_recordings_hold_the_answers_of_plain_decoding(
    decoder: Decoder, asks: list[Ask], recordings: list[Recording]
) -> None:
    for ask, recording in zip(asks, recordings, strict=True):
        answer = plain(decoder, list(ask.prompt), ask.sampling, ask.seed)
        assert recording.tokens == [*ask.prompt, *answer]
        # Drafts from the first token on, but not where the limit leaves room for one more token.
        assert recording.positions[0] == len(ask.prompt)
        assert len(recording.positions) == min(len(answer) - 1, LENGTH - 2)


def test_hit_rates_count_every_position(recordings: list[Recording]) -> None:
    hits = np.zeros(8)
    seen = np.zeros(8)
    for recording in recordings[2:]:
        for n in recording.positions:
            for offset, ids in enumerate(recording.proposals[True][n - recording.prompt_length].token_ids):
                if n + 1 + offset < len(recording.tokens):
                    seen[offset] += 1
                    hits[offset] += recording.tokens[n + 1 + offset] in ids[:3].tolist()
    assert hit_rates(recordings[2:], True, 3) == pytest.approx(hits / seen)


def test_the_true_path_ends_where_the_tree_does() -> None:
    tokens, parents = np.array([5, 6, 5, 7, 9], np.int32), np.array([0, 0, 2, 3, 1], np.int32)
    assert true_path(tokens, parents, [6, 5, 7, 8]) == [1, 2, 3]
    assert true_path(tokens, parents, [5, 9]) == [0, 4]
    assert true_path(tokens, parents, [7]) == []


def test_the_grid_has_every_search_that_differs_once() -> None:
    grid = Grid(("survival", "reference", "chain"), (5, 25), (20,), (59,), ("auto", "divided"), (0.7, 0.0))
    searches = grid.searches(counts=True, transitions=False)
    assert len(searches) == len(set(searches)) == 2 * (2 + 1) + 2 * 2 + 1
    only = Grid(("survival",), (25,), ngram_weight=(0.7,), transition_weight=(1.0, 0.0))
    assert only.searches(counts=False, transitions=False) == [Search("survival", 25, weight=0.0)]
    both = [Search("survival", 25, weight=0.0, transition=weight) for weight in (1.0, 0.0)]
    assert only.searches(counts=False, transitions=True) == both


@pytest.mark.parametrize(
    ("counts", "transitions", "weights"),
    [
        (True, False, [(0.5, None), (0.0, None)]),
        (True, True, [(0.25, 0.5), (0.0, 1.0)]),
        (False, True, [(0.0, 1.0)]),
        (False, False, [(0.0, None)]),
    ],
)
def test_weights_that_nobody_names_are_those_of_a_search(
    counts: bool, transitions: bool, weights: list[tuple[float, float | None]]
) -> None:
    found = Grid().searches(counts, transitions)
    assert [(search.weight, search.transition) for search in found] == weights
