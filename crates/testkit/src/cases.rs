//! Large matrices: all of them in `make test-full`, a seeded sample in `make test`.

use std::io::Write as _;

/// Set by `cargo xtask test --full`.
pub const FULL: &str = "SYMPOZIUM_TEST_FULL";
/// The seed of the sample, to run another one, or one that failed again.
pub const SEED: &str = "SYMPOZIUM_TEST_SEED";

/// Whether whole matrices are asked for.
pub fn is_full() -> bool {
    std::env::var_os(FULL).is_some_and(|value| !value.is_empty())
}

/// The seed that decides what is sampled. The same for every run unless the environment says otherwise, so that a
/// change is to blame for a failure, and not the dice.
pub fn seed() -> u64 {
    std::env::var(SEED)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1)
}

/// All cases, or `count` of them that the seed picks, in their order.
pub fn sample<T>(all: Vec<T>, count: usize) -> Vec<T> {
    if is_full() || all.len() <= count {
        return all;
    }
    let _ = writeln!(
        std::io::stderr(),
        "running {count} of {} cases ({SEED}={}, {FULL}=1 for all)",
        all.len(),
        seed()
    );
    pick(all, count, seed())
}

/// Selection sampling: each case is taken with the chance that leaves exactly `count` at the end.
fn pick<T>(all: Vec<T>, count: usize, seed: u64) -> Vec<T> {
    let mut state = seed;
    let mut wanted = count;
    let mut left = all.len();
    let mut picked = Vec::with_capacity(count);
    for case in all {
        // SplitMix64, as in the probe: good enough to pick test cases, and needs no dependency.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        if mixed % (left as u64) < wanted as u64 {
            picked.push(case);
            wanted -= 1;
        }
        left -= 1;
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_its_size_its_order_and_follows_the_seed() {
        let all: Vec<u32> = (0..100).collect();
        let one = pick(all.clone(), 10, 1);
        assert_eq!(one.len(), 10);
        assert!(one.is_sorted());
        assert_eq!(one, pick(all.clone(), 10, 1));
        assert_ne!(one, pick(all, 10, 2));
    }
}
