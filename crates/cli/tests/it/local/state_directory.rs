//! The state directory: no run sees it, and later changes are detected (hostile case 60).

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sympozium_testkit::probe::Findings;

use super::{Ended, Home, PACK, Scenario, call, eventually, for_each_user, for_each_user_with_probe};

/// A secret of another run.
const SECRET: &str = "the-other-run-wrote-this";
/// A command that waits for a script from the test.
const WAIT: &str = "while [ ! -e /workspace/go ]; do sleep 0.05; done; sh /workspace/go";

/// A run that has ended, with a secret in its files.
fn other(home: &Home) -> Ended<'_> {
    let mut scenario = Scenario::commands(&[], &[&format!("echo {SECRET} > /workspace/secret")]);
    scenario.name = "other".to_owned();
    let other = home.run(&scenario);
    other.assert_succeeded();
    other
}

/// Starts a waiting run, gives it a script once its directory is known, and waits for its end.
fn run_with_order<'h>(home: &'h Home, scenario: &Scenario, order: impl FnOnce(&Path) -> String) -> Ended<'h> {
    let child = home.start(scenario);
    eventually("the run has its workspace", || home.directory_of(&scenario.name).join("workspace").exists());
    let directory = home.directory_of(&scenario.name);
    let order = order(&directory);
    let waiting = directory.join("workspace/.go");
    fs::write(&waiting, order).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&waiting, fs::Permissions::from_mode(0o644)).unwrap();
    fs::rename(&waiting, directory.join("workspace/go")).unwrap();
    let mut output = child.wait_with_output().unwrap();
    output.stderr = fs::read(home.at("stderr")).unwrap();
    Ended { home, output, directory }
}

/// Every form of the path of a file in this directory.
fn ways(path: &Path) -> Vec<String> {
    let path = path.to_str().unwrap();
    let mut ways = vec![path.to_owned(), format!("/workspace/../../../../..{path}")];
    for process in ["self", "1", "2", "3", "4", "5"] {
        ways.push(format!("/proc/{process}/root{path}"));
        ways.push(format!("/proc/{process}/cwd/../../../../..{path}"));
    }
    ways
}

#[test]
fn commands_do_not_see_the_state_directory() {
    for_each_user_with_probe(|home| {
        let other = other(home);
        let scenario = Scenario::commands(&["probe", "sleep"], &[WAIT]).patient();
        let mut attempts = Vec::new();
        let run = run_with_order(home, &scenario, |own| {
            let directories = [own, &other.directory, &own.join("live"), &home.at("state")];
            for way in directories.iter().flat_map(|it| ways(it)) {
                attempts.push(format!("list-directory={way}"));
                attempts.push(format!("write-file={way}"));
            }
            for name in [
                "run.json",
                "plan.json",
                "receipts.jsonl",
                "transcript.jsonl",
                "report.json",
                "lock",
                "logs/agent.log",
                "workspace/secret",
            ] {
                for directory in [own, &other.directory] {
                    let file = directory.join(name).display().to_string();
                    for attempt in ["read-file", "write-file", "hard-link", "follow-planted-link"] {
                        attempts.push(format!("{attempt}={file}"));
                    }
                }
            }
            for socket in ["control.sock", "live/gateway/gateway.sock"] {
                let ways = ways(&own.join(socket));
                attempts.extend(ways.iter().map(|it| format!("connect-socket-file={it}")));
            }
            // Results are written to a file: they exceed the limit of a result.
            format!("probe attempt {} > /workspace/found\n", attempts.join(" "))
        });
        run.assert_succeeded();
        let found = fs::read(run.directory.join("workspace/found")).unwrap();
        Findings::parse(&found).assert_refused(attempts.iter().map(String::as_str));
    });
}

