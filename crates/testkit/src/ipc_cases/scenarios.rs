//! What takes more than one file, or an executor that ends.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::volume::{Executor, Outcome, PATIENCE, Settings, Volume};
use crate::{growing, processes, wait_until};

type Start<'a> = &'a dyn Fn(&Volume) -> Command;

/// Runs until it is killed, with the marker in its command line.
const FOREVER: &str = "sh -c 'while :; do sleep 1; done' {M}";
/// Runs until the test says `go`.
const UNTIL_GO: &str = "while [ ! -e go ]; do sleep 0.05; done";

fn success(stdout: &str) -> Outcome {
    Outcome { exit_code: 0, stdout: stdout.to_owned(), stderr: String::new(), timed_out: false }
}

/// Ends an executor the ordinary way; what it did not do until then, it will not do.
#[track_caller]
fn end(volume: &Volume, executor: &mut Executor) {
    volume.write_done();
    assert_eq!(executor.wait(), 0);
}

/// Names that cannot be an id, or that would lead elsewhere.
pub fn files_with_impossible_ids_are_left_alone(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    let long = "a".repeat(129);
    let ids: [&[u8]; 11] =
        [b"", b".", b"..", b".claim-x", b"-rf", b"a..b", b"a b", b"a\nb", b"\xff", "é".as_bytes(), long.as_bytes()];
    fs::create_dir(volume.tools()).expect("the directory for requests");
    for id in ids {
        let id_text = String::from_utf8_lossy(id).into_owned();
        let request = json!({"id": id_text, "command": volume.fill("touch '{W}/ran'")}).to_string();
        let name = [b"exec-request-", id, b".json"].concat();
        fs::write(volume.tools().join(OsStr::from_bytes(&name)), request).expect("a request");
    }
    let longest = "b".repeat(128);
    let before = volume.listing();
    let mut executor = volume.start(start);
    for id in ["control", &longest, "_.-"] {
        volume.ask(id, "echo hi");
        assert_eq!(volume.outcome(id), success("hi\n"));
    }
    end(&volume, &mut executor);
    let mut expected = before;
    for id in ["control", &longest, "_.-"] {
        expected.push(format!("exec-request-{id}.json"));
        expected.push(format!("exec-result-{id}.json"));
        expected.push(format!(".claim-{id}"));
    }
    expected.sort();
    assert_eq!(volume.listing(), expected);
    assert_eq!(fs::read_dir(&volume.workspace).expect("the workspace").count(), 0);
}

/// Starts a command that would run for ever, and waits until it does.
#[track_caller]
fn start_one_that_stays(volume: &Volume) {
    volume.put("stays", &json!({"id": "stays", "command": format!("echo begun > begun; {FOREVER}"), "timeout": 100}));
    assert!(wait_until(PATIENCE, || !processes::with_marker(&volume.marker).is_empty()), "the command never began");
}

#[track_caller]
fn assert_none_left(volume: &Volume) {
    // Whoever was killed may take a moment to vanish.
    let gone = wait_until(PATIENCE, || processes::with_marker(&volume.marker).is_empty());
    assert!(gone, "the command lives on: {:?}", processes::with_marker(&volume.marker));
}

/// `/ipc/done` is the end of a run.
pub fn done_ends_commands_and_executor(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    let mut executor = volume.start(start);
    start_one_that_stays(&volume);
    end(&volume, &mut executor);
    assert_none_left(&volume);
}

/// The kubelet's way.
pub fn the_term_signal_ends_commands_and_executor(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    let mut executor = volume.start(start);
    start_one_that_stays(&volume);
    executor.signal(Signal::TERM);
    assert_eq!(executor.wait(), 0);
    assert_none_left(&volume);
}

/// Only a regular file says that a run is over.
pub fn a_link_called_done_ends_nothing(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    let elsewhere = volume.outside().join("elsewhere");
    fs::write(&elsewhere, "done").expect("a file");
    symlink(elsewhere, volume.ipc.join("done")).expect("a link");
    let mut executor = volume.start(start);
    for id in ["first", "second"] {
        volume.ask(id, "echo hi");
        assert_eq!(volume.outcome(id), success("hi\n"));
    }
    fs::remove_file(volume.ipc.join("done")).expect("the link goes");
    end(&volume, &mut executor);
}

