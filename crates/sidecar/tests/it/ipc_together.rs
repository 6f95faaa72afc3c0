//! Our executor, the script that the guide to custom sidecars prints, and our own script, together on one volume.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::json;
use sympozium_testkit::ipc_cases::{Settings, Volume, has_program};
use sympozium_testkit::skip;
use sympozium_testkit::static_build::workspace_root;

const REQUESTS: usize = 1000;
/// So many are on the volume at once: the printed script starts whatever it sees.
const BATCH: usize = 50;

type Start = fn(&Volume) -> Command;

fn printed_script(volume: &Volume) -> Command {
    let printed = include_str!("../../../ipc/tests/fixtures/seed-tool-executor.sh");
    let script = volume.outside().join("printed.sh");
    // The one change: a volume of its own instead of the machine's /ipc.
    let text = printed.replace("/ipc", &volume.ipc.to_string_lossy());
    fs::write(&script, text).expect("a script");
    let mut command = sympozium_testkit::command("bash");
    command.arg(script);
    command
}

fn our_script(volume: &Volume) -> Command {
    let mut command = sympozium_testkit::command("bash");
    command
        .arg(workspace_root().join("images/tool-executor.sh"))
        .env("SYMPOZIUM_IPC_DIR", &volume.ipc)
        .env("SYMPOZIUM_WORKSPACE", &volume.workspace);
    command
}

/// One at a time, so that the others have something to do.
fn our_program(volume: &Volume) -> Command {
    let mut command = sympozium_testkit::command(env!("CARGO_BIN_EXE_skill-sidecar"));
    command
        .args(["ipc", "--max-concurrent", "1", "--ipc-dir"])
        .arg(&volume.ipc)
        .arg("--workspace")
        .arg(&volume.workspace);
    command
}

#[test]
fn three_executors_answer_a_thousand_requests_once_each() {
    if !has_program("jq") {
        skip!("no jq");
    }
    let volume = Volume::new(Settings::default());
    let start = |name: &str, start: Start| {
        volume.start(&|volume: &Volume| {
            let mut command = start(volume);
            command.env("EXECUTOR", name);
            command
        })
    };
    // The slow ones first: each has a batch before a faster one comes.
    let mut late = [("program", our_program as Start), ("script", our_script as Start)].to_vec();
    let mut executors = vec![start("printed", printed_script)];
    let mut answered_by: BTreeMap<String, usize> = BTreeMap::new();
    let ids: Vec<String> = (1..=REQUESTS).map(|number| number.to_string()).collect();
    for batch in ids.chunks(BATCH) {
        if answered_by.values().sum::<usize>() > 0
            && let Some((name, how)) = late.pop()
        {
            executors.push(start(name, how));
        }
        for id in batch {
            let line = format!("echo {id} >> '{{W}}/log'; sleep 0.02; echo $EXECUTOR");
            volume.put(id, &json!({"id": id, "command": line, "timeout": 60}));
        }
        for id in batch {
            let outcome = volume.outcome(id);
            assert_eq!(outcome.exit_code, 0, "{id}: {outcome:?}");
            *answered_by.entry(outcome.stdout.trim().to_owned()).or_default() += 1;
            // In the order of a requester: an executor that claims late looks for the request.
            fs::remove_file(volume.request(id)).expect("the request");
            fs::remove_file(volume.result(id)).expect("one result");
        }
    }
    volume.write_done();
    for executor in &mut executors {
        assert_eq!(executor.wait(), 0);
    }
    let mut log = volume.lines("log");
    log.sort_by_key(|id| id.parse::<usize>().ok());
    assert_eq!(log, ids, "each ran once");
    assert_eq!(answered_by.values().sum::<usize>(), REQUESTS);
    // What the two scripts share between them is chance.
    for name in ["printed", "program"] {
        assert!(answered_by.contains_key(name), "{answered_by:?}");
    }
    // No executor has written a result after the requester took it.
    let results = volume.listing().into_iter().filter(|name| name.starts_with("exec-result"));
    assert_eq!(results.collect::<Vec<_>>(), Vec::<String>::new());
}
