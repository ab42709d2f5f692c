"""The noise: Philox as published, finite at both ends, the same for any subset, and independent of its neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dartspec.services.verifier.noise import (
    MAX_GUMBEL,
    gumbel,
    gumbel_of_bits,
    gumbel_once,
    noise_bits,
    philox,
    philox_once,
)

MASK = 0xFFFFFFFF


def naive_philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 in plain integers, after Salmon et al. (SC'11)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


# The known answers of Random123 (kat_vectors): counter, key, output.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_the_twin_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert naive_philox(counter, key) == expected


def words_of(counter: int, position: int, seed: int) -> list[int]:
    return [int(word[0]) for word in philox(np.array([counter], np.uint64), position, seed)]


def test_philox_equals_the_twin() -> None:
    assert words_of(0, 0, 0) == list(KNOWN[0][2])
    rng = np.random.default_rng(0)
    edges = [0, 1, 2**31, 2**32 - 1]
    for case in range(300):
        c, position = (int(v) for v in (rng.choice(edges, 2) if case < 20 else rng.integers(0, 2**32, 2)))
        seed = [0, 1, 2**32, 2**64 - 1, 2**63][case] if case < 5 else int(rng.integers(0, 2**64, dtype=np.uint64))
        expected = naive_philox((c, position, 0, 0), (seed & MASK, seed >> 32))
        assert words_of(c, position, seed) == list(expected)
        assert philox_once(c, position, seed) == expected


@pytest.mark.parametrize("count", [0, 1, 2, 4096])
def test_counters_do_not_mix(count: int) -> None:
    counters = np.random.default_rng(count).integers(0, 2**32, count)
    kept = counters.copy()
    words = np.stack(philox(counters, 2**31 + 5, 2**63 + 11), axis=-1)
    assert words.tolist() == [list(naive_philox((c, 2**31 + 5, 0, 0), (11, 2**31))) for c in counters.tolist()]
    assert np.array_equal(counters, kept)


def test_one_token_has_the_noise_that_it_has_among_many() -> None:
    tokens = np.arange(3, 400, 7)
    many = gumbel(tokens, 9, 2**40 + 1)
    assert [gumbel_once(token, 9, 2**40 + 1) for token in tokens.tolist()] == pytest.approx(many.tolist(), abs=1e-12)
    assert noise_bits(np.empty(0, np.int64), 9, 1).tolist() == []


def test_token_v_takes_lane_v_mod_4_of_block_v_div_4() -> None:
    for token in (0, 1, 2, 3, 4, 7, 151_935):
        lane = naive_philox((token // 4, 77, 0, 0), (5, 9))[token % 4]
        expected = -math.log(-math.log((lane + 0.5) / 2**32))
        assert gumbel(np.array([token]), 77, (9 << 32) + 5)[0] == pytest.approx(expected, abs=1e-13)


def test_both_extremes_of_u_are_finite() -> None:
    low, high = gumbel_of_bits(np.array([0, MASK], dtype=np.uint64))
    assert low == pytest.approx(-math.log(33 * math.log(2)), abs=1e-12)
    assert high == pytest.approx(33 * math.log(2), abs=1e-9)
    # The pruning of the argmax relies on this bound to the last bit.
    assert high <= MAX_GUMBEL
    assert pytest.approx(22.8738, abs=1e-4) == MAX_GUMBEL


def test_noise_grows_with_the_bits() -> None:
    bits = np.unique(
        np.concatenate([np.arange(100), np.linspace(0, MASK, 10_000).astype(np.uint64), MASK - np.arange(100)])
    )
    assert (np.diff(gumbel_of_bits(bits.astype(np.uint64))) > 0).all()


def test_a_subset_in_any_order_has_the_noise_of_the_whole() -> None:
    rng = np.random.default_rng(1)
    whole = gumbel(np.arange(5000), 12, 99)
    for size in (0, 1, 2, 500, 5000):
        some = rng.permutation(5000)[:size]
        assert np.array_equal(gumbel(some, 12, 99), whole[some])
    repeated = np.array([7, 7, 4, 7])
    assert np.array_equal(gumbel(repeated, 12, 99), whole[repeated])


def test_moments_are_those_of_the_gumbel_law() -> None:
    samples = gumbel(np.arange(1_000_000), 3, 2024)
    sigma = math.pi / math.sqrt(6)
    assert samples.mean() == pytest.approx(np.euler_gamma, abs=4.5 * sigma / 1000)
    # Excess kurtosis 12/5 gives the variance of the sample variance, (kurtosis - 1) sigma^4 / n.
    assert samples.var() == pytest.approx(sigma**2, abs=4.5 * sigma**2 * math.sqrt(4.4) / 1000)
    skew = (((samples - samples.mean()) / samples.std()) ** 3).mean()
    assert skew == pytest.approx(1.13955, abs=0.05)


COUNT = 100_000
# Correlations of independent samples have deviation 1/sqrt(COUNT); 4.5 of them are passed once in 150,000.
BOUND = 4.5 / math.sqrt(COUNT)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def test_neighbours_are_independent() -> None:
    tokens = np.arange(COUNT)
    base = gumbel(tokens, 1000, 31)
    others = {
        "next position": gumbel(tokens, 1001, 31),
        "position 2^16 on": gumbel(tokens, 1000 + 2**16, 31),
        "next seed": gumbel(tokens, 1000, 32),
        "seed 2^32 on": gumbel(tokens, 1000, 31 + 2**32),
        "next token": gumbel(tokens + 1, 1000, 31),
        "next block": gumbel(tokens + 4, 1000, 31),
        "position and seed exchanged": gumbel(tokens, 31, 1000),
    }
    for name, other in others.items():
        assert abs(correlation(base, other)) < BOUND, name
        assert abs(correlation(base**2, other**2)) < BOUND, name


def test_along_positions_and_seeds_noise_is_independent() -> None:
    along_positions = np.array([philox_once(2, position, 5) for position in range(8_000)])
    along_seeds = np.array([philox_once(2, 5, seed) for seed in range(8_000)])
    bound = 4.5 / math.sqrt(8_000)
    for rows in (along_positions, along_seeds):
        u = rows / 2.0**32
        for lane in range(4):
            assert abs(correlation(u[:-1, lane], u[1:, lane])) < bound
            assert abs(correlation(u[:, lane], u[:, (lane + 1) % 4])) < bound


def test_a_token_at_another_position_has_other_noise() -> None:
    tokens = np.arange(64)
    rows = np.stack([gumbel(tokens, position, seed) for position in range(50) for seed in range(20)])
    assert len(np.unique(rows)) > 0.9999 * rows.size