/// Somebody who does not rename. The request is run whole or refused, never as far as it was written.
pub fn a_half_written_request_is_never_run_as_it_is(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    let mut executor = volume.start(start);
    volume.ask("control", "echo hi");
    volume.outcome("control");
    let command = volume.fill("echo once >> '{W}/log'; echo whole");
    let text = json!({"id": "half", "command": command}).to_string();
    let (first, rest) = text.split_at(text.len() - 20);
    let mut file = fs::File::create(volume.request("half")).expect("a request");
    file.write_all(first.as_bytes()).expect("its first half");
    // By the time this one is answered, the half was seen.
    volume.ask("between", "echo hi");
    volume.outcome("between");
    file.write_all(rest.as_bytes()).expect("its second half");
    drop(file);
    let outcome = volume.outcome("half");
    end(&volume, &mut executor);
    if outcome.is_refusal("request") {
        assert_eq!(volume.lines("log"), Vec::<String>::new());
    } else {
        assert_eq!(outcome, success("whole\n"));
        assert_eq!(volume.lines("log"), ["once"]);
    }
}

/// Back-pressure: further requests wait, and all are answered.
pub fn no_more_commands_than_allowed_run_at_once(start: Start<'_>) {
    let volume = Volume::new(Settings { max_concurrent: Some(2), ..Settings::default() });
    let mut executor = volume.start(start);
    let ids: Vec<String> = (0..6).map(|number| format!("request-{number}")).collect();
    for id in &ids {
        let command = format!("touch in-{id}; ls | grep -c '^in-'; {UNTIL_GO}; ls | grep -c '^in-'; rm in-{id}");
        volume.put(id, &json!({"id": id, "command": command, "timeout": 100}));
    }
    let inside = || {
        let entries = fs::read_dir(&volume.workspace).expect("the workspace");
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("in-"))
            .count()
    };
    assert!(wait_until(PATIENCE, || inside() == 2), "two commands at once");
    fs::write(volume.workspace.join("go"), "").expect("a file");
    for id in &ids {
        let outcome = volume.outcome(id);
        assert_eq!((outcome.exit_code, outcome.stderr.as_str()), (0, ""), "{id}");
        let counts: Vec<&str> = outcome.stdout.lines().collect();
        assert_eq!(counts.len(), 2, "{id}: {outcome:?}");
        assert!(counts.iter().all(|count| ["1", "2"].contains(count)), "{id}: {counts:?}");
    }
    end(&volume, &mut executor);
}

/// A fresh claim: its executor may be running the command.
pub fn a_claim_of_another_executor_is_respected(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    fs::create_dir_all(volume.claim("theirs")).expect("a claim");
    volume.ask("theirs", "echo ran >> log");
    let mut executor = volume.start(start);
    volume.ask("control", "echo hi");
    assert_eq!(volume.outcome("control"), success("hi\n"));
    end(&volume, &mut executor);
    assert_eq!(volume.lines("log"), Vec::<String>::new());
    assert!(!volume.result("theirs").exists());
}

/// An executor that died after its claim, an hour ago.
pub fn a_claim_whose_lease_is_over_is_answered_and_not_run(start: Start<'_>) {
    let volume = Volume::new(Settings { max_timeout: Some(1), claim_lease: Some(2), ..Settings::default() });
    fs::create_dir_all(volume.claim("lost")).expect("a claim");
    volume.ask("lost", "echo ran >> log");
    let mut executor = volume.start(start);
    let outcome = volume.outcome("lost");
    assert!(outcome.is_refusal("executor"), "{outcome:?}");
    end(&volume, &mut executor);
    assert_eq!(volume.lines("log"), Vec::<String>::new());
}

