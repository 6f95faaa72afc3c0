//! The rows of the table. Commands are for any POSIX shell.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use super::table::{Case, Expect, Request};
use super::volume::Outcome;

/// The most bytes that are answered of a stream.
const STREAM_BYTES: usize = 51_200;
/// The most bytes of a request.
const REQUEST_BYTES: usize = 1024 * 1024;
/// Seconds until a command is ended that would not end.
pub(super) const TIMEOUT: u64 = 2;
/// In commands and arguments, and so never in a log.
pub(super) const SECRET: &str = "a-password-in-a-command";

pub(super) fn ended(exit_code: i64, stdout: &str, stderr: &str) -> Outcome {
    Outcome { exit_code, stdout: stdout.to_owned(), stderr: stderr.to_owned(), timed_out: false }
}

fn timed_out(stdout: &str) -> Outcome {
    Outcome { timed_out: true, ..ended(124, stdout, "") }
}

/// A request that is answered, and how.
fn answered(name: &'static str, request: Value, outcome: Outcome) -> Case {
    Case { name, request: Request::Object(request), expect: Expect::Result(outcome) }
}

/// A request whose output is this, and nothing else happens.
fn printed(name: &'static str, request: Value, stdout: &str) -> Case {
    answered(name, request, ended(0, stdout, ""))
}

fn complained(name: &'static str, request: Value, code: i64, stdout: &'static str) -> Case {
    Case { name, request: Request::Object(request), expect: Expect::Complaint(code, stdout) }
}

/// A request that must not run: its `command`, unless it has one, would leave a trace.
fn refused(name: &'static str, mut request: Value, word: &'static str) -> Case {
    if request.get("command").is_none() {
        request["command"] = format!("touch '{{W}}/ran-{name}'").into();
    }
    Case { name, request: Request::Object(request), expect: Expect::Refusal(word) }
}

fn refused_bytes(name: &'static str, content: &str) -> Case {
    Case { name, request: Request::Bytes(content.into()), expect: Expect::Refusal("request") }
}

fn planted(name: &'static str, plant: fn(&Path, &Path)) -> Case {
    Case { name, request: Request::Planted(plant), expect: Expect::Refusal("request") }
}

/// A request for another pack.
fn silent(name: &'static str, target: &str) -> Case {
    Case {
        name,
        request: Request::Object(json!({"command": format!("touch '{{W}}/ran-{name}'"), "target": target})),
        expect: Expect::Silence,
    }
}

/// The whole table.
pub(super) fn cases() -> Vec<Case> {
    let parts = [ordinary(), outputs(), endings(), directories(), targets(), wrong()];
    parts.into_iter().flatten().collect()
}

