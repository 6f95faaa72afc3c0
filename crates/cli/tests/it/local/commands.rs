//! Hostile commands in a run: the run continues, nothing of them is left, and they learn no secrets (hostile cases 9 to 23).

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sympozium_testkit::model_server::{Answer, Reply, Settings, ToolCall};
use sympozium_testkit::processes::{new_marker, with_marker};
use sympozium_testkit::{as_user, probe};

use super::{Ended, Home, LONGEST_COMMAND, PACK, Scenario, Who, call, for_each_user, for_each_user_with_probe, pack};

/// The last command of every run, which shows that the skill still works.
const AFTERWARDS: &str = "echo the run continues";

#[track_caller]
fn assert_continues(run: &Ended<'_>) {
    run.assert_succeeded();
    let results = run.results();
    assert_eq!(results.last().unwrap(), "the run continues", "{results:#?}");
}

#[test]
fn floods_trees_and_daemons_end_with_their_command() {
    for_each_user_with_probe(|home| {
        let marker = new_marker();
        let commands = [
            "flood both 50M".to_owned(),
            "invalid-utf8".to_owned(),
            "daemon 600 exit".to_owned(),
            "hold-stdout 600 exit".to_owned(),
            "pass-stdout 600 exit".to_owned(),
            "fork-tree 7 600 exit".to_owned(),
            "pid-hopper 600 exit 3".to_owned(),
            "subreaper 600 exit".to_owned(),
            "short-lived 200".to_owned(),
        ]
        .map(|it| format!("probe do --marker {marker} {it}"));
        let mut scenario = Scenario::commands(&["probe"], &[]);
        scenario.turns = commands.iter().map(|it| call(PACK, it)).collect();
        // Daemons end by themselves.
        for stays in ["ignore-term 600", "fork-tree 5 600 stay", "spin 600", "fork-bomb 2000 600", "stop 600"] {
            let command = format!("probe do --marker {marker} {stays}");
            scenario.turns.push(json!({"call": [{"tool": "execute_command", "arguments": {"command": command, "target": PACK, "timeout": 1}}]}));
        }
        scenario.turns.push(call(PACK, "probe attempt see-processes"));
        scenario.turns.push(call(PACK, AFTERWARDS));
        // The command must have written that much on any machine.
        scenario.turns[0]["call"][0]["arguments"]["timeout"] = json!(LONGEST_COMMAND);
        let run = home.run(&scenario);
        assert_continues(&run);
        assert_eq!(with_marker(&marker), Vec::<i32>::new());
        let results = run.results();
        assert!(results[0].contains("the command wrote more than"), "{}", results[0]);
        for result in &results[commands.len()..commands.len() + 5] {
            assert!(result.contains("timed out") || result.contains("exit code"), "{result}");
        }
        // Our own five processes, and none of an earlier command.
        let seen = &results[results.len() - 2];
        assert!(seen.contains("[1, 2, 3, 4, 5]") || seen.contains("5 processes"), "{seen}");
    });
}

#[test]
fn scratch_space_and_processes_are_bounded() {
    for_each_user_with_probe(|home| {
        let attempts = ["fill-directory=/tmp:1G", "fill-shared-memory=1G", "make-processes=600", "open-files=100000"];
        let commands: Vec<String> =
            (attempts.iter()).map(|it| format!("probe attempt {it}")).chain([AFTERWARDS.to_owned()]).collect();
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let run = home.run(&Scenario::commands(&["probe"], &commands).patient());
        assert_continues(&run);
        for (attempt, result) in attempts.iter().zip(run.results()) {
            // A command that fills tmpfs may be killed for its memory before the space is full.
            if !result.contains("exit code: 137") {
                run_findings(&result).assert_refused([*attempt]);
            }
        }
    });
}

fn run_findings(result: &str) -> sympozium_testkit::probe::Findings {
    sympozium_testkit::probe::Findings::parse(result.as_bytes())
}