/// A pack without `mountWorkspace`.
pub fn without_a_workspace_commands_start_at_the_root(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    fs::remove_dir(&volume.workspace).expect("no workspace");
    let mut executor = volume.start(start);
    volume.ask("omitted", "pwd");
    assert_eq!(volume.outcome("omitted"), success("/\n"));
    volume.put("named", &json!({"id": "named", "command": "pwd", "workDir": "{W}"}));
    let outcome = volume.outcome("named");
    assert!(outcome.is_refusal("workDir"), "{outcome:?}");
    end(&volume, &mut executor);
}

/// A setting below and between the protocol's own numbers.
pub fn timeouts_are_cut_to_the_allowed_most(start: Start<'_>) {
    let requests = [("long", json!(1_000)), ("zero", json!(0)), ("none", json!(null))];
    let expected = Outcome { exit_code: 124, timed_out: true, ..success("begun\n") };
    let in_time = growing(Duration::from_secs(1)).any(|most| {
        let volume = Volume::new(Settings { max_timeout: Some(most.as_secs()), ..Settings::default() });
        let mut executor = volume.start(start);
        for (id, timeout) in &requests {
            let command = format!("echo begun; {FOREVER}");
            volume.put(id, &json!({"id": id, "command": command, "timeout": timeout}));
        }
        let outcomes = requests.each_ref().map(|(id, _)| volume.outcome(id));
        assert_none_left(&volume);
        end(&volume, &mut executor);
        // Ended before it had said anything: the machine was too slow for this timeout.
        let silent = Outcome { stdout: String::new(), ..expected.clone() };
        let in_time = !outcomes.contains(&silent);
        for outcome in outcomes.iter().filter(|outcome| **outcome != silent) {
            assert_eq!(*outcome, expected);
        }
        in_time
    });
    assert!(in_time, "no command began before its timeout");
}

/// An executor that knows no name of its own takes what comes.
pub fn without_a_pack_every_target_is_served(start: Start<'_>) {
    let volume = Volume::new(Settings { pack: None, ..Settings::default() });
    let mut executor = volume.start(start);
    volume.put("aimed", &json!({"id": "aimed", "command": "echo hi", "target": "k8s-ops"}));
    assert_eq!(volume.outcome("aimed"), success("hi\n"));
    end(&volume, &mut executor);
}

/// No event tells of these.
pub fn requests_from_before_the_start_are_served(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    for id in ["1", "2", "3"] {
        volume.ask(id, "echo hi");
    }
    volume.ask("answered", "echo ran >> log");
    fs::write(volume.result("answered"), "{}").expect("a result");
    let mut executor = volume.start(start);
    for id in ["1", "2", "3"] {
        assert_eq!(volume.outcome(id), success("hi\n"));
    }
    end(&volume, &mut executor);
    assert_eq!(fs::read_to_string(volume.result("answered")).expect("the result"), "{}");
    assert_eq!(volume.lines("log"), Vec::<String>::new());
}

/// Claims are made by one only.
pub fn two_executors_run_each_request_once(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    let mut executors = [volume.start(start), volume.start(start)];
    let mut ids: Vec<String> = (100..140).map(|number| number.to_string()).collect();
    for id in &ids {
        volume.ask(id, &format!("echo {id} >> log; echo {id}"));
    }
    for id in &ids {
        assert_eq!(volume.outcome(id), success(&format!("{id}\n")));
    }
    volume.write_done();
    for executor in &mut executors {
        assert_eq!(executor.wait(), 0);
    }
    let mut log = volume.lines("log");
    log.sort();
    ids.sort();
    assert_eq!(log, ids);
}

/// At most once, whatever happens in between.
pub fn a_killed_executor_s_command_is_not_run_again(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    let mut first = volume.start(start);
    volume.ask("interrupted", &format!("echo ran >> log; {UNTIL_GO}"));
    assert!(wait_until(PATIENCE, || !volume.lines("log").is_empty()), "it never began");
    first.signal(Signal::KILL);
    assert_eq!(first.wait(), -9);
    let mut second = volume.start(start);
    volume.ask("control", "echo hi");
    assert_eq!(volume.outcome("control"), success("hi\n"));
    // For a command that has outlived its executor, which is the executor's business and not this test's.
    fs::write(volume.workspace.join("go"), "").expect("a file");
    end(&volume, &mut second);
    assert_eq!(volume.lines("log"), ["ran"]);
}

