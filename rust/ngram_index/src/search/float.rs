//! Natural logarithm and exponential in plain f32 arithmetic: the same bits on every machine, in loops that compilers turn
//! into vector instructions. Nothing here fuses a multiplication with an addition or asks the platform for a function.

/// Values that loops work on together; rows are padded to a multiple.
pub(super) const LANES: usize = 8;

const LN_2_HIGH: f32 = 0.693_359_4; // few bits, so that products with small integers are exact
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// The square root of 1/2: mantissas are taken from [this, 2 · this).
const SQRT_HALF: i32 = 0x3F35_04F3;
/// Adding it rounds to an integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;
/// Smallest exponent with a normal result.
const EXP_MIN: f32 = -87.0;
const EXP_MAX: f32 = 88.0;

/// ln x with a relative error below 1.5e-7; what is below the smallest normal number counts as that.
#[inline(always)]
pub(super) fn ln(x: f32) -> f32 {
    let bits = (if x > f32::MIN_POSITIVE { x } else { f32::MIN_POSITIVE }).to_bits() as i32;
    let exponent = (bits - SQRT_HALF) >> 23;
    let f = f32::from_bits((bits - (exponent << 23)) as u32) - 1.0;
    let exponent = exponent as f32;
    // (ln(1 + f) - f + f² / 2) / f³, least largest relative error of the whole on the interval.
    let mut p = -0.076_344_93;
    for coefficient in [
        0.127_615_75,
        -0.131_601_84,
        0.142_017_59,
        -0.166_233_57,
        0.200_012_27,
        -0.250_008_2,
        0.333_333_3,
    ] {
        p = p * f + coefficient;
    }
    let square = f * f;
    let small = p * f * square + exponent * LN_2_LOW - 0.5 * square;
    (f + small) + exponent * LN_2_HIGH
}

/// e^x with a relative error below 1.5e-7, at most 1 for x of 0 or less; x is clamped to [-87, 88].
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = if x > EXP_MIN { x } else { EXP_MIN };
    let x = if x < EXP_MAX { x } else { EXP_MAX };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let power = (rounded.to_bits() << 23).wrapping_add(127 << 23);
    let n = rounded - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    // (e^r - 1 - r) / r²
    let mut p = 0.001_381_459_9;
    for coefficient in [0.008_368_717, 0.041_668_39, 0.166_665_21, 0.499_999_94] {
        p = p * r + coefficient;
    }
    (1.0 + (r + p * (r * r))) * f32::from_bits(power)
}

/// Replace each value of a padded row. Closures own what they use, and this is not inlined: else compilers see stores that
/// might change what the closure reads, and give vectors up.
#[inline(never)]
pub(super) fn map(row: &mut [f32], f: impl Fn(f32) -> f32) {
    for block in row.as_chunks_mut::<LANES>().0 {
        for value in block {
            *value = f(*value);
        }
    }
}

/// Replace each value of a padded row by a function of it and the value beside it in another one.
#[inline(never)]
pub(super) fn zip(row: &mut [f32], other: &[f32], f: impl Fn(f32, f32) -> f32) {
    for (block, beside) in row.as_chunks_mut::<LANES>().0.iter_mut().zip(other.as_chunks::<LANES>().0) {
        for (value, other) in block.iter_mut().zip(beside) {
            *value = f(*value, *other);
        }
    }
}

/// The largest of a padded row; -inf if it is empty.
#[inline]
pub(super) fn max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for block in row.as_chunks::<LANES>().0 {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// The sum of a padded row, always in the same order.
#[inline]
pub(super) fn sum(row: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for block in row.as_chunks::<LANES>().0 {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane += *value;
        }
    }
    lanes.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Largest relative error over a grid of every 997th float of a range, ends included.
    fn error(low: f32, high: f32, ours: fn(f32) -> f32, exact: fn(f64) -> f64) -> f64 {
        let (mut worst, mut at) = (0.0_f64, low);
        while at <= high {
            let expected = exact(f64::from(at));
            if expected != 0.0 {
                worst = worst.max((f64::from(ours(at)) / expected - 1.0).abs());
            }
            at = f32::from_bits(at.to_bits() + 997);
        }
        worst
    }

    #[test]
    fn ln_is_close() {
        let worst = error(f32::MIN_POSITIVE, f32::MAX / 2.0, ln, f64::ln);
        assert!(worst < 1.5e-7, "{worst}");
        let near_one = error(0.99, 1.01, ln, f64::ln);
        assert!(near_one < 1.5e-7, "{near_one}");
    }

    #[test]
    fn exp_is_close() {
        let positive = error(f32::MIN_POSITIVE, 88.0, exp, f64::exp);
        let negative = error(f32::MIN_POSITIVE, 87.0, |x| exp(-x), |x| (-x).exp());
        assert!(positive < 1.5e-7, "{positive}");
        assert!(negative < 1.5e-7, "{negative}");
    }

    #[test]
    fn the_ends() {
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(ln(0.0), ln(f32::MIN_POSITIVE));
        assert!((f64::from(ln(0.0)) + 87.336_544_750_4).abs() < 1e-5);
        assert_eq!(exp(f32::MIN), exp(-87.0));
        assert!(exp(f32::MIN) >= f32::MIN_POSITIVE);
        assert!(exp(f32::MAX).is_finite());
    }

    #[test]
    fn exp_of_nothing_positive_is_at_most_one() {
        let mut at = -0.0_f32;
        while at > -100.0 {
            let value = exp(at);
            assert!(value > 0.0 && value <= 1.0, "{at} {value}");
            at = f32::from_bits(at.to_bits() + 997);
        }
    }

    /// Compilers may turn the loops into vector instructions of any width; the values may not change.
    #[test]
    fn rows_equal_single_values() {
        let mut row: Vec<f32> = (0..4096).map(|i| (i as f32 * 0.37).sin().abs() * 1e-3 + 1e-10).collect();
        let expected: Vec<u32> = row.iter().map(|x| exp(ln(*x)).to_bits()).collect();
        map(&mut row, |x| exp(ln(x)));
        assert_eq!(row.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn sums_and_maxima() {
        let row: Vec<f32> = (0..32).map(|i| ((i * 7) % 32) as f32).collect();
        assert_eq!((sum(&row), max(&row)), (496.0, 31.0));
        assert_eq!((sum(&[]), max(&[])), (0.0, f32::NEG_INFINITY));
    }
}
