//! The cost of admission: `make bench SUITE=admit`. One function measures each row of `bench/rows/admit.txt`.
//!
//! A ratio is measured in alternating rounds, ours and the reference one after the other, and its median counts: other
//! load of the machine affects both.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

#[path = "../shared/objects.rs"]
mod objects;
mod validate;

use std::hint::black_box;
use std::time::{Duration, Instant};

use objects::Objects;
use sympozium_plan::admit::{Decision, admit};
use sympozium_testkit::bench::{Suite, Target, median};

/// Decisions, or reads, in one round of one side.
const ROUND: u32 = 500;
const ROUNDS: usize = 31;

fn main() {
    let mut suite = Suite::new("admit");
    admission(&mut suite);
    validate::validation(&mut suite);
    let path = suite.write().expect("the rows can be written");
    println!("wrote {}", path.display());
}

/// A run with four skills, a policy and a floor, compared with reading the same objects.
fn admission(suite: &mut Suite) {
    let texts = objects::texts();
    let read = objects::read(&texts);
    decide(&read);
    let ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let ours = timed(|| decide(&read));
            let reading = timed(|| drop(black_box(objects::read(black_box(&texts)))));
            ours.as_secs_f64() / reading.as_secs_f64()
        })
        .collect();
    println!(
        "one decision takes {:?}, one reading {:?}",
        timed(|| decide(&read)) / ROUND,
        timed(|| drop(black_box(objects::read(&texts)))) / ROUND
    );
    suite.row(
        "admit of a run with four skills, against parsing the same objects from JSON",
        median(ratios),
        "x",
        Target::AtMost(1.0),
    );
}

fn timed(work: impl Fn()) -> Duration {
    let started = Instant::now();
    for _ in 0..ROUND {
        work();
    }
    started.elapsed()
}

/// Everything that a caller does when it has the objects.
fn decide(objects: &Objects) {
    objects.with_input(|input| {
        let decision = admit(black_box(input));
        assert!(matches!(decision, Decision::Admitted(_)), "{decision:?}");
        black_box(decision);
    });
}