/// The pack's own commands can write to the volume as well.
pub fn planted_links_are_replaced_and_not_followed(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    fs::create_dir(volume.tools()).expect("the directory for requests");
    let victim = volume.outside().join("victim");
    fs::write(&victim, "untouched").expect("a file");
    symlink(&victim, volume.result("linked.json.tmp")).expect("a link");
    for name in ["exec-result-linked.json.tmp", "exec-result-linked.tmp", ".exec-result-linked.json.tmp"] {
        let _ = fs::remove_file(volume.tools().join(name));
        symlink(&victim, volume.tools().join(name)).expect("a link");
    }
    let nowhere = volume.outside().join("nowhere");
    symlink(&nowhere, volume.result("linked")).expect("a link");
    let mut executor = volume.start(start);
    volume.ask("linked", "echo hi");
    let is_a_file = || fs::symlink_metadata(volume.result("linked")).is_ok_and(|metadata| metadata.is_file());
    assert!(wait_until(PATIENCE, is_a_file), "the link was not replaced");
    assert_eq!(volume.outcome("linked"), success("hi\n"));
    end(&volume, &mut executor);
    assert_eq!(fs::read_to_string(&victim).expect("the file"), "untouched");
    assert!(!nowhere.exists());
}

/// Nothing is read or written where it leads.
pub fn a_linked_tools_directory_is_refused(start: Start<'_>) {
    let volume = Volume::new(Settings::default());
    let elsewhere = volume.outside().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    symlink(&elsewhere, volume.tools()).expect("a link");
    volume.ask("astray", "echo ran >> log");
    let mut executor = volume.start(start);
    assert_ne!(executor.wait(), 0);
    assert_eq!(volume.lines("log"), Vec::<String>::new());
    assert_eq!(volume.listing(), ["exec-request-astray.json"]);
}

/// The volume is memory, and small: a result that does not fit must not be half a result, nor none.
pub fn on_a_full_volume_the_exit_code_still_comes(start: Start<'_>) {
    let in_own_mounts = |script: &str| {
        let mut unshare = crate::command("unshare");
        unshare.args(["--user", "--map-root-user", "--mount"]);
        unshare.args(["sh", "-c", script, "sh"]);
        unshare
    };
    let can = in_own_mounts("mount -t tmpfs tmpfs /tmp").output();
    if !can.is_ok_and(|output| output.status.success()) {
        crate::skip!("no user namespaces");
    }
    let volume = Volume::new(Settings::default());
    // Everything happens where the small volume is mounted, so all of it is in one script: some minutes at most.
    let steps = r#"
        mount -t tmpfs -o size=32k tmpfs "$VOLUME" || exit 1
        "$@" >/dev/null 2>&1 &
        mkdir -p "$VOLUME/tools" && cd "$VOLUME/tools" || exit 1
        cat > ../request && mv ../request exec-request-large.json
        tries=0
        while [ ! -e exec-result-large.json ] && [ $tries -lt 6000 ]; do tries=$((tries + 1)); sleep 0.05; done
        cat exec-result-large.json
        ls -A | grep -v large >&2
        touch ../done
        wait
    "#;
    let executor = start(&volume);
    let mut child = in_own_mounts(steps)
        .arg(executor.get_program())
        .args(executor.get_args())
        .envs(executor.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("VOLUME", &volume.ipc)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let request = br#"{"id": "large", "command": "head -c 60000 /dev/zero | tr '\\0' x; exit 3"}"#;
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(request).expect("a request");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let outcome = Outcome::parse("large", &output.stdout).expect("a whole result");
    let (_, said) = outcome.stderr.split_once(": ").unwrap_or_default();
    assert_eq!(said, "the volume has no room for the output\n", "{outcome:?}");
    let told = Outcome { exit_code: 3, stdout: String::new(), stderr: outcome.stderr.clone(), timed_out: false };
    assert_eq!(outcome, told);
    let left = String::from_utf8_lossy(&output.stderr);
    assert_eq!(left, "", "nothing else is left");
}
