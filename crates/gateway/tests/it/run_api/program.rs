//! The program with `--records`: reports become files, and there is no approver.

use std::fs;
use std::path::Path;

use sympozium_harness::credential::KEY_FILE;
use sympozium_testkit::command;
use sympozium_testkit::daemon::Daemon;

use super::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_sympozium-gateway");

fn start(directory: &Path) -> Daemon {
    let at = |name: &str| directory.join(name);
    let socket = at("gateway.sock");
    let _ = fs::remove_file(&socket);
    let mut program = command(PROGRAM);
    program
        .args(["serve", "--dns=127.0.0.1:9", "--plans"])
        .arg(at("plans"))
        .arg("--key-file")
        .arg(at("keys"))
        .arg("--records")
        .arg(at("records"))
        .arg(format!("--listen=unix:{}", socket.display()));
    let daemon = Daemon::start(program, &at("log")).expect("it starts");
    daemon.wait_for_log("the run API is served");
    daemon.wait_for_log("listening");
    daemon
}

#[tokio::test]
async fn reports_survive_restarts_and_there_is_no_approver() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let plan = plan(UID, |_| {});
    let bytes = plan.to_bytes().expect("JSON");
    fs::create_dir(at("plans")).expect("a directory");
    fs::write(at("plans/run.json"), &bytes).expect("a plan");
    fs::write(at("keys"), KEY_FILE).expect("keys");
    let mut reports = Reporting { chain: Chain::new(RunPlan::digest_of(&bytes)), number: 0 };
    let connect = async || {
        let stream = UnixStream::connect(at("gateway.sock")).await;
        Client::from_stream(stream.expect("it listens"), &token(UID, RUN_CREDENTIAL)).await
    };
    let first = reports.next(2);
    {
        let _program = start(directory.path());
        let client = connect().await;
        assert_eq!(client.report(&first).await, Ok(2));
        let (status, answer) = client.post(path::APPROVALS, &question("q")).await;
        let expected = json!({
            "approval": "q", "action": hash("0"), "decision": "denied", "forTheRun": false,
            "reason": "no approver can be asked here, so the answer is no",
        });
        assert_eq!((status, answer), (200, expected));
        let message = json!({ "channel": "slack", "text": "hello" });
        let (status, _) = client.post(path::MESSAGES, &message).await;
        assert_eq!(status, 501);
    }
    // It was killed.
    let _program = start(directory.path());
    let client = connect().await;
    assert_eq!(client.report(&first).await, Ok(2));
    assert_eq!(client.report(&reports.last()).await, Ok(3));
    let records = RecordStore::open(&at("records")).expect("a directory");
    let report = records.read_report(UID).expect("readable").expect("kept");
    assert_eq!((report.receipts, report.phase), (3, BridgePhase::Ended));
    let log = fs::read_to_string(at("log")).expect("a log");
    let password = client.token.rsplit(':').next().expect("a password").to_owned();
    assert!(!log.contains(&password), "{log}");
}
