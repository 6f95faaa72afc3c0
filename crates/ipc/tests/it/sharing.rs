//! Several executors on one volume, in any order and at the same time; each request runs at most once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use sympozium_ipc::{AbandonedClaim, Arrival, Claim, ExecRequest, ExecResult, Inbox, Requester, WatchMode};

use crate::fixture::{Fixture, id, ok, pull};

const REQUESTS: u64 = 5;

#[derive(Debug, Clone, Copy)]
enum Step {
    Submit(u64),
    Pull(usize),
    Answer(usize),
    Crash(usize),
    Take(u64),
    Withdraw(u64),
}

fn steps(with_crashes: bool) -> impl Strategy<Value = Vec<Step>> {
    let crash = u32::from(with_crashes);
    let step = prop_oneof![
        3 => (0..REQUESTS).prop_map(Step::Submit),
        5 => (0..2_usize).prop_map(Step::Pull),
        4 => (0..2_usize).prop_map(Step::Answer),
        2 * crash => (0..2_usize).prop_map(Step::Crash),
        2 => (0..REQUESTS).prop_map(Step::Take),
        1 - crash => (0..REQUESTS).prop_map(Step::Withdraw),
    ];
    vec(step, 0..40)
}

enum HeldClaim {
    Run(Claim),
    Report(AbandonedClaim),
}

struct Executor {
    inbox: Inbox,
    held: Vec<HeldClaim>,
}

/// The world of one case: two executors, a requester, and what has happened so far.
struct Harness {
    fixture: Fixture,
    requester: Requester,
    executors: [Executor; 2],
    impatient: bool,
    runs: BTreeMap<u64, u32>,
    submitted: BTreeSet<u64>,
    taken: BTreeMap<u64, ExecResult>,
    withdrawn: BTreeSet<u64>,
}

impl Harness {
    fn new(impatient: bool) -> Self {
        let fixture = Fixture::new();
        let executors = [(); 2].map(|()| Executor { inbox: Self::inbox(&fixture, impatient), held: Vec::new() });
        Self {
            requester: Requester::open(&fixture.volume, WatchMode::Automatic),
            executors,
            impatient,
            fixture,
            runs: BTreeMap::new(),
            submitted: BTreeSet::new(),
            taken: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
        }
    }

    fn inbox(fixture: &Fixture, impatient: bool) -> Inbox {
        if impatient { fixture.inbox_with_short_lease() } else { fixture.inbox() }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Submit(number) => {
                if self.submitted.insert(number) {
                    self.requester.submit(&ExecRequest::new(id(number), "x")).expect("there is room");
                }
            }
            Step::Pull(which) => {
                self.pull(which);
            }
            Step::Answer(which) => {
                let held = &mut self.executors[which].held;
                if !held.is_empty() {
                    match held.remove(0) {
                        HeldClaim::Run(claimed) => claimed.answer(&result(claimed.id().as_str(), "ran")),
                        HeldClaim::Report(abandoned) => abandoned.answer(&result(abandoned.id().as_str(), "lost")),
                    }
                    .expect("there is room");
                }
            }
            Step::Crash(which) => {
                self.executors[which].held.clear();
                self.executors[which].inbox = Self::inbox(&self.fixture, self.impatient);
            }
            Step::Take(number) => self.take(number),
            Step::Withdraw(number) => {
                if self.submitted.contains(&number) && !self.taken.contains_key(&number) {
                    let _ = self.requester.withdraw(&id(number));
                    self.withdrawn.insert(number);
                }
            }
        }
    }

    fn pull(&mut self, which: usize) -> bool {
        let executor = &mut self.executors[which];
        match pull(&mut executor.inbox) {
            Some(Arrival::Request(claimed, _)) => {
                let number = claimed.id().as_str().parse().expect("it is a number");
                *self.runs.entry(number).or_default() += 1;
                executor.held.push(HeldClaim::Run(claimed));
                true
            }
            Some(Arrival::Abandoned(abandoned)) => {
                executor.held.push(HeldClaim::Report(abandoned));
                true
            }
            Some(other) => panic!("{other:?}"),
            None => false,
        }
    }

    fn take(&mut self, number: u64) {
        if let Some(result) = self.requester.take(&id(number)).expect("results are good") {
            // A holder that was given up may answer after the report was taken, never twice for the requester that
            // waits: it asks once.
            self.taken.entry(number).or_insert(result);
        }
    }

    /// Everybody goes on until nothing is left to do, with fresh executors for what the others forgot.
    fn finish(&mut self) {
        for round in 0..3 {
            for which in [0, 1] {
                while self.pull(which) {}
                while !self.executors[which].held.is_empty() {
                    self.step(Step::Answer(which));
                }
            }
            if round == 0 && self.impatient {
                self.step(Step::Crash(0));
            }
        }
        for number in self.submitted.clone() {
            self.take(number);
        }
    }
}

