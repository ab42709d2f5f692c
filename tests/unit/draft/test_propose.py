"""Proposals with a cache equal proposals computed from nothing, whatever the rounds looked like."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Proposals
from dartspec.services.draft import propose
from dartspec.services.draft.coin import Coin
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.verifier.compiled_proposer import CompiledProposer, proposer_for

MakeHead = Callable[..., DraftHead]
MakeProposer = Callable[[DraftHead], Proposer]


@pytest.fixture(params=["plain", "compiled"])
def make_proposer(request: pytest.FixtureRequest) -> MakeProposer:
    """Both ways to draft on a processor."""
    if request.param == "plain":
        return Proposer
    pytest.importorskip("numba", reason="without numba nothing is compiled")
    return CompiledProposer


def naive_logits(head: DraftHead, features: Tensor, next_tokens: Tensor) -> Tensor:
    """One full pass over all positions with a dense causal mask, written independently of `propose`: [d, V_draft]."""
    config, layer = head.config, head.midlayer
    residual = features @ head.fc.weight.T
    masks = config.draft_length
    rows = torch.cat(
        (
            torch.cat(
                (
                    norm(head.embedding[next_tokens], layer.input_layernorm.weight),
                    norm(residual, layer.hidden_norm.weight),
                ),
                1,
            ),
            layer.mask_rep.repeat(masks, 1),
        )
    )
    residual = torch.cat((residual, layer.mask_rep[: config.hidden_size].repeat(masks, 1)))
    length, half = len(rows), config.head_dim // 2
    angle = torch.arange(length)[:, None] * config.rope_theta ** (-torch.arange(half) / half)

    def heads(weight: Tensor, count: int, rotate: bool) -> Tensor:
        x = (rows @ weight.T).view(length, count, config.head_dim).transpose(0, 1)
        if not rotate:
            return x
        low, high = x[..., :half], x[..., half:]
        return torch.cat((low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()), -1)

    attention = layer.self_attn
    queries = heads(attention.q_proj.weight, config.num_attention_heads, True)
    shared = config.num_attention_heads // config.num_key_value_heads
    keys = heads(attention.k_proj.weight, config.num_key_value_heads, True).repeat_interleave(shared, 0)
    values = heads(attention.v_proj.weight, config.num_key_value_heads, False).repeat_interleave(shared, 0)
    scores = queries @ keys.transpose(1, 2) / config.head_dim**0.5
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    if config.attention_window:
        scores[..., : max(0, len(features) - config.attention_window)] = -torch.inf
    stream = residual + (scores.softmax(-1) @ values).transpose(0, 1).flatten(1) @ attention.o_proj.weight.T
    inner = norm(stream, layer.post_attention_layernorm.weight)
    mlp = layer.mlp
    gate = inner @ mlp.gate_proj.weight.T
    stream = stream + (gate * gate.sigmoid() * (inner @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T
    twice = norm(norm(stream[-config.depth :], head.norm.weight), head.norm.weight)
    return twice @ head.lm_head.weight.T


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def session(seed: int, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(length, 96, generator=generator), torch.randint(97, (length,), generator=generator)


@pytest.mark.parametrize("window", [0, 1, 150])
def test_many_rounds_of_several_sessions_equal_full_recomputation(
    make_head: MakeHead, make_proposer: MakeProposer, window: int
) -> None:
    proposer = make_proposer(make_head(attention_window=window))
    data = [session(seed, 420) for seed in range(3)]
    caches = [proposer.new_cache() for _ in data]
    random = np.random.default_rng(0)
    for round_number in range(50):
        chosen = [s for s in range(3) if random.random() < 0.8 and caches[s].length < 400]
        ends = {s: caches[s].length + int(random.integers(1, 9 if round_number % 5 else 40)) for s in chosen}
        inputs = [
            DraftInput(caches[s], data[s][0][caches[s].length : ends[s]], data[s][1][caches[s].length : ends[s]])
            for s in chosen
        ]
        if not inputs:
            continue
        logits = proposer.logits(inputs)
        for row, s in enumerate(chosen):
            assert caches[s].length == ends[s]
            expected = naive_logits(proposer.head, data[s][0][: ends[s]], data[s][1][: ends[s]])
            torch.testing.assert_close(logits[row], expected, rtol=1e-4, atol=1e-4)
    assert max(cache.length for cache in caches) > 256  # the store has grown at least once


def test_a_lagging_cache_gives_the_proposals_of_one_that_never_lagged(
    make_head: MakeHead, make_proposer: MakeProposer
) -> None:
    proposer = make_proposer(make_head())
    features, tokens = session(5, 40)
    steady, lagging, flushed = (proposer.new_cache() for _ in range(3))
    for position in range(40):
        entry = DraftInput(steady, features[position : position + 1], tokens[position : position + 1])
        expected = proposer.logits([entry])
    torch.testing.assert_close(proposer.logits([DraftInput(lagging, features, tokens)]), expected, rtol=1e-4, atol=1e-4)
    proposer.append([DraftInput(flushed, features[:33], tokens[:33])])
    late = proposer.logits([DraftInput(flushed, features[33:], tokens[33:])])
    torch.testing.assert_close(late, expected, rtol=1e-4, atol=1e-4)


def test_mask_rows_never_stay_in_the_cache(make_head: MakeHead, make_proposer: MakeProposer) -> None:
    proposer = make_proposer(make_head())
    features, tokens = session(6, 30)
    drafted, quiet = proposer.new_cache(), proposer.new_cache()
    for start in range(0, 30, 3):
        proposer.propose([DraftInput(drafted, features[start : start + 3], tokens[start : start + 3])])
    proposer.append([DraftInput(quiet, features, tokens)])
    assert drafted.length == quiet.length == 30
    torch.testing.assert_close(drafted._store[:, :, :30], quiet._store[:, :, :30], rtol=1e-5, atol=1e-5)


def test_rewinding_and_reusing_a_prefix(make_head: MakeHead, make_proposer: MakeProposer) -> None:
    proposer = make_proposer(make_head())
    features, tokens = session(7, 20)
    cache = proposer.new_cache()
    expected = proposer.logits([DraftInput(cache, features, tokens)])
    cache.truncate(12)
    reused = proposer.new_cache(cache._store[:, :, :24].clone())
    reused.adopt(11)
    assert (cache.length, reused.length) == (12, 11)
    for start, entry in ((12, cache), (11, reused)):
        again = proposer.logits([DraftInput(entry, features[start:], tokens[start:])])
        torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="holds 20 positions and cannot be cut to 21"):
        cache.truncate(21)
    with pytest.raises(ValueError, match="room for 20 positions, 21 wanted"):
        reused.adopt(21)


def test_memory_that_was_given_never_grows(make_head: MakeHead, make_proposer: MakeProposer) -> None:
    proposer = make_proposer(make_head())
    features, tokens = session(8, 30)
    own = proposer.new_cache()
    given = proposer.new_cache(torch.zeros(2, 2, 24, 8))
    expected = proposer.logits([DraftInput(own, features[:20], tokens[:20])])
    logits = proposer.logits([DraftInput(given, features[:20], tokens[:20])])
    torch.testing.assert_close(logits, expected)
    with pytest.raises(ValueError, match="has 24 places, 34 are needed"):
        proposer.append([DraftInput(given, features[20:], tokens[20:])])
    assert given.length == 20


def test_company_does_not_change_a_session(make_head: MakeHead, make_proposer: MakeProposer) -> None:
    proposer = make_proposer(make_head())
    data = [session(seed, length) for seed, length in ((1, 5), (2, 31), (3, 12))]
    alone = [proposer.propose([DraftInput(proposer.new_cache(), *one)], 7)[0] for one in data]
    together = proposer.propose([DraftInput(proposer.new_cache(), *one) for one in data], 7)
    for left, right in zip(alone, together, strict=True):
        assert np.array_equal(left.token_ids, right.token_ids)
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-4)


@pytest.mark.parametrize("offsets", [1, 2, 4, 5])
def test_fewer_offsets_are_the_first_ones(make_head: MakeHead, make_proposer: MakeProposer, offsets: int) -> None:
    proposer = make_proposer(make_head(draft_vocab_size=30, transition_rank=3))
    data = [session(seed, length) for seed, length in ((1, 5), (2, 31), (3, 12))]
    coins = [None, Coin(7, 0.8, 40), None]

    def inputs() -> list[DraftInput]:
        return [DraftInput(proposer.new_cache(), *one, coin) for one, coin in zip(data, coins, strict=True)]

    shallow, used = proposer.propose(inputs(), 7, offsets), inputs()
    for few, all_of_them in zip(shallow, proposer.propose(used, 7), strict=True):
        assert few.depth == offsets
        assert np.array_equal(few.token_ids, all_of_them.token_ids[:offsets])
        np.testing.assert_allclose(few.logprobs, all_of_them.logprobs[:offsets], atol=1e-4)
        scores = all_of_them.transition_scores[: (offsets - 1) * 7 * 7]
        np.testing.assert_allclose(few.transition_scores, scores, rtol=2**-7, atol=1e-6)
    # What is behind the prefix afterwards does not matter to the next draft.
    more = [session(seed, 3) for seed in (4, 5, 6)]
    again = [DraftInput(entry.cache, *one) for entry, one in zip(used, more, strict=True)]
    short = inputs()
    proposer.propose(short, 7, offsets)
    for expected, found in zip(
        proposer.propose(again, 7),
        proposer.propose([DraftInput(entry.cache, *one) for entry, one in zip(short, more, strict=True)], 7),
        strict=True,
    ):
        np.testing.assert_allclose(found.logprobs, expected.logprobs, atol=1e-4)


@pytest.mark.parametrize("offsets", [0, 6])
def test_offsets_that_a_head_does_not_have_are_refused(make_head: MakeHead, offsets: int) -> None:
    proposer = Proposer(make_head())
    with pytest.raises(InvalidArgument, match=f"must be between 1 and 5, got {offsets}"):
        proposer.propose([DraftInput(proposer.new_cache(), *session(1, 4))], 7, offsets)


def test_ties_go_to_the_smaller_target_id(make_head: MakeHead, make_proposer: MakeProposer) -> None:
    head = make_head(draft_vocab_size=10)
    head.lm_head.weight.zero_()  # every token gets the same logit
    target_ids = torch.tensor([90, 3, 41, 5, 6, 77, 8, 9, 20, 1])
    head.d2t.copy_(target_ids - torch.arange(10))
    proposer = make_proposer(head)
    (proposals,) = proposer.propose([DraftInput(proposer.new_cache(), *session(1, 4))], 4)
    for ids, logprobs in zip(proposals.token_ids, proposals.logprobs, strict=True):
        assert ids.tolist() == [1, 3, 5, 6]
        np.testing.assert_allclose(logprobs, -np.log(10), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_top_k_equals_a_sort_of_all_log_probabilities(
    make_head: MakeHead, make_proposer: MakeProposer, dtype: torch.dtype
) -> None:
    proposer = make_proposer(make_head().to(dtype))
    features, tokens = session(9, 14)
    logits = proposer.logits([DraftInput(proposer.new_cache(), features, tokens)])[0]
    (proposals,) = proposer.propose([DraftInput(proposer.new_cache(), features, tokens)], 1000)
    logprobs = torch.log_softmax(logits.float(), -1).numpy()
    for offset in range(5):
        ids, values = proposals.token_ids[offset], proposals.logprobs[offset]
        own = values[np.argsort(ids)]  # by id
        expected = sorted(range(97), key=lambda v, row=own: (-row[v], v))
        assert ids.tolist() == expected
        np.testing.assert_allclose(values, logprobs[offset][expected], rtol=0, atol=1e-6)
        if type(proposer) is Proposer:
            assert values.tolist() == logprobs[offset][expected].tolist()
        assert proposals.token_ids[offset].dtype == np.int32


@pytest.mark.parametrize(("levels", "within"), [(3, "all"), (19, "some"), (100_000, "none")])
def test_ranks_are_those_of_a_sort_however_many_values_tie(levels: int, within: str) -> None:
    generator = torch.Generator().manual_seed(levels)
    values = -torch.randint(1, levels, (2, 3, 300), generator=generator).float() / levels
    token_ids = torch.randperm(300, generator=generator)
    ranked = propose._ranked(values, token_ids, 10)
    ids, logprobs = ranked[..., :10].contiguous().view(torch.int32), ranked[..., 10:]
    last = logprobs[..., -1:]
    ties = (values == last).sum(-1) > 16
    assert {"all": ties.all(), "some": ties.any() != ties.all(), "none": not ties.any()}[within]
    for i in range(2):
        for j in range(3):
            order = sorted(range(300), key=lambda v, row=values[i, j]: (-float(row[v]), int(token_ids[v])))[:10]
            assert ids[i, j].tolist() == token_ids[order].tolist()
            assert logprobs[i, j].tolist() == values[i, j][order].tolist()


def test_wrong_input_names_the_session_and_the_shapes(make_head: MakeHead, make_proposer: MakeProposer) -> None:
    proposer = make_proposer(make_head())
    features, tokens = session(1, 4)
    good = DraftInput(proposer.new_cache(), features, tokens)
    for bad in (
        DraftInput(proposer.new_cache(), features[:0], tokens[:0]),
        DraftInput(proposer.new_cache(), features[:, :90], tokens),
        DraftInput(proposer.new_cache(), features, tokens[:3]),
    ):
        with pytest.raises(InvalidArgument, match=r"inputs\[1\].*\[m, 96\]"):
            proposer.propose([good, bad])
    with pytest.raises(InvalidArgument, match="top_k"):
        proposer.propose([good], 0)
    assert good.cache.length == 0


def test_where_loops_cannot_be_made_the_plain_way_drafts(
    make_head: MakeHead, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("numba", reason="without numba nothing is compiled")
    assert type(proposer_for(make_head())) is CompiledProposer
    assert type(proposer_for(make_head().to(torch.float16))) is Proposer  # no loops for this type

    def broken(*_: object) -> None:
        raise RuntimeError("no such processor")

    monkeypatch.setattr("dartspec.services.verifier.attention_loop.attention_loop", broken)
    assert type(proposer_for(make_head())) is Proposer
    assert "no such processor" in caplog.text


def test_sessions_with_and_without_a_coin_share_a_draft(make_head: MakeHead, make_proposer: MakeProposer) -> None:
    """In any order each gets what it gets alone."""
    proposer = make_proposer(make_head())
    data = [session(seed, length) for seed, length in ((1, 5), (2, 31), (3, 12), (4, 9))]
    coins = [None, Coin(7, 0.8, 40), None, Coin(8, 1.0, 41)]

    def drafts(chosen: list[int]) -> list[Proposals]:
        inputs = [DraftInput(proposer.new_cache(), *data[row], coins[row]) for row in chosen]
        return proposer.propose(inputs, 7)

    for order in ([0, 1, 2, 3], [3, 0, 1], [1, 3]):
        for row, together in zip(order, drafts(order), strict=True):
            (alone,) = drafts([row])
            assert np.array_equal(alone.token_ids, together.token_ids)
            np.testing.assert_allclose(alone.logprobs, together.logprobs, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transition_scores_come_with_the_candidates(
    make_head: MakeHead, make_proposer: MakeProposer, dtype: torch.dtype
) -> None:
    head = make_head(draft_vocab_size=30, transition_rank=3)
    chosen = torch.randperm(97, generator=torch.Generator().manual_seed(1))[:30].sort().values
    head.d2t.copy_(chosen - torch.arange(30))
    proposer = make_proposer(head.to(dtype))
    data = [session(seed, length) for seed, length in ((1, 5), (2, 31), (3, 12))]
    coins = [None, Coin(7, 0.8, 40), None]
    inputs = [DraftInput(proposer.new_cache(), *one, coin) for one, coin in zip(data, coins, strict=True)]
    assert head.transition is not None
    left, right = head.transition.left.double(), head.transition.right.double()
    for found in proposer.propose(inputs, 4):
        ids = [[chosen.tolist().index(token) for token in offset] for offset in found.token_ids]
        expected = [
            float(left[u] @ right[:, v]) for before, here in itertools.pairwise(ids) for u in before for v in here
        ]
        assert len(expected) == 4 * 4 * 4
        # They travel as bfloat16, with 8 significant bits.
        np.testing.assert_allclose(found.transition_scores, expected, rtol=2**-8, atol=1e-6)
    without = make_proposer(make_head())
    assert without.propose([DraftInput(without.new_cache(), *data[0])], 4)[0].transitions.size == 0
