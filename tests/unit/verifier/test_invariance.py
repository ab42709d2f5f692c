"""The search for a block of rows, and the decision whether it is worth its price."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from dartspec.services.verifier import invariance
from dartspec.services.verifier import linear as linear_module
from dartspec.services.verifier import target as target_module
from dartspec.services.verifier.linear import TILE_ROWS, Matrix, linear
from dartspec.services.verifier.target import Target

from .tiny import tiny_decoder


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_decoder().target


def test_the_block_that_is_found_makes_rows_independent_of_company(target: Target) -> None:
    block = invariance.smallest_row_block(target)
    for weight in (target.layers[0].gate_up, target.lm_head):
        x = torch.randn(150, weight.in_features)
        full = linear(x, weight, None, block)
        for rows in (1, 2, 3, 5, 17, 63, 64, 65, 100):
            assert torch.equal(linear(x[:rows], weight, None, block), full[:rows])


def test_a_kernel_that_changes_with_the_number_of_rows_is_noticed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(period: int) -> Callable[..., torch.Tensor]:
        def product(weight: Matrix, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return torch.zeros(len(x), weight.out_features) + (0.0 if len(x) % period == 0 else 1.0)

        return product

    # Up to 64 rows, a period of 48 tells 48 rows from all others, and blocks of 32 never make 48.
    for period, block in ((1, 1), (4, 4), (16, 16), (48, 32), (TILE_ROWS, TILE_ROWS)):
        monkeypatch.setattr(Matrix, "__call__", kernel(period))
        assert invariance.smallest_row_block(target) == block


@pytest.mark.parametrize("rows", [1, 2])
def test_a_pass_that_changes_with_its_number_of_rows_is_noticed(
    target: Target, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Though every product by itself holds: with a lone row, and with one row of each of two sessions."""
    monkeypatch.setattr(target, "row_block", invariance.smallest_row_block(target))
    assert target.row_block < TILE_ROWS
    assert invariance.passes_agree(target)
    rotate = target_module.rotate

    def company(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned = rotate(x, cos, sin)
        return turned * (1 + 1e-6) if len(x) == rows else turned

    monkeypatch.setattr(target_module, "rotate", company)
    assert not invariance.passes_agree(target)
    assert invariance.smallest_row_block(target) == TILE_ROWS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33])
def test_a_packed_weight_gives_the_plain_product(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(rows)
    weight, x, bias = torch.randn(96, 80), torch.randn(rows, 80), torch.randn(96)
    exact = x.double() @ weight.double().T + bias.double()
    got = Matrix(weight.to(dtype))(x.to(dtype), bias.to(dtype)).double()
    tolerance = 1e-4 if dtype is torch.float32 else 0.3
    torch.testing.assert_close(got, exact, atol=tolerance, rtol=0)


def test_a_weight_without_packed_layout_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_module, "_pack", lambda weight: None)
    weight, x = torch.randn(5, 3), torch.randn(4, 3)
    assert torch.equal(Matrix(weight)(x), F.linear(x, weight))


@pytest.mark.parametrize(
    ("choice", "extra", "on"), [("auto", 0.02, True), ("auto", 0.05, False), ("on", 9.0, True), ("off", 0.0, False)]
)
def test_the_price_decides(target: Target, choice: str, extra: float, on: bool) -> None:
    try:
        invariance.settle(target, choice, lambda: 10.0 * (1.0 + extra * target.invariant))
        assert target.invariant is on
    finally:
        target.row_block = 0