fn result(id: &str, outcome: &str) -> ExecResult {
    let mut result = ok(id.parse().expect("it is a number"), "");
    result.stdout = outcome.to_owned();
    result
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn without_crashes_each_request_runs_once_and_has_its_result(steps in steps(false)) {
        let mut world = Harness::new(false);
        for step in steps {
            world.step(step);
        }
        world.finish();
        for number in &world.submitted {
            let runs = world.runs.get(number).copied().unwrap_or_default();
            if world.withdrawn.contains(number) {
                prop_assert!(runs <= 1);
            } else {
                prop_assert_eq!(runs, 1);
                prop_assert_eq!(world.taken.get(number).map(|result| result.stdout.as_str()), Some("ran"));
            }
        }
        prop_assert!(world.runs.keys().all(|number| world.submitted.contains(number)));
    }

    #[test]
    fn with_crashes_no_request_runs_twice_and_each_has_a_result(steps in steps(true)) {
        let mut world = Harness::new(true);
        for step in steps {
            world.step(step);
        }
        world.finish();
        for number in &world.submitted {
            prop_assert!(world.runs.get(number).copied().unwrap_or_default() <= 1);
            prop_assert!(world.taken.contains_key(number), "{} has no result", number);
        }
    }
}

#[test]
fn executors_that_race_run_each_request_once_while_it_is_being_taken() {
    const COUNT: u64 = 400;
    let fixture = Fixture::new();
    let runs = Mutex::new(BTreeMap::<String, u32>::new());
    let over = AtomicBool::new(false);
    let mut taken = 0;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut inbox = fixture.inbox();
                while !over.load(Ordering::Relaxed) {
                    match pull(&mut inbox) {
                        Some(Arrival::Request(claimed, _)) => {
                            let id = claimed.id().as_str();
                            *runs.lock().expect("no thread panics").entry(id.to_owned()).or_default() += 1;
                            claimed.answer(&result(id, "ran")).expect("there is room");
                        }
                        Some(other) => panic!("{other:?}"),
                        None => std::thread::yield_now(),
                    }
                }
            });
        }
        let requester = Requester::open(&fixture.volume, WatchMode::Automatic);
        // As long as something comes: how fast is the machine's affair.
        let mut end = std::time::Instant::now() + crate::fixture::TIMEOUT;
        let mut next = 0;
        let mut waiting = BTreeSet::new();
        while taken < COUNT && std::time::Instant::now() < end {
            while next < COUNT && waiting.len() < 16 {
                requester.submit(&ExecRequest::new(id(next), "x")).expect("there is room");
                waiting.insert(next);
                next += 1;
            }
            waiting.retain(|number| match requester.take(&id(*number)).expect("results are good") {
                Some(_) => {
                    taken += 1;
                    end = std::time::Instant::now() + crate::fixture::TIMEOUT;
                    false
                }
                None => true,
            });
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(taken, COUNT);
    let runs = runs.into_inner().expect("no thread panics");
    assert_eq!(runs.len() as u64, COUNT);
    assert!(runs.values().all(|count| *count == 1));
    assert_eq!(fixture.listing(), [""; 0], "late claims were given back");
}