#[test]
fn a_skill_that_exceeds_its_memory_affects_only_itself() {
    // Only control groups limit memory, which an ordinary user usually does not have: the report says so.
    if !as_user::is_root() {
        sympozium_testkit::skip!("no control group for memory");
    }
    let home = Home::new(Who::Root);
    home.install(probe::path(), "probe");
    let mut scenario = Scenario::commands(&["probe"], &["probe do allocate 512 5"]);
    scenario.packs.push(("other".to_owned(), pack(&[])));
    scenario.turns.push(call("other", AFTERWARDS));
    scenario.turns.push(call(PACK, AFTERWARDS));
    let run = home.run(&scenario);
    let held = &run.record()["isolation"]["skill-shell"]["guarantees"]["memory"]["state"];
    if held != "enforced" {
        sympozium_testkit::skip!("no control group for memory");
    }
    assert_continues(&run);
    let results = run.results();
    assert_eq!(results[1], "the run continues");
    assert!(results[0].contains("exit code"), "{}", results[0]);
}

#[test]
fn hostile_arguments_are_refused_and_the_run_continues() {
    for_each_user(|home| {
        let hostile = [
            json!({"command": "echo a\u{0}b", "target": PACK}),
            json!({"command": "", "target": PACK}),
            json!({"command": "x".repeat(200_000), "target": PACK}),
            json!({"command": "echo ran", "target": PACK, "timeout": 0}),
            json!({"command": "echo ran", "target": PACK, "timeout": -1}),
            json!({"command": "echo ran", "target": PACK, "timeout": 1_000_000_000_u64}),
            json!({"command": "echo ran", "target": PACK, "timeout": 1.5}),
            json!({"command": "echo ran", "target": PACK, "timeout": "1"}),
            json!({"command": "echo ran", "target": "ipc-bridge"}),
            json!({"command": "echo ran", "target": "../other"}),
            json!({"command": "echo ran", "target": "s\u{4bb}ell"}),
            json!({"command": "echo ran", "target": PACK, "workdir": "/proc/self/root/ipc"}),
            json!({"command": "echo ran", "target": PACK, "workdir": "/proc/1/root"}),
            json!({"command": "echo ran", "target": PACK, "workdir": "/none"}),
            json!({"command": ["echo", "ran"], "target": PACK}),
            json!({"command": {"a": 1}, "target": PACK}),
            json!({"command": "echo ran", "target": PACK, "env": {"LD_PRELOAD": "/workspace/evil.so"}}),
            json!({}),
        ];
        let turn = |arguments: &Value| json!({"call": [{"tool": "execute_command", "arguments": arguments}]});
        let mut scenario = Scenario::commands(&[], &[]);
        scenario.turns = hostile.iter().map(turn).collect();
        scenario.turns.push(json!({"call": [{"tool": "execute_command", "arguments": "{\"command\": \"echo ran"}]}));
        scenario.turns.push(call(PACK, AFTERWARDS));
        let run = home.run(&scenario);
        assert_continues(&run);
        for (arguments, result) in hostile.iter().zip(run.results()) {
            // An undeclared variable may be omitted; nothing else of the call may be executed.
            assert!(result != "ran" || arguments.get("env").is_some(), "{arguments}: {result}");
        }
    });
}

/// Searches everything that it can read for a text, without having it on its own command line.
const SEARCH: &str = "\
for process in /proc/[0-9]*; do cat $process/environ $process/cmdline 2>/dev/null; done | tr '\\0' '\\n' | grep 'hidden-[k]ey'; \
grep -rlI 'hidden-[k]ey' /secrets /run /etc /opt /tmp /workspace /ipc /dev/shm /var 2>/dev/null; env | grep 'hidden-[k]ey'; \
ls /secrets /run/sympozium 2>/dev/null; echo searched";

