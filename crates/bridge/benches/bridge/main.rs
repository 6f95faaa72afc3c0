//! What the bridge costs: `make bench SUITE=bridge`. One function measures each group of rows of `bench/rows/bridge.txt`.
//! What the gateway alone costs is in `SUITE=gateway`.
//!
//! Bridge, gateway and executor are the programs as they ship, each a process of its own. The agent and the model are in
//! this one: a client, and a server on a thread of its own. Ours and what it is compared with alternate in short
//! rounds, so whatever else the machine does hits both.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop, and its table is its output"
)]

mod harness;
mod model;
mod numbers;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sympozium_harness::plan::MODEL;
use sympozium_ipc::door::ToolAnswer;
use sympozium_testkit::bench::raw::spawn;
use sympozium_testkit::bench::{Samples, Suite, Target};
use sympozium_testkit::model_server::{ModelServer, Settings};
use sympozium_testkit::processes::{context_switches, mebibytes, memory};
use tokio::runtime::Runtime;

use harness::{BenchHarness, SHELL_PACK};
use model::Measured;

/// How the model is reached where it speaks TLS: its certificate is for this name, and the gateway knows it without asking.
const MODEL_HOST: &str = "localhost";
/// The line that is asked for, of the agent's tool and of a shell.
const LINE: &str = "echo hi";
const RAW_LINE: &std::ffi::CStr = c"echo hi";
/// Alternating rounds of commands, and commands in one.
const ROUNDS: usize = 20;
const ROUND: usize = 40;
/// How long a bridge that was just spoken to has to come to rest.
const REST: Duration = Duration::from_secs(3);
/// The time to be idle in.
const IDLE: Duration = Duration::from_secs(10);

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut suite = Suite::new("bridge");
    model_requests(&mut suite, &runtime);
    commands(&mut suite, &runtime);
    idle(&mut suite, &runtime);
    let path = suite.write().expect("the rows can be written");
    println!("wrote {}", path.display());
}

/// Requests and streams, through bridge and gateway and not, of a model without TLS and of one with it. The rows are of the
/// one without: it is the same server that is spoken to in both ways, and TLS would cost the same in both.
fn model_requests(suite: &mut Suite, runtime: &Runtime) {
    let plain = Settings::new().start().expect("a model");
    let measured = measure_model(&plain, runtime, "plain");
    let encrypted = Settings::new().tls(MODEL_HOST).start().expect("a model");
    measure_model(&encrypted, runtime, "TLS");
    let requests = measured.requests.added();
    suite.row(
        "model request of 4 KB through bridge and gateway, p50, beyond direct",
        requests.p50,
        "µs",
        Target::AtMost(200.0),
    );
    suite.row(
        "model request of 4 KB through bridge and gateway, p99, beyond direct",
        requests.p99,
        "µs",
        Target::AtMost(1000.0),
    );
    suite.row(
        "chunk of a streamed answer through bridge and gateway, p50, beyond direct",
        measured.chunks.added().p50,
        "µs",
        Target::AtMost(50.0),
    );
}

fn measure_model(server: &ModelServer, runtime: &Runtime, name: &str) -> Measured {
    let harness = BenchHarness::start(server);
    let measured = runtime.block_on(model::measure(&harness, server));
    println!("{name}, request: {}", measured.requests);
    println!("{name}, chunk: {}", measured.chunks);
    measured
}

/// A call of the shell tool, from the agent's word to its answer, and the raw spawn of the line that it runs.
fn commands(suite: &mut Suite, runtime: &Runtime) {
    let server = ModelServer::start().expect("a model");
    let mut harness = BenchHarness::start(&server);
    harness.start_executor();
    let agent = runtime.block_on(harness.agent());
    let call = || {
        let started = Instant::now();
        let answer = runtime.block_on(agent.execute(SHELL_PACK, LINE));
        let took = started.elapsed();
        assert_eq!(answer.expect("an answer"), hi());
        took
    };
    let raw = || {
        let started = Instant::now();
        spawn(c"/bin/bash", &[c"-c", RAW_LINE]);
        started.elapsed()
    };
    (0..ROUND).for_each(|_| _ = call());
    let (mut ours, mut raws) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS {
        (0..ROUND).for_each(|_| ours.add(call()));
        (0..ROUND).for_each(|_| raws.add(raw()));
    }
    let (ours, raws) = (ours.percentiles(), raws.percentiles());
    println!("command through bridge and executor: {ours}; raw spawn: {raws}");
    suite.row(
        "`execute_command` of `echo hi` through bridge and IPC executor, p50, beyond raw spawn of the same shell line",
        (ours.p50 - raws.p50) / 1e3,
        "ms",
        Target::AtMost(1.5),
    );
}

fn hi() -> ToolAnswer {
    ToolAnswer::Command {
        exit_code: 0,
        stdout: "hi\n".into(),
        stderr: String::new(),
        timed_out: false,
        truncated: false,
    }
}

/// A bridge with an agent that sends nothing.
fn idle(suite: &mut Suite, runtime: &Runtime) {
    let server = ModelServer::start().expect("a model");
    let harness = BenchHarness::start(&server);
    let agent = runtime.block_on(harness.agent());
    std::thread::sleep(REST);
    let before = context_switches(harness.bridge.pid());
    std::thread::sleep(IDLE);
    let switches = context_switches(harness.bridge.pid()) - before;
    let memory = memory(harness.bridge.pid()).expect("a process");
    println!("idle bridge: {memory}");
    drop(agent);
    suite.row(
        "idle after start, resident memory of the bridge",
        mebibytes(memory.resident),
        "MiB",
        Target::AtMost(8.0),
    );
    suite.row("idle after start for 10 s, wake-ups of the bridge", switches as f64, "wake-ups", Target::AtMost(0.0));
}

/// What the agent sends to the model: about 4 KB, as JSON.
fn question(streamed: bool) -> Vec<u8> {
    let mut question = json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "a".repeat(4000) }],
    });
    if streamed {
        question["stream"] = Value::Bool(true);
    }
    question.to_string().into_bytes()
}
