//! Others that speak the protocol and share no code with us.

use std::fs;
use std::process::{Child, Output, Stdio};
use std::time::Instant;

use proptest::prelude::*;
use sympozium_ipc::message::shell_word;
use sympozium_ipc::{Arrival, ExecRequest, ExecResult, Requester, WatchMode};
use sympozium_testkit::{command, skip, wait_until};

use crate::fixture::{Fixture, TIMEOUT, id, pull};

fn has(program: &str) -> bool {
    command(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// A child that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An agent as people write it: a file made without a rename, a loop that looks for the result.
const CLIENT: &str = r#"
cd "$1"
i=0
while [ $i -lt 20 ]; do
    printf '{"id":"%s","command":"echo %s","args":["a b"],"timeout":5,"extra":{"x":[1]}}\n' "c-$i" "$i" >"exec-request-c-$i.json"
    n=0
    until [ -f "exec-result-c-$i.json" ]; do
        n=$((n + 1)); [ $n -lt 9000 ] || exit 3
        sleep 0.01
    done
    cat "exec-result-c-$i.json"
    echo
    rm "exec-request-c-$i.json" "exec-result-c-$i.json"
    i=$((i + 1))
done
"#;

#[test]
fn our_executor_serves_a_shell_script() {
    let fixture = Fixture::new();
    let mut inbox = fixture.inbox();
    let mut client = command("sh");
    client.args(["-c", CLIENT, "client"]).arg(fixture.tools("")).stdout(Stdio::piped());
    let mut client = Running(client.spawn().expect("there is a shell"));
    assert!(wait_until(TIMEOUT, || {
        while let Some(arrival) = pull(&mut inbox) {
            let Arrival::Request(claimed, request) = arrival else { panic!("{arrival:?}") };
            claimed.answer(&run(&request)).expect("there is room");
        }
        client.0.try_wait().expect("it can be asked").is_some()
    }));
    let mut stdout = String::new();
    let mut pipe = client.0.stdout.take().expect("it was piped");
    std::io::Read::read_to_string(&mut pipe, &mut stdout).expect("it is text");
    assert!(client.0.wait().expect("it has ended").success());
    let expected: String = (0..20)
        .map(|i| format!(r#"{{"id":"c-{i}","exitCode":0,"stdout":"{i} a b\n","stderr":"","timedOut":false}}"#) + "\n")
        .collect();
    assert_eq!(stdout, expected);
}

/// As plain an executor as there can be, for tests.
fn run(request: &ExecRequest) -> ExecResult {
    let Output { status, stdout, stderr } =
        command("sh").args(["-c", &request.shell_line()]).output().expect("there is a shell");
    ExecResult {
        id: request.id.clone(),
        exit_code: status.code().map_or(-1, i64::from),
        stdout: String::from_utf8(stdout).expect("it is text"),
        stderr: String::from_utf8(stderr).expect("it is text"),
        timed_out: false,
        meta: None,
    }
}

/// Starts the script that the custom sidecar guide prints, which has nothing changed but the place of the volume.
fn seed_executor(fixture: &Fixture, pack: &str) -> Running {
    let script = include_str!("../fixtures/seed-tool-executor.sh");
    let root = fixture.path("");
    let root = root.to_str().expect("it is text").trim_end_matches('/');
    let path = fixture.path("tool-executor.sh");
    fs::write(&path, script.replace("/ipc/", &format!("{root}/"))).expect("there is room");
    let mut executor = command("bash");
    executor.arg(path).env("SYMPOZIUM_SKILL_PACK", pack).stdout(Stdio::null()).stderr(Stdio::null());
    Running(executor.spawn().expect("there is a bash"))
}

fn ask(requester: &mut Requester, request: &ExecRequest) -> ExecResult {
    requester.submit(request).expect("there is room");
    let result = requester.wait(&request.id, Instant::now() + TIMEOUT);
    result.expect("it is good").expect("it came")
}

#[test]
fn our_requester_drives_the_documented_script() {
    if !has("bash") || !has("jq") {
        skip!("no bash or no jq");
    }
    let fixture = Fixture::new();
    let mut executor = seed_executor(&fixture, "My-Pack");
    let mut requester = Requester::open(&fixture.volume, WatchMode::Automatic);
    let result = |number, exit_code, stdout: &str, stderr: &str, timed_out| ExecResult {
        id: id(number),
        exit_code,
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
        timed_out,
        meta: None,
    };
    let request = ExecRequest {
        target: Some("my-pack".to_owned()),
        work_dir: Some("/tmp".to_owned()),
        ..ExecRequest::new(id(1), "pwd; echo 'é\"\\' >&2; exit 3")
    };
    assert_eq!(ask(&mut requester, &request), result(1, 3, "/tmp", "é\"\\", false));
    let slow = ExecRequest { timeout: Some(1), ..ExecRequest::new(id(2), "sleep 600") };
    assert_eq!(ask(&mut requester, &slow), result(2, 124, "", "", true));
    let other = ExecRequest { target: Some("other".to_owned()), ..ExecRequest::new(id(3), "true") };
    requester.submit(&other).expect("there is room");
    let next = ExecRequest::new(id(4), "echo hi");
    assert_eq!(ask(&mut requester, &next), result(4, 0, "hi", "", false));
    // The script may have claimed what it saw in its list after that was taken; it finds no request then and gives up.
    let left = fixture.listing();
    let left: Vec<_> = left.iter().filter(|name| !name.starts_with(".claim-")).collect();
    assert_eq!(left, ["exec-request-3.json"], "that one has another target");

    fixture.volume.write_done().expect("there is room");
    let mut status = None;
    assert!(wait_until(TIMEOUT, || {
        status = executor.0.try_wait().expect("it can be asked");
        status.is_some()
    }));
    assert!(status.is_some_and(|status| status.success()));
}

#[test]
fn our_executor_and_the_documented_script_share_a_volume() {
    const COUNT: u64 = 24;
    if !has("bash") || !has("jq") {
        skip!("no bash or no jq");
    }
    let fixture = Fixture::new();
    let _script = seed_executor(&fixture, "pack");
    let mut inbox = fixture.inbox_of("pack");
    let requester = Requester::open(&fixture.volume, WatchMode::Automatic);
    let log = fixture.path("log");
    let line = format!("echo x >>{}", shell_word(log.to_str().expect("it is text")));
    let mut ours = 0;
    let mut waiting: Vec<u64> = Vec::new();
    let (mut next, mut taken) = (0, 0);
    assert!(
        wait_until(4 * TIMEOUT, || {
            while next < COUNT && waiting.len() < 6 {
                requester.submit(&ExecRequest::new(id(next), &line)).expect("there is room");
                waiting.push(next);
                next += 1;
            }
            // Every third look is ours; the script gets the others.
            if (taken % 3 == 0 || waiting.len() < 3)
                && let Some(Arrival::Request(claimed, request)) = pull(&mut inbox)
            {
                ours += 1;
                claimed.answer(&run(&request)).expect("there is room");
            }
            waiting.retain(|number| match requester.take(&id(*number)).expect("results are good") {
                Some(result) => {
                    assert_eq!((result.exit_code, result.stderr.as_str()), (0, ""));
                    taken += 1;
                    false
                }
                None => true,
            });
            taken == COUNT
        }),
        "{taken} of {COUNT}"
    );
    assert_eq!(fs::read_to_string(log).expect("it was written").lines().count() as u64, COUNT);
    assert!(ours > 0 && ours < COUNT, "both took part: {ours}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_shell_reads_quoted_words_as_they_are(words in proptest::collection::vec("[^\0]{0,12}", 1..4)) {
        let request = ExecRequest { args: words.clone(), ..ExecRequest::new(id(1), r"printf '%s\0'") };
        let output = command("sh").args(["-c", &request.shell_line()]).output().expect("there is a shell");
        let expected: String = words.iter().map(|word| format!("{word}\0")).collect();
        prop_assert_eq!(String::from_utf8(output.stdout).expect("it is text"), expected);
    }
}
