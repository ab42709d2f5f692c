"""What compiled loops are made of: every piece once, bfloat16 as torch rounds it, exp to the last bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

numba = pytest.importorskip("numba", reason="without numba nothing is compiled")

from dartspec.services.verifier import loops  # noqa: E402
from dartspec.services.verifier.vector_code import lanes  # noqa: E402


@numba.njit(error_model="numpy", fastmath=loops.FAST)
def stored_all(values: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(values)):
        out[i] = loops.stored(values[i], np.uint16)


@numba.njit(error_model="numpy", fastmath=loops.FAST)
def widened_all(values: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(values)):
        out[i] = loops.widened(values[i])


@numba.njit(error_model="numpy", fastmath=loops.FAST)
def exp_all(values: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(values)):
        out[i] = loops.exp(values[i])


def counting(block):  # type: ignore[no-untyped-def]
    """Adds one to each piece's place."""
    (at,) = loops.numbers(block, 1, loops.SOURCES)
    while True:
        piece = loops.take(block)
        if piece < 0:
            return
        numba.carray(loops.pointer(at + 8 * piece), 1, np.int64)[0] += 1


@pytest.mark.parametrize("operations", [1, 1 << 20, 1 << 23])
@pytest.mark.parametrize("pieces", [0, 1, 2, 1000])
def test_every_piece_is_done_once(pieces: int, operations: int) -> None:
    loop = loops.Loop(counting)
    done = np.zeros(pieces + 1, np.int64)
    for _ in range(50):
        loop(pieces, operations, done.ctypes.data)
    assert done.tolist() == [50] * pieces + [0]


def test_torchs_own_threads_are_found_on_linux() -> None:
    if loops._MAPS.exists():
        assert loops._shared() is not None


def test_of_several_libraries_torchs_own_is_taken() -> None:
    torchs, other = "/env/site packages/torch/lib/libgomp.so.1", "/env/site packages/other.libs/libgomp-abc.so.1"
    beside, directory = "/env/site packages/torch.libs/libgomp-def.so.1", Path("/env/site packages/torch")
    assert loops._torchs([other, torchs], directory) == torchs
    assert loops._torchs([other, beside], directory) == beside
    assert loops._torchs([other], directory) == other
    assert loops._torchs([], directory) is None
    assert loops._torchs([other, "/usr/lib/libgomp.so.1"], directory) is None


def test_without_them_a_loop_runs_in_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_shared", lambda: None)
    done = np.zeros(100, np.int64)
    for operations in (1 << 20, 1 << 23):
        loops.Loop(counting)(100, operations, done.ctypes.data)
    assert done.tolist() == [2] * 100


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    ties = (rng.integers(0, 1 << 16, 50_000).astype(np.uint32) << 16) | np.uint32(0x8000)
    values = np.concatenate([bits, ties]).view(np.float32)
    values = values[~np.isnan(values)]
    got = np.empty(len(values), np.uint16)
    stored_all(values, got)
    expected = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    assert (got == expected).all()
    back = np.empty(len(values), np.float32)
    widened_all(got, back)
    assert (back == torch.from_numpy(got).view(torch.bfloat16).float().numpy()).all()


def test_exp_is_right_to_the_last_bits() -> None:
    values = np.concatenate([np.linspace(-87, 88, 400_001), [0.0, -0.0, 1e-20]]).astype(np.float32)
    got = np.empty_like(values)
    exp_all(values, got)
    exact = np.exp(values.astype(np.float64))
    assert float(np.abs(got / exact - 1).max()) < 3 * 2.0**-23
    assert got[-3:].tolist() == [1.0, 1.0, 1.0]
    ends = np.array([-np.inf, -1e30, 1e30], np.float32)
    exp_all(ends, got)
    assert 0 <= got[0] < 1e-37
    assert 0 <= got[1] < 1e-37
    assert got[2] > 1e38


@pytest.mark.parametrize(
    ("size", "dtype", "expected"),
    [
        (128, torch.bfloat16, 16),
        (64, torch.bfloat16, 16),
        (8, torch.bfloat16, 4),
        (6, torch.bfloat16, 1),
        (7, torch.bfloat16, 0),
        (64, torch.float32, 16),
        (22, torch.float32, 2),
        (7, torch.float32, 1),
    ],
)
def test_vectors_fit_the_heads(size: int, dtype: torch.dtype, expected: int) -> None:
    assert lanes(size, dtype) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "wanted"), [(1, 1), (50, 50), (64, 3), (1000, 25), (1000, 1)])
def test_the_likeliest_are_those_of_a_sort_however_many_tie(vocab: int, wanted: int, dtype: torch.dtype) -> None:
    from dartspec.services.verifier.top_loop import top_loop

    torch.manual_seed(vocab + wanted)
    loop = top_loop(dtype)
    for levels in (2, 30, 0):
        logits = 3 * torch.randn(4, vocab)
        logits = (logits * levels).round() / levels if levels else logits
        logits = logits.to(dtype)
        target_ids = torch.randperm(2 * vocab)[:vocab]
        ids, logprobs = np.full((4, wanted), -1, np.int32), np.zeros((4, wanted), np.float32)
        addresses = (logits.data_ptr(), target_ids.data_ptr(), ids.ctypes.data, logprobs.ctypes.data)
        loop(4, 8 * logits.numel(), vocab, wanted, *addresses)
        exact = torch.log_softmax(logits.double(), -1)
        for row in range(4):
            order = sorted(range(vocab), key=lambda v, row=row: (-float(logits[row, v]), int(target_ids[v])))[:wanted]
            assert ids[row].tolist() == target_ids[order].tolist()
            np.testing.assert_allclose(logprobs[row], exact[row, order], rtol=0, atol=3e-6)
