//! Many runs at once, in bad weather, and the controller is killed again and again.

use sympozium_api::agent_run::Phase;
use sympozium_testkit::cases;
use sympozium_testkit::cluster::faults::{Fault, Moment, Refusal, Sprinkle};
use sympozium_testkit::cluster::samples::{everything, plain};

use super::harness::Harness;
use super::run::TestRun;

/// Runs at once, and writes between two kills.
const RUNS: usize = 8;
const ALL_RUNS: usize = 40;
const BETWEEN: usize = 37;
/// Kills before the weather clears.
const KILLS: usize = 4;
const ALL_KILLS: usize = 25;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_survive_many_kills() {
    let Some(harness) = Harness::new("chaos").await else {
        return;
    };
    let (runs, kills) = if cases::is_full() { (ALL_RUNS, ALL_KILLS) } else { (RUNS, KILLS) };
    println!("seed {}", cases::seed());
    harness.start_counting();
    let mut all = Vec::new();
    for number in 0..runs {
        // Half of them with hooks.
        let name = format!("chaos-{number}");
        let run = if number % 2 == 0 { everything(&name) } else { plain(&name) };
        all.push(TestRun::create(&harness, run).await);
    }
    for kill in 0..kills {
        harness.start_counting();
        harness.proxy.sprinkle(Some(Sprinkle {
            seed: cases::seed().wrapping_mul(100).wrapping_add(kill as u64),
            writes_percent: 10,
            reads_percent: 3,
            faults: vec![
                Fault::Refuse(Refusal::Conflict),
                Fault::Refuse(Refusal::InternalError),
                Fault::LoseAnswer,
                Fault::Cut,
            ],
        }));
        let moment = if kill % 2 == 0 { Moment::After } else { Moment::Before };
        harness.proxy.stop_at(BETWEEN, moment);
        let mut stopped = false;
        for tried in &all {
            stopped = harness.stopped(tried).await;
            if stopped {
                break;
            }
        }
        if !stopped {
            break;
        }
        harness.crash().await;
    }
    harness.proxy.sprinkle(None);
    for (number, tried) in all.iter().enumerate() {
        let status = tried.wait_torn_down(&harness).await;
        assert_eq!(status.phase, Some(Phase::Succeeded), "{}", harness.describe(tried).await);
        let hooks = usize::from(number % 2 == 0);
        tried.assert_succeeded(&harness, &status, hooks).await;
    }
}