#[test]
fn file_tools_do_not_see_the_state_directory() {
    for_each_user(|home| {
        let other = other(home);
        let secret = other.directory.join("workspace/secret");
        let read = |path: &str| json!({"tool": "read_file", "arguments": {"path": path}});
        let list = |path: &str| json!({"tool": "list_directory", "arguments": {"path": path}});
        let write = |path: &str| json!({"tool": "write_file", "arguments": {"path": path, "content": "x"}});
        let mut calls = Vec::new();
        for way in ways(&secret) {
            calls.push(read(&way));
        }
        for path in [
            "/workspace/to-file",
            "/workspace/to-directory/secret",
            "/workspace/to-self/environ",
            "/workspace/fifo",
            "/proc/self/environ",
            "/proc/1/environ",
            "/ipc/done",
            "/run/sympozium/run.json",
        ] {
            calls.push(read(path));
        }
        for path in ["/proc", "/ipc", "/workspace/to-directory"] {
            calls.push(list(path));
        }
        for path in [
            secret.to_str().unwrap(),
            "/workspace/to-file",
            "/workspace/to-directory/new",
            "/workspace/../escaped",
            "/workspace/fifo",
            "/ipc/done",
            "/ipc/tools/exec-request-x.json",
            "/proc/self/comm",
        ] {
            calls.push(write(path));
        }
        let links = format!(
            "ln -s {} /workspace/to-file; ln -s {} /workspace/to-directory; ln -s /proc/self /workspace/to-self; mkfifo /workspace/fifo",
            secret.display(),
            secret.parent().unwrap().display(),
        );
        let mut scenario = Scenario::commands(&["ln", "mkfifo"], &[&links]);
        for calls in calls.chunks(8) {
            scenario.turns.push(json!({"call": calls}));
        }
        scenario.turns.push(call(PACK, "echo the run continues"));
        let run = home.run(&scenario);
        let results = tool_results(&run);
        let (_, results) = results.split_first().unwrap();
        let (last, results) = results.split_last().unwrap();
        assert_eq!(last["text"], "the run continues");
        assert_eq!(results.len(), calls.len());
        for (call, result) in calls.iter().zip(results) {
            let is_told = result["text"].as_str().unwrap().contains(SECRET);
            assert!(result["failed"] == true && !is_told, "{call}: {result}");
        }
        assert_eq!(fs::read_to_string(&secret).unwrap(), format!("{SECRET}\n"));
        assert!(!secret.parent().unwrap().join("new").exists());
        // Pipes that the run created stay in its workspace, which belongs to the user.
        fs::remove_file(run.directory.join("workspace/fifo")).unwrap();
        run.assert_succeeded();
    });
}

/// The lines of the transcript about each tool call.
fn tool_results(run: &Ended<'_>) -> Vec<Value> {
    let lines = fs::read_to_string(run.directory.join("transcript.jsonl")).unwrap();
    let lines = lines.lines().map(|it| serde_json::from_str(it).unwrap());
    lines.filter(|it: &Value| it["kind"] == "result").collect()
}

#[test]
fn changed_receipts_are_found() {
    for_each_user(|home| {
        let commands = ["echo one", "echo two", "echo three"];
        let run = home.run(&Scenario::commands(&[], &commands));
        run.assert_succeeded();
        let path = run.directory.join("receipts.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() > 3, "{text}");
        let joined = |lines: &[&str]| lines.iter().map(|it| format!("{it}\n")).collect::<String>();
        let mut reordered = lines.clone();
        reordered.swap(1, 2);
        let mut doubled = lines.clone();
        doubled.insert(1, lines[1]);
        let mut without = lines.clone();
        without.remove(1);
        let changes = [
            ("truncated by a line", joined(&lines[..lines.len() - 1])),
            ("truncated by a byte", text[..text.len() - 3].to_owned()),
            ("emptied", String::new()),
            ("without its beginning", joined(&lines[1..])),
            ("without a line", joined(&without)),
            ("reordered", joined(&reordered)),
            ("with a line twice", joined(&doubled)),
            ("with another command", text.replacen("allowed", "refused", 1)),
            ("with a byte more", text.replacen("\":", "\": ", 1)),
        ];
        let uid = run.record()["uid"].as_str().unwrap().to_owned();
        let verify = || home.sympozium(&["audit", "verify", &uid]).output().unwrap();
        for (how, changed) in changes {
            assert_ne!(changed, text, "{how}");
            fs::write(&path, changed).unwrap();
            let verified = verify();
            assert!(!verified.status.success(), "{how}: {verified:?}");
        }
        fs::write(&path, &text).unwrap();
        assert!(verify().status.success());
    });
}