#[test]
fn secrets_are_visible_only_to_their_skill() {
    for_each_user(|home| {
        let programs = ["cat", "grep", "tr", "env", "ls"];
        let mut owner = pack(&programs);
        owner["sidecar"]["secretRef"] = json!("of-owner");
        owner["sidecar"]["env"] =
            json!([{"name": "OWN_KEY", "valueFrom": {"secretKeyRef": {"name": "of-owner", "key": "key"}}}]);
        let scenario = Scenario {
            turns: vec![
                call("owner", "cat /secrets/of-owner/key; echo; sleep 0"),
                call(PACK, SEARCH),
                json!({"call": [
                    {"tool": "read_file", "arguments": {"path": "/secrets/of-owner/key"}},
                    {"tool": "list_directory", "arguments": {"path": "/secrets"}},
                ]}),
                call(PACK, AFTERWARDS),
            ],
            packs: vec![(PACK.to_owned(), pack(&programs)), ("owner".to_owned(), owner)],
            others: vec![
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "of-owner"}, "stringData": {"key": "hidden-key-of-owner"}}),
            ],
            ..Scenario::commands(&[], &[])
        };
        let run = home.run(&scenario.patient());
        assert_continues(&run);
        let results = run.results();
        assert_eq!(results[1], "searched");
        for result in &results[1..] {
            assert!(!result.contains("hidden-key"), "{result}");
        }
        // Of the stored files, only those with results of its owner's commands may have it.
        assert_eq!(
            mentioning(&run.directory, "hidden-key-of-owner")
                .into_iter()
                .filter(|it| it != "transcript.jsonl")
                .collect::<Vec<_>>(),
            Vec::<String>::new()
        );
    });
}

#[test]
fn no_part_but_the_bridge_sees_the_model_key() {
    const KEY: &str = "sk-hidden-key-of-model";
    for_each_user(|home| {
        let server = Settings::new().key(KEY).start().unwrap();
        let command = json!({"command": SEARCH, "target": PACK, "timeout": LONGEST_COMMAND});
        server.push(Answer::text("I search.").tool(ToolCall::new("execute_command", &command)));
        for path in ["/proc/self/environ", "/proc/1/environ", "/run/sympozium/plan.json"] {
            server.push(Answer::text("").tool(ToolCall::new("read_file", &json!({"path": path}))));
        }
        server.set_default(Reply::text("It is done."));
        let mut scenario = Scenario::commands(&["cat", "grep", "tr", "env", "ls"], &[]);
        let port = server.address().port();
        scenario.others = vec![
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "of-model"}, "stringData": {"OPENAI_API_KEY": KEY}}),
            json!({
                "apiVersion": "sympozium.ai/v1alpha1", "kind": "SympoziumPolicy", "metadata": {"name": "policy"},
                "spec": {"networkPolicy": {"allowedEgress": [{"host": "localhost", "port": port}]}},
            }),
        ];
        scenario.run = json!({"model": {"provider": "openai", "model": "gpt-4o-mini", "authSecretRef": "of-model", "baseURL": format!("http://localhost:{port}/v1")}});
        let run = home.run(&scenario);
        run.assert_succeeded();
        let results = run.results();
        assert_eq!(results.len(), 4, "{results:#?}");
        assert_eq!(results[0], "searched");
        assert_eq!(mentioning(&home.at("state"), "hidden-key-of-model"), Vec::<String>::new());
        let said = [run.output.stdout.as_slice(), &run.output.stderr].concat();
        assert!(!String::from_utf8_lossy(&said).contains("hidden-key"));
    });
}

/// The files below a directory that contain this text.
fn mentioning(directory: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next).unwrap().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                waiting.push(path);
            } else if kind.is_file() {
                let bytes = fs::read(&path).unwrap();
                if String::from_utf8_lossy(&bytes).contains(text) {
                    let name = path.strip_prefix(directory).unwrap();
                    found.push(name.display().to_string());
                }
            }
        }
    }
    found
}
