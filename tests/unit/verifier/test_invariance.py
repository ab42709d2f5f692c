"""The search for a block of rows, and the decision whether it is worth its price."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dartspec.services.verifier import invariance
from dartspec.services.verifier.linear import TILE_ROWS, linear
from dartspec.services.verifier.target import Target

from .tiny import tiny_decoder


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_decoder().target


def test_the_block_that_is_found_makes_rows_independent_of_company(target: Target) -> None:
    block = invariance.smallest_row_block(target)
    for weight in (target.layers[0].gate_up, target.lm_head):
        x = torch.randn(150, weight.shape[1])
        full = linear(x, weight, None, block)
        for rows in (1, 2, 3, 5, 17, 63, 64, 65, 100):
            assert torch.equal(linear(x[:rows], weight, None, block), full[:rows])


def test_a_kernel_that_changes_with_the_number_of_rows_is_noticed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fickle(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return x @ weight.T + (0.0 if x.shape[0] % 16 == 0 else 1e-6)

    monkeypatch.setattr(F, "linear", fickle)
    assert invariance.smallest_row_block(target) == 16
    monkeypatch.setattr(F, "linear", lambda x, weight, bias=None: x @ weight.T + x.shape[0])
    assert invariance.smallest_row_block(target) == TILE_ROWS


@pytest.mark.parametrize(
    ("choice", "extra", "on"), [("auto", 0.02, True), ("auto", 0.05, False), ("on", 9.0, True), ("off", 0.0, False)]
)
def test_the_price_decides(target: Target, choice: str, extra: float, on: bool) -> None:
    try:
        invariance.settle(target, choice, lambda: 10.0 * (1.0 + extra * target.invariant))
        assert target.invariant is on
    finally:
        target.row_block = 0
