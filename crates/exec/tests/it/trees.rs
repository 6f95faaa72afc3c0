//! Whatever tree a command grows: when `run` returns, nothing of it lives.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use sympozium_testkit::cases;
use sympozium_testkit::processes::new_marker;

use crate::sandbox::{action, assert_gone, executor, profiles, run};

/// Trees per profile in `make test`; `make test-full` has [`ALL`].
const SAMPLE: u32 = 12;
const ALL: u32 = 500;

#[test]
fn no_descendant_outlives_its_command() {
    let cases = if cases::is_full() { ALL } else { SAMPLE };
    for profile in profiles() {
        let executor = executor(profile);
        let mut runner = TestRunner::new(Config {
            cases,
            failure_persistence: None,
            rng_seed: RngSeed::Fixed(cases::seed()),
            ..Config::default()
        });
        let tree = (any::<u32>(), prop::bool::ANY, 1u64..200, 0u64..100);
        runner
            .run(&tree, |(seed, stays, timeout, grace)| {
                let marker = new_marker();
                let seed = seed.to_string();
                let ending = if stays { "stay" } else { "exit" };
                let mut request = action(profile, &marker, ["fork-tree", &seed, "600", ending]);
                request.timeout = Duration::from_millis(timeout);
                request.grace = Duration::from_millis(grace);
                run(&executor, &request);
                assert_gone(&marker);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{profile}: {error}"));
    }
}
