//! Large matrices: all of them in `make test-full`, a seeded sample in `make test`.

use std::cell::Cell;
use std::io::Write as _;
use std::sync::Once;

/// Set by `cargo xtask test --full`.
pub const FULL: &str = "SYMPOZIUM_TEST_FULL";
/// The seed of the sample, to run another one, or one that failed again.
pub const SEED: &str = "SYMPOZIUM_TEST_SEED";

/// Whether whole matrices are asked for.
pub fn is_full() -> bool {
    std::env::var_os(FULL).is_some_and(|value| !value.is_empty())
}

/// The seed that decides what is sampled. `cargo xtask test` derives it from the commit, so that each change tries another
/// sample and the same change tries the same; without that it is always the same one.
///
/// # Panics
///
/// When the environment has one that is not a number: another sample would look like the requested one.
pub fn seed() -> u64 {
    match std::env::var(SEED) {
        Err(_) => 1,
        Ok(text) => match text.parse() {
            Ok(seed) => seed,
            Err(_) => panic!("{SEED} must be a number, and is {text:?}"),
        },
    }
}

/// All cases, or `count` of them that the seed picks, in their order.
///
/// A sample is announced with its seed on standard error, which harnesses do not capture, and a test that panics after it says
/// how to repeat it.
pub fn sample<T>(all: Vec<T>, count: usize) -> Vec<T> {
    if is_full() || all.len() <= count {
        return all;
    }
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    let _ = writeln!(
        std::io::stderr(),
        "sample: {count} of {} cases, {test} ({SEED}={}, {FULL}=1 for all)",
        all.len(),
        seed()
    );
    announce_on_panic();
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    SAMPLED.set(Some(repeat_command(&package, test)));
    pick(all, count, seed())
}

/// The command that runs one test of a package with the same sample again.
pub fn repeat_command(package: &str, test: &str) -> String {
    let (name, value) = if is_full() { (FULL, 1) } else { (SEED, seed()) };
    format!("{name}={value} cargo test --package {package} --test it -- --exact {test}")
}

thread_local! {
    /// How to repeat the test of this thread, once it has taken a sample.
    static SAMPLED: Cell<Option<String>> = const { Cell::new(None) };
}

/// Has the message of a panic followed by the command, where the thread that panics has taken a sample.
fn announce_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            if let Ok(Some(command)) = SAMPLED.try_with(Cell::take) {
                eprintln!("this was a sample; repeat it with: {command}");
            }
        }));
    });
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

    #[test]
    fn a_sample_can_be_repeated_by_the_command_that_it_names() {
        let command = repeat_command("sympozium-exec", "killed::at_any_moment");
        let behind = "cargo test --package sympozium-exec --test it -- --exact killed::at_any_moment";
        let name = if is_full() { FULL } else { SEED };
        assert!(command.starts_with(&format!("{name}=")), "{command}");
        assert!(command.ends_with(behind), "{command}");
    }
}