fn ordinary() -> Vec<Case> {
    let padded = |bytes: usize| {
        let request = json!({"id": "request-of-the-most-bytes", "command": "echo fits", "stdin": ""});
        let padding = "x".repeat(bytes - request.to_string().len());
        let text = request.to_string();
        text.replace("\"stdin\":\"\"", &format!("\"stdin\":\"{padding}\""))
    };
    vec![
        printed("a-line", json!({"command": "echo hi"}), "hi\n"),
        printed(
            "fields-that-are-null",
            json!({"command": "echo hi", "args": null, "workDir": null, "timeout": null, "target": null,
                   "argv": null, "stdin": null, "_meta": null}),
            "hi\n",
        ),
        printed(
            "fields-that-are-empty",
            json!({"command": "pwd", "args": [], "workDir": "", "target": "", "argv": [], "stdin": ""}),
            "{W}\n",
        ),
        printed(
            "unknown-fields",
            json!({"command": "echo hi", "later": [1, {"a": 2}],
                   "_meta": {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}),
            "hi\n",
        ),
        printed("several_lines.of-shell", json!({"command": "a=1\nb=2\necho $((a + b))\n"}), "3\n"),
        printed(
            "args-are-words",
            json!({"command": "printf '<%s>'",
                   "args": ["a b", "it's", "$HOME `id` \"x\" \\", "", "*", "line\nfeed\n", "; echo no", "--", "é"]}),
            "<a b><it's><$HOME `id` \"x\" \\><><*><line\nfeed\n><; echo no><--><é>",
        ),
        printed(
            "argv-has-no-shell",
            json!({"command": "echo the shell", "args": ["unused"],
                   "argv": ["printf", "<%s>", "a b", "$HOME", "*", "'", "", "; echo no", "line\nfeed\n"]}),
            "<a b><$HOME><*><'><><; echo no><line\nfeed\n>",
        ),
        printed(
            "secrets-in-commands",
            json!({"command": format!("echo {SECRET}"), "args": [SECRET]}),
            &format!("{SECRET} {SECRET}\n"),
        ),
        refused("secrets-in-refused-commands", json!({"command": SECRET, "timeout": SECRET}), "timeout"),
        printed("stdin-is-exact", json!({"argv": ["cat"], "stdin": "no line feed"}), "no line feed"),
        printed("stdin-with-anything", json!({"argv": ["cat"], "stdin": "\n\u{0}é\t\\\n\n"}), "\n\u{0}é\t\\\n\n"),
        printed("argv-without-stdin", json!({"argv": ["cat"]}), ""),
        printed("line-without-stdin", json!({"command": "cat; echo over"}), "over\n"),
        printed("declared-environment", json!({"command": "printf %s \"$API_URL\""}), "https://api.example.com"),
        printed(
            "our-own-environment",
            json!({"command": "env | grep -e '^SKILL_TOKEN' -e '^SYMPOZIUM_' | grep -v '^SYMPOZIUM_SKILL_PACK='; true"}),
            "",
        ),
        Case {
            name: "request-of-the-most-bytes",
            request: Request::Bytes(padded(REQUEST_BYTES).into_bytes()),
            expect: Expect::Result(ended(0, "fits\n", "")),
        },
        refused_bytes("request-of-one-byte-too-many", &padded(REQUEST_BYTES + 1)),
    ]
}

/// A shell line that prints so many `x`.
fn xs(count: usize) -> String {
    format!("head -c {count} /dev/zero | tr '\\0' x")
}

fn outputs() -> Vec<Case> {
    let line = |command: String| json!({"command": command});
    let most = "x".repeat(STREAM_BYTES);
    let cut = |name, before: usize, character: &str| {
        let command = format!("{}; printf '{character}'", xs(before));
        printed(name, line(command), &"x".repeat(before))
    };
    vec![
        answered("both-streams", json!({"command": "echo out; echo err >&2"}), ended(0, "out\n", "err\n")),
        printed("stream-of-the-most-bytes", line(xs(STREAM_BYTES)), &most),
        printed("stream-of-one-byte-too-many", line(xs(STREAM_BYTES + 1)), &most),
        answered(
            "a-flood-of-both",
            line(format!("({}) >&2 & {}; wait", xs(3_000_000), xs(3_000_000))),
            ended(0, &most, &most),
        ),
        printed(
            "a-character-that-just-fits",
            line(format!("{}; printf é; echo over", xs(STREAM_BYTES - 2))),
            &format!("{}é", "x".repeat(STREAM_BYTES - 2)),
        ),
        cut("a-cut-character-of-2-bytes", STREAM_BYTES - 1, "é"),
        cut("a-cut-character-of-3-bytes", STREAM_BYTES - 2, "€"),
        cut("a-cut-character-of-4-bytes", STREAM_BYTES - 1, "😀"),
        printed(
            "characters-across-any-block",
            line("i=0; while [ $i -lt 9000 ]; do printf é; i=$((i + 1)); done; printf x; echo €".to_owned()),
            &format!("{}x€\n", "é".repeat(9000)),
        ),
        printed("bytes-that-are-no-text", line("printf 'a\\377b\\300'".to_owned()), "a\u{fffd}b\u{fffd}"),
        printed("a-nul-byte", line("printf 'a\\000b'".to_owned()), "a\u{0}b"),
        printed("control-characters", line("printf '\\033[1m\\r\\177'".to_owned()), "\u{1b}[1m\r\u{7f}"),
        printed("no-line-feed-at-the-end", line("printf hi".to_owned()), "hi"),
        printed("line-feeds-at-the-end", line("printf 'hi\\n\\n\\n'".to_owned()), "hi\n\n\n"),
    ]
}

fn endings() -> Vec<Case> {
    let forever = "sh -c 'while :; do sleep 1; done' {M}";
    let line = |command: &str| json!({"command": command});
    vec![
        answered("exit-code", line("echo out; echo err >&2; exit 3"), ended(3, "out\n", "err\n")),
        answered("exit-124-is-no-timeout", line("exit 124"), ended(124, "", "")),
        answered("exit-255", line("exit 255"), ended(255, "", "")),
        complained("no-such-command", line("echo first; no-such-command-anywhere"), 127, "first\n"),
        complained("not-executable", line("'{W}/plain'"), 126, ""),
        complained("argv-not-found", json!({"argv": ["/nonexistent/program"]}), 127, ""),
        complained("argv-not-executable", json!({"argv": ["{W}/plain"]}), 126, ""),
        answered("killed-by-term", line("kill -TERM $$"), ended(143, "", "")),
        answered("killed-by-kill", line("kill -KILL $$"), ended(137, "", "")),
        answered("killed-by-usr1", line("kill -USR1 $$"), ended(138, "", "")),
        answered(
            "times-out",
            json!({"command": format!("echo begun; {forever} & {forever}"), "timeout": TIMEOUT}),
            timed_out("begun\n"),
        ),
        answered(
            "times-out-deaf",
            json!({"command": format!("trap '' TERM HUP INT; echo begun; {forever}"), "timeout": TIMEOUT}),
            timed_out("begun\n"),
        ),
        answered(
            "times-out-polite",
            json!({"command": "exec 2>/dev/null; trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done",
                   "timeout": TIMEOUT}),
            timed_out("begun\n"),
        ),
        answered(
            "times-out-without-shell",
            json!({"argv": ["sh", "-c", "echo begun; while :; do sleep 1; done", "{M}"], "timeout": TIMEOUT}),
            timed_out("begun\n"),
        ),
        answered(
            "times-out-unread",
            json!({"argv": ["sh", "-c", "while :; do sleep 1; done", "{M}"], "stdin": "x".repeat(300_000),
                   "timeout": TIMEOUT}),
            timed_out(""),
        ),
        printed("leaves-a-process-behind", line(&format!("{forever} & echo over")), "over\n"),
        printed("timeout-of-zero", json!({"command": "sleep 1.5; echo over", "timeout": 0}), "over\n"),
        printed("timeout-below-zero", json!({"command": "sleep 1.5; echo over", "timeout": -5}), "over\n"),
        printed("timeout-far-too-long", json!({"command": "echo over", "timeout": 1_000_000_000}), "over\n"),
    ]
}

fn directories() -> Vec<Case> {
    vec![
        printed("directory-by-default", json!({"command": "pwd"}), "{W}\n"),
        printed("directory-by-name", json!({"command": "pwd", "workDir": "/usr"}), "/usr\n"),
        printed("argv-in-its-directory", json!({"argv": ["pwd"], "workDir": "/usr"}), "/usr\n"),
        refused("directory-that-is-missing", json!({"workDir": "/nonexistent/place"}), "workDir"),
        refused("directory-that-is-a-file", json!({"workDir": "{W}/plain"}), "workDir"),
        refused("directory-of-another-type", json!({"workDir": 7}), "workDir"),
    ]
}

fn targets() -> Vec<Case> {
    let aimed = |name, target: &str| printed(name, json!({"command": "echo hi", "target": target}), "hi\n");
    vec![
        aimed("target-as-it-is", "Test-Pack"),
        aimed("target-in-capitals", "TEST-PACK"),
        aimed("target-with-spaces", " te st\t-\r\npa\u{b}ck\u{c} "),
        aimed("target-of-spaces-only", " \t"),
        silent("target-of-another", "k8s-ops"),
        silent("target-with-more", "test-packs"),
        silent("target-with-less", "test-pac"),
        // A Cyrillic letter, and a Kelvin sign whose lower case is a Latin letter.
        silent("target-look-alike", "tеst-pack"),
        silent("target-kelvin", "test-pac\u{212a}"),
        refused("target-of-another-type", json!({"target": 1}), "target"),
    ]
}

fn wrong() -> Vec<Case> {
    let many = vec!["x"; 5000];
    vec![
        refused_bytes("an-empty-file", ""),
        refused_bytes("half-an-object", r#"{"id":"half-an-object","command":"touch x"#),
        refused_bytes("an-array", r#"[{"id":"an-array","command":"true"}]"#),
        refused_bytes("null", "null"),
        refused_bytes("two-objects", r#"{"id":"two-objects","command":"true"}{"id":"two-objects"}"#),
        refused_bytes("deep-nesting", &"[".repeat(200_000)),
        refused("command-of-another-type", json!({"command": 5}), "command"),
        refused("command-missing", json!({"command": null}), "command"),
        refused("command-empty", json!({"command": ""}), "command"),
        refused("command-with-nul", json!({"command": "true\u{0}false"}), "command"),
        refused("command-too-long", json!({"command": format!("true {}", "x".repeat(140_000))}), "command"),
        refused("args-of-another-type", json!({"args": "x"}), "args"),
        refused("args-with-a-number", json!({"args": ["x", 1]}), "args"),
        refused("args-with-nul", json!({"args": ["x\u{0}y"]}), "args"),
        refused("argv-of-another-type", json!({"argv": "ls"}), "argv"),
        refused("argv-with-nul", json!({"argv": ["echo", "x\u{0}y"]}), "argv"),
        refused("argv-too-many", json!({"argv": many}), "argv"),
        refused("stdin-of-another-type", json!({"stdin": 5}), "stdin"),
        refused("timeout-as-a-string", json!({"timeout": "5"}), "timeout"),
        refused("timeout-with-a-fraction", json!({"timeout": 1.5}), "timeout"),
        refused("id-of-another", json!({"id": "somebody-else"}), "id"),
        refused("id-of-another-type", json!({"id": 7}), "id"),
        refused_bytes_for_id("id-missing"),
        planted("request-is-a-link", |path, outside| {
            let real = outside.join("a-real-request");
            fs::write(&real, r#"{"id":"request-is-a-link","command":"echo followed"}"#).expect("a file");
            std::os::unix::fs::symlink(real, path).expect("a link");
        }),
        planted("request-is-a-dangling-link", |path, _| {
            std::os::unix::fs::symlink("/nonexistent", path).expect("a link");
        }),
        planted("request-is-a-fifo", |path, _| {
            let mode = rustix::fs::Mode::from_raw_mode(0o666);
            let here = rustix::fs::CWD;
            rustix::fs::mknodat(here, path, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("its mode");
        }),
        planted("request-is-a-directory", |path, _| fs::create_dir(path).expect("a directory")),
    ]
}

/// Not by [`refused`], which adds the id.
fn refused_bytes_for_id(name: &'static str) -> Case {
    Case { name, request: Request::Bytes(br#"{"command":"true"}"#.to_vec()), expect: Expect::Refusal("id") }
}
