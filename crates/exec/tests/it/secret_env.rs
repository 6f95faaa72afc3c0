//! A secret in the environment is in one place after it was taken, and in none after it was dropped. A process of its
//! own takes it, and the test looks into that process's memory.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};
use sympozium_exec::secret_env::MAX_SECRET_BYTES;
use sympozium_testkit::as_user;

use crate::sandbox::{STAGE, stage};

const NAME: &str = "PROVIDER_KEY";
/// Has what separates names from values, and its own name.
const SECRET: &str = "sk-9f3ab=PROVIDER_KEY=77e1c=5d02c8e4b6a190d3";

struct Taker {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Taker {
    fn start(words: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = sympozium_testkit::command(stage())
            .arg("take-secret")
            .args(words)
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdin = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, stdin, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("a line").expect("text")
    }

    fn go_on(&mut self) {
        self.stdin.write_all(b"\n").expect("it reads");
    }

    fn end(mut self) {
        self.go_on();
        assert!(self.child.wait().expect("an end").success());
    }

    fn environ(&self) -> Vec<u8> {
        std::fs::read(format!("/proc/{}/environ", self.child.id())).expect("readable")
    }

    /// How often the bytes are in memory that the process can write.
    fn in_memory(&self, bytes: &[u8]) -> usize {
        let pid = self.child.id();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        let memory = File::open(format!("/proc/{pid}/mem")).expect("memory");
        let writable = maps.lines().filter(|line| line.contains(" rw"));
        let counts = writable.map(|line| {
            let range = line.split(' ').next().and_then(|it| it.split_once('-'));
            let (start, end) = range.expect("a range");
            let address = |text| u64::from_str_radix(text, 16).expect("an address");
            let (start, end) = (address(start), address(end));
            let mut content = vec![0; usize::try_from(end - start).expect("a size")];
            memory.read_exact_at(&mut content, start).expect("mapped");
            count(&content, bytes)
        });
        counts.sum()
    }
}

fn count(within: &[u8], bytes: &[u8]) -> usize {
    let places = within.windows(bytes.len());
    places.filter(|place| *place == bytes).count()
}

fn one_place() {
    let longer = "PROVIDER_KEY_2";
    let variables = [(longer, "another-value"), (NAME, SECRET), ("LAST", "there")];
    let mut taker = Taker::start(&[NAME], &variables);
    let told: Value = serde_json::from_str(&taker.line()).expect("JSON");
    let backwards: String = SECRET.chars().rev().collect();
    assert_eq!(told, json!({"taken": backwards, "left": null}));
    assert_eq!(taker.in_memory(SECRET.as_bytes()), 1);
    assert_eq!(taker.in_memory(b"another-value"), 1, "the scan sees the environment");
    // The kernel shows the block as it was laid out, with nothing where the value was.
    let (environ, blank) = (taker.environ(), "\0".repeat(SECRET.len()));
    for (name, content) in variables {
        let shown = if name == NAME { &blank } else { content };
        let entry = format!("{name}={shown}\0");
        assert_eq!(count(&environ, entry.as_bytes()), 1, "{entry:?}");
    }

    taker.go_on();
    assert_eq!(taker.line(), "dropped");
    assert_eq!(taker.in_memory(SECRET.as_bytes()), 0);
    taker.end();
}

#[test]
fn a_secret_is_in_one_place_and_then_in_none() {
    one_place();
}

#[test]
fn an_ordinary_users_secret_is_in_one_place_and_then_in_none() {
    as_user::run_with(&[(STAGE, &stage())], one_place);
}

#[test]
fn empty_absent_and_prefixes() {
    for (variables, expected) in [
        (&[(NAME, "")][..], json!("")),
        (&[], json!(null)),
        (&[("PROVIDER_KEY_2", "x"), ("PROVIDER", "y")], json!(null)),
        (&[("PROVIDER_KEY_2", "x"), (NAME, "=")], json!("=")),
    ] {
        let mut taker = Taker::start(&[NAME], variables);
        let told: Value = serde_json::from_str(&taker.line()).expect("JSON");
        assert_eq!(told, json!({"taken": expected, "left": null}));
        taker.go_on();
        assert_eq!(taker.line(), "dropped");
        taker.end();
    }
}

#[test]
fn the_longest_secret_and_one_that_is_too_long() {
    let longest = "k".repeat(MAX_SECRET_BYTES);
    let mut taker = Taker::start(&[NAME], &[(NAME, &longest)]);
    let told: Value = serde_json::from_str(&taker.line()).expect("JSON");
    assert_eq!(told, json!({"taken": longest, "left": null}));
    taker.go_on();
    assert_eq!(taker.line(), "dropped");
    taker.end();

    let too_long = "k".repeat(MAX_SECRET_BYTES + 1);
    assert_refused(Taker::start(&[NAME], &[(NAME, &too_long)]), "the value of PROVIDER_KEY has 65537 bytes");
}

#[test]
fn another_thread_is_noticed() {
    assert_refused(
        Taker::start(&[NAME, "with-thread"], &[(NAME, SECRET)]),
        "secrets must be taken before the first thread, and this process has 2",
    );
}

#[track_caller]
fn assert_refused(taker: Taker, why: &str) {
    let output = taker.child.wait_with_output().expect("an end");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(why), "{error}");
    assert_eq!(output.status.code(), Some(1));
}
