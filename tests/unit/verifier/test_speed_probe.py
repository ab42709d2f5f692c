"""The probe that `dartspec doctor` runs ends on any processor."""

from __future__ import annotations

import itertools

import pytest
import torch

from dartspec.services.verifier import probe

OPERATIONS = 2 * probe.ROWS * probe.SIZE**2


@pytest.mark.parametrize(("seconds", "products"), [(0.001, probe.WARM_UP + probe.REPEATS), (0.4, 3), (7.0, 1)])
def test_slow_products_are_not_repeated(monkeypatch: pytest.MonkeyPatch, seconds: float, products: int) -> None:
    asked = []
    readings = itertools.count()

    def clock() -> float:  # read before and after each product
        asked.append(None)
        return next(readings) * seconds

    monkeypatch.setattr(probe.time, "perf_counter", clock)
    gflops = probe.multiply_gflops(torch.float32, torch.device("cpu"))
    assert len(asked) == 2 * products
    assert gflops == pytest.approx(OPERATIONS / seconds / 1e9)
