//! The cost of planning, rendering and explaining: `make bench SUITE=plan`. One function measures each row of
//! `bench/rows/plan.txt`.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

#[path = "../shared/objects.rs"]
mod objects;

use std::hint::black_box;
use std::time::{Duration, Instant};

use sympozium_plan::admit::{Admitted, Decision, Input, admit};
use sympozium_plan::plan::{PlanSettings, plan};
use sympozium_plan::render::{RenderSettings, render};
use sympozium_testkit::bench::raw::{against_true, c_string};
use sympozium_testkit::bench::{Suite, Target, median};
use sympozium_testkit::static_build;

/// Plans, or reads, in one round of one side.
const ROUND: u32 = 200;
const ROUNDS: usize = 31;

fn main() {
    let mut suite = Suite::new("plan");
    planning(&mut suite);
    explaining(&mut suite);
    let path = suite.write().expect("the rows can be written");
    println!("wrote {}", path.display());
}

/// Plan and objects of a run with four skills, as a duration and compared with reading the same objects from JSON.
fn planning(suite: &mut Suite) {
    let texts = objects::texts();
    let read = objects::read(&texts);
    read.with_input(|input| {
        let Decision::Admitted(admitted) = admit(input) else {
            panic!("the run is admitted");
        };
        make(input, &admitted);
        let rounds: Vec<(f64, f64)> = (0..ROUNDS)
            .map(|_| {
                let ours = timed(|| make(input, &admitted));
                let reading = timed(|| drop(black_box(objects::read(black_box(&texts)))));
                (ours.as_secs_f64() * 1e3 / f64::from(ROUND), ours.as_secs_f64() / reading.as_secs_f64())
            })
            .collect();
        suite.row(
            "plan and render of a run with four skills",
            median(rounds.iter().map(|(time, _)| *time).collect()),
            "ms",
            Target::AtMost(1.0),
        );
        suite.row(
            "the same, against parsing the objects from JSON",
            median(rounds.iter().map(|(_, ratio)| *ratio).collect()),
            "x",
            Target::AtMost(5.0),
        );
    });
}

fn make(input: &Input<'_>, admitted: &Admitted<'_>) {
    let planned = plan(input, admitted, &PlanSettings::default()).expect("a plan");
    let rendered = render(&planned.plan, &planned.texts, &RenderSettings::default());
    black_box(rendered.expect("objects"));
}

fn timed(work: impl Fn()) -> Duration {
    let started = Instant::now();
    for _ in 0..ROUND {
        work();
    }
    started.elapsed()
}

/// `sympozium explain` as a whole process, compared with starting `/bin/true`.
fn explaining(suite: &mut Suite) {
    // As it ships: a static binary.
    let program = static_build::shipped("sympozium").expect("it can be built static");
    let sample = static_build::workspace_root().join("config/samples/on-call.yaml");
    let sample = c_string(&sample);
    for (name, arguments) in [
        ("as text", &[c"explain", sample.as_c_str()][..]),
        ("as JSON", &[c"explain", c"-o", c"json", sample.as_c_str()][..]),
    ] {
        suite.row(
            &format!("sympozium explain of a run with three packs, {name}, whole process"),
            against_true(&program, arguments),
            "x /bin/true",
            Target::AtMost(10.0),
        );
    }
}
