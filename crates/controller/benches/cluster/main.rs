//! What runs on a cluster cost the control plane: `make bench SUITE=cluster`. One function measures each row of
//! `bench/rows/cluster.txt`.
//!
//! The controller is an optimised build, beside a real API server on the same machine; kubelet and gateway are played. What
//! it is compared with, *raw*, is a loop that makes and deletes the very objects of such a run with the same client, as
//! many at a time as the controller works on. Sizes can be made smaller for a try: `SYMPOZIUM_BENCH_ROUNDS`, `…_ENDED`, `…_KILLED`,
//! `…_TOKENS`, `…_RUNS`, `…_IDLE_RUNS`, `…_IDLE_SECONDS`, `…_RETAINED`.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

mod harness;
mod latency;
mod many;
mod raw;
mod retained;
mod revocation;
mod run_observer;

use sympozium_testkit::bench::Suite;

use crate::harness::Harness;

#[tokio::main]
async fn main() {
    let mut suite = Suite::new("cluster");
    let mut harness = Harness::new().await;
    let template = raw::Template::learn(&harness).await;
    let empty = latency::idle(&mut suite, &harness, &template).await;
    revocation::end(&mut suite, &harness).await;
    many::at_once(&mut suite, &harness, &template).await;
    many::writes(&mut suite, &mut harness).await;
    retained::idle(&mut suite, &mut harness).await;
    retained::history(&mut suite, &mut harness, empty).await;
    let path = suite.write().expect("the rows can be written");
    println!("wrote {}", path.display());
}

/// A size: as many as the variable says, or the usual number.
fn size(name: &str, usual: usize) -> usize {
    let given = std::env::var(format!("SYMPOZIUM_BENCH_{name}"));
    given.ok().and_then(|it| it.parse().ok()).unwrap_or(usual)
}
