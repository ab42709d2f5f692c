"""A head with packed weights: the same head, and the products of the plain one to rounding."""

from __future__ import annotations

import pytest
import torch

from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.verifier import linear
from dartspec.services.verifier.memory import Demand, Limits
from dartspec.services.verifier.packed_head import pack, packed_matrices
from dartspec.services.verifier.replica import head_fingerprint

from .tiny import CONTEXT, MAX_NODES, tiny_decoder

LIMITS = Limits(max_sessions=8, max_nodes=MAX_NODES, context_length=CONTEXT, measured_rows=257)
LAYERS = 9  # fc, q, k, v, o, gate, up, down, output


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_packed_products_are_those_of_the_plain_head(dtype: torch.dtype, tolerance: float) -> None:
    proposer = tiny_decoder(dtype=dtype).proposer
    assert proposer is not None
    head = proposer.head
    generator = torch.Generator().manual_seed(3)

    def logits() -> list[torch.Tensor]:
        generator.manual_seed(3)
        user = Proposer(head)
        caches, rounds = [user.new_cache() for _ in range(3)], []
        for counts in ((7, 1, 70), (2, 3, 1)):
            inputs = [
                DraftInput(
                    cache,
                    torch.randn(count, head.config.feature_width, generator=generator).to(dtype),
                    torch.randint(head.config.vocab_size, (count,), generator=generator),
                )
                for cache, count in zip(caches, counts, strict=True)
            ]
            rounds.append(user.logits(inputs))
        return rounds

    plain, fingerprint, names = logits(), head_fingerprint(head), list(head.state_dict())
    pack(head)
    assert len(packed_matrices(head)) in (0, LAYERS)  # none: this processor has no layout of its own
    for before, after in zip(plain, logits(), strict=True):
        torch.testing.assert_close(after, before, atol=tolerance, rtol=tolerance)
    assert head_fingerprint(head) == fingerprint
    assert list(head.state_dict()) == names


def test_what_packing_takes_is_counted() -> None:
    decoder = tiny_decoder()
    assert decoder.proposer is not None
    head = decoder.proposer.head
    before = Demand(decoder.target, head, LIMITS).at(0).head_weights
    pack(head)
    taken = sum(matrix.out_features * matrix.in_features * 4 for matrix in packed_matrices(head))
    assert Demand(decoder.target, head, LIMITS).at(0).head_weights == before + taken


def test_where_nothing_can_be_packed_the_head_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_pack", lambda weight: None)
    proposer = tiny_decoder().proposer
    assert proposer is not None
    layers = [module for module in proposer.head.modules() if isinstance(module, torch.nn.Linear)]
    pack(proposer.head)
    assert [module for module in proposer.head.modules() if isinstance(module, torch.nn.Linear)] == layers
    assert not packed_matrices(proposer.head)
