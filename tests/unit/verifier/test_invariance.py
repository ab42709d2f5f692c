"""The search for a block of rows, and the decision whether it is worth its price."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from dartspec.services.verifier import invariance
from dartspec.services.verifier import linear as linear_module
from dartspec.services.verifier import target as target_module
from dartspec.services.verifier.linear import ONE_SHAPE, Matrix, Rows, linear
from dartspec.services.verifier.target import Target

from .tiny import tiny_decoder


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_decoder().target


def test_what_is_found_makes_rows_independent_of_company(target: Target) -> None:
    found = invariance.invariant_rows(target)
    for weight in (target.layers[0].gate_up, target.lm_head):
        x = torch.randn(150, weight.in_features)
        full = linear(x, weight, None, found)
        for rows in (1, 2, 3, 5, 17, 63, 64, 65, 100):
            assert torch.equal(linear(x[:rows], weight, None, found), full[:rows])


def test_a_kernel_that_changes_with_the_number_of_rows_is_noticed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernel(kind: Callable[[int], bool]) -> Callable[..., torch.Tensor]:
        def product(weight: Matrix, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return torch.zeros(len(x), weight.out_features) + float(kind(len(x)))

        return product

    kinds: list[tuple[Callable[[int], bool], Rows]] = [
        (lambda rows: False, Rows(1, 64)),
        (lambda rows: rows > 32, Rows(1, 32)),
        (lambda rows: rows > 33, Rows(1, 32)),
        (lambda rows: rows > 32 or rows % 4 != 0, Rows(4, 32)),
        (lambda rows: rows % 4 != 0, Rows(4, 64)),
        (lambda rows: rows < 8, Rows(8, 64)),
        (lambda rows: rows % 16 != 0, Rows(16, 64)),
        # Blocks of 32 never make 48.
        (lambda rows: rows % 48 == 0, Rows(1, 32)),
        (lambda rows: rows % 48 == 0 or rows < 32, Rows(32, 64)),
        (lambda rows: rows == 64, Rows(1, 32)),
        (lambda rows: rows == 32, ONE_SHAPE),
    ]
    for kind, expected in kinds:
        monkeypatch.setattr(Matrix, "__call__", kernel(kind))
        assert invariance.invariant_rows(target) == expected


def test_a_kernel_that_changes_with_the_place_of_a_row_is_noticed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = Matrix.__call__

    def uneven(weight: Matrix, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out = product(weight, x, bias)
        out[-1] *= 1 + 1e-6  # as kernels may that have another loop for what is left
        return out

    monkeypatch.setattr(Matrix, "__call__", uneven)
    assert invariance.invariant_rows(target) == ONE_SHAPE


@pytest.mark.parametrize("rows", [1, 2])
def test_a_pass_that_changes_with_its_number_of_rows_is_noticed(
    target: Target, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Though every product by itself holds: with a lone row, and with one row of each of two sessions."""
    monkeypatch.setattr(target, "fast", None)
    monkeypatch.setattr(target, "rows", invariance.invariant_rows(target))
    assert target.rows != ONE_SHAPE
    assert invariance.passes_agree(target)
    rotate = target_module.rotate

    def company(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned = rotate(x, cos, sin)
        return turned * (1 + 1e-6) if len(x) == rows else turned

    monkeypatch.setattr(target_module, "rotate", company)
    assert not invariance.passes_agree(target)
    assert invariance.invariant_rows(target) == ONE_SHAPE


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
    ("choice", "few", "many", "on"),
    [
        ("auto", 0.02, 0.02, True),
        ("auto", 0.05, 0.0, False),
        ("auto", 0.0, 0.05, False),
        ("on", 9.0, 9.0, True),
        ("off", 0.0, 0.0, False),
    ],
)
def test_the_price_decides(target: Target, choice: str, few: float, many: float, on: bool) -> None:
    def pass_ms(rows: int) -> float:
        return 10.0 * rows * (1.0 + (few if rows == 1 else many) * target.invariant)

    try:
        invariance.settle(target, choice, pass_ms)
        assert target.invariant is on
    finally:
        target.rows = None
