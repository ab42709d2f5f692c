"""The head against outputs of the public reference implementation."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dartspec.services.draft.checkpoint import load_head
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.verifier.compiled_proposer import CompiledProposer

FIXTURE = Path(__file__).resolve().parents[4] / "shared" / "fixtures" / "draft_head"
pytestmark = pytest.mark.skipif(not FIXTURE.is_dir(), reason="reference fixtures are not here")


@pytest.fixture(params=[Proposer, CompiledProposer])
def proposer(request: pytest.FixtureRequest, target: TargetInfo) -> Proposer:
    if request.param is CompiledProposer:
        pytest.importorskip("numba", reason="without numba nothing is compiled")
    weights = load_file(FIXTURE / "model.safetensors")
    target = dataclasses.replace(target, embedding=weights["embed_tokens.weight"])
    return request.param(load_head(FIXTURE, target))


@pytest.mark.parametrize("chunks", [(9,), (4, 5), (1,) * 9, (8, 1)])
def test_hidden_states_and_logits_equal_the_reference(proposer: Proposer, chunks: tuple[int, ...]) -> None:
    case = load_file(FIXTURE / "case.safetensors")
    features, tokens = case["features"][0].split(chunks), case["next_tokens"][0].split(chunks)
    cache = proposer.new_cache()
    for part, following in zip(features[:-1], tokens[:-1], strict=True):
        proposer.append([DraftInput(cache, part, following)])
    hidden = proposer._hidden([DraftInput(cache, features[-1], tokens[-1])])
    torch.testing.assert_close(hidden, case["hidden"][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(proposer.head.logits(hidden), case["logits"][0], rtol=0, atol=1e-5)


def test_proposals_are_the_reference_logits_sorted_and_mapped_by_d2t(proposer: Proposer) -> None:
    case = load_file(FIXTURE / "case.safetensors")
    (proposals,) = proposer.propose([DraftInput(proposer.new_cache(), case["features"][0], case["next_tokens"][0])], 10)
    d2t = load_file(FIXTURE / "model.safetensors")["d2t"].numpy()
    assert proposals.depth == 8
    for offset, logits in enumerate(case["logits"][0].double().numpy()):
        logprobs = logits - np.log(np.exp(logits).sum())
        best = np.argsort(-logprobs)[:10]
        assert proposals.token_ids[offset].tolist() == (best + d2t[best]).tolist()
        np.testing.assert_allclose(proposals.logprobs[offset], logprobs[best], atol=2e-5)
