//! `sympozium secret`, on a terminal and in scripts. A value is never printed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use rustix::termios::{LocalModes, tcgetattr};
use sympozium_testkit::terminal::Terminal;
use tempfile::TempDir;

use super::*;

const VALUE: &str = "hunter2-hunter2";

struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(machine.0.path(), fs::Permissions::from_mode(0o700)).unwrap();
        machine
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn stored(&self, name: &str) -> PathBuf {
        self.state().join("secrets/default").join(name)
    }

    /// Runs the program with `input` as standard input, and asserts that the value is not printed.
    fn run(&self, arguments: &[&str], input: &str) -> Output {
        let mut all = vec!["secret"];
        all.extend(arguments);
        let mut program = program(&all);
        let mut child = program
            .env("SYMPOZIUM_STATE", self.state())
            .env("TEST_SECRET", VALUE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The program may not read it.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        for printed in [stdout(&output), stderr(&output)] {
            assert!(!printed.contains("hunter2"), "{printed}");
            assert!(!printed.contains("aHVudGVy"), "{printed}");
        }
        output
    }

    fn done(&self, arguments: &[&str], input: &str) -> Output {
        let output = self.run(arguments, input);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        output
    }

    fn refused(&self, arguments: &[&str], input: &str, code: i32, expected: &str) {
        let output = self.run(arguments, input);
        let printed = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(printed.contains(expected) && printed.contains("\nhint: "), "{printed}");
    }

    fn value(&self, name: &str, key: &str) -> Vec<u8> {
        use base64::Engine as _;
        let text = fs::read_to_string(self.stored(&format!("{name}.json"))).unwrap();
        let stored: serde_json::Value = serde_json::from_str(&text).unwrap();
        let engine = base64::engine::general_purpose::STANDARD;
        engine.decode(stored["data"][key].as_str().unwrap()).unwrap()
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn values_come_from_a_pipe_a_file_or_a_variable() {
    let machine = Machine::new();
    let output = machine.done(&["list"], "");
    assert_eq!(stdout(&output), "");
    let output = machine.done(&["set", "github", "TOKEN"], &format!("{VALUE}\n"));
    assert_eq!((stdout(&output), stderr(&output)), ("", "set key TOKEN of Secret github\n"));
    assert_eq!(machine.value("github", "TOKEN"), VALUE.as_bytes());
    let file = machine.0.path().join("file");
    fs::write(&file, format!("{VALUE}\n\n")).unwrap();
    let file = file.to_str().unwrap();
    machine.done(&["set", "github", "file", "--from-file", file], "");
    assert_eq!(machine.value("github", "file"), format!("{VALUE}\n\n").as_bytes());
    machine.done(&["set", "a.b", "env", "--from-env", "TEST_SECRET"], "");
    assert_eq!(machine.value("a.b", "env"), VALUE.as_bytes());
    let output = machine.done(&["list"], "");
    assert_eq!(stdout(&output), "NAME    KEYS\na.b     env\ngithub  TOKEN, file\n");
    let output = machine.done(&["list", "-o", "json"], "");
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = serde_json::json!({
        "namespace": "default",
        "secrets": [{"name": "a.b", "keys": ["env"]}, {"name": "github", "keys": ["TOKEN", "file"]}],
    });
    assert_eq!(listed, expected);
    machine.done(&["rm", "github", "file"], "");
    machine.done(&["rm", "a.b"], "");
    let output = machine.done(&["list"], "");
    assert_eq!(stdout(&output), "NAME    KEYS\ngithub  TOKEN\n");
    machine.refused(&["rm", "a.b"], "", 1, "there is no Secret a.b in namespace default");
    machine.refused(&["rm", "github", "file"], "", 1, "there is no key file of Secret github");
}

#[test]
fn namespaces_are_separate() {
    let machine = Machine::new();
    machine.done(&["set", "-n", "team", "github", "TOKEN"], VALUE);
    let output = machine.done(&["list"], "");
    assert_eq!(stdout(&output), "");
    let output = machine.done(&["list", "--namespace", "team"], "");
    assert_eq!(stdout(&output), "NAME    KEYS\ngithub  TOKEN\n");
    machine.refused(&["rm", "github"], "", 1, "there is no Secret github");
    let output = machine.run(&["list", "-n", "../x"], "");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_value_on_the_command_line_is_refused_and_not_quoted() {
    let machine = Machine::new();
    let typed = format!("TOKEN={VALUE}");
    for arguments in [
        &["set", "github", &typed][..],
        &["set", "github", "TOKEN", VALUE],
        &["set", "github", "TOKEN", VALUE, "--from-env", "TEST_SECRET"],
        &["rm", "github", &typed],
    ] {
        let expected = match arguments.first() {
            Some(&"rm") => "a value on the command line is not accepted",
            _ => "a value on the command line is not accepted: other users of this machine could read it",
        };
        machine.refused(arguments, "", 2, expected);
    }
    assert!(!machine.state().join("secrets").exists());
}

#[test]
fn invalid_secrets_are_refused() {
    let machine = Machine::new();
    let missing = machine.0.path().join("missing");
    let missing = missing.to_str().unwrap();
    for (arguments, input, code, expected) in [
        (&["set", "github", "TOKEN"][..], "", 1, "the value is empty"),
        (&["set", "github", "TOKEN"], "\n", 1, "the value is empty"),
        (&["set", "github", "a/b"], VALUE, 2, "is not a valid key"),
        (&["set", "../github", "a"], VALUE, 2, "is not a valid name of a Secret"),
        (&["set", "GitHub", "a"], VALUE, 2, "is not a valid name of a Secret"),
        (&["set", "github", "a", "--from-env", "NOT_SET_HERE"], "", 1, "the variable is not set"),
        (&["set", "github", "a", "--from-file", missing], "", 1, "cannot read"),
        (&["set", "github", "a", "--from-file", "/dev/zero"], "", 1, "is not a regular file"),
    ] {
        machine.refused(arguments, input, code, expected);
    }
    let large = VALUE.repeat((1 << 20) / VALUE.len() + 1);
    machine.refused(&["set", "github", "TOKEN"], &large, 1, "more than 1048576 bytes");
    let output = machine.done(&["list"], "");
    assert_eq!(stdout(&output), "");
}

#[test]
fn files_that_are_accessible_to_others_are_refused() {
    let machine = Machine::new();
    machine.done(&["set", "github", "TOKEN"], VALUE);
    machine.done(&["set", "other", "TOKEN"], VALUE);
    let path = machine.stored("github.json");
    let refused = |expected: &str| {
        machine.refused(&["set", "github", "MORE"], VALUE, 1, expected);
        // The others are listed nevertheless.
        let output = machine.run(&["list"], "");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(stdout(&output), "NAME    KEYS\nother   TOKEN\n");
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        let output = machine.run(&["list", "-o", "json"], "");
        assert_eq!(output.status.code(), Some(1));
    };
    set_mode(&path, 0o644);
    refused("is accessible to other users (mode 644)");
    fs::remove_file(&path).unwrap();
    symlink(machine.stored("other.json"), &path).unwrap();
    refused("is a symbolic link");
    machine.done(&["rm", "github"], "");
    assert!(machine.stored("other.json").exists());
    machine.done(&["set", "github", "TOKEN"], VALUE);
    assert_eq!(machine.value("github", "TOKEN"), VALUE.as_bytes());
}

#[test]
fn directories_that_are_accessible_to_others_are_refused() {
    let machine = Machine::new();
    machine.done(&["set", "github", "TOKEN"], VALUE);
    for directory in ["secrets", "secrets/default", ""] {
        let directory = machine.state().join(directory);
        set_mode(&directory, 0o770);
        for arguments in [&["list"][..], &["set", "x", "y"], &["rm", "github"]] {
            machine.refused(arguments, VALUE, 1, "other users");
        }
        set_mode(&directory, 0o700);
    }
    assert_eq!(machine.value("github", "TOKEN"), VALUE.as_bytes());
    if !sympozium_testkit::as_user::is_root() {
        sympozium_testkit::skip!("a directory of another user needs root");
    }
    for directory in ["secrets/default", "secrets", ""] {
        let directory = machine.state().join(directory);
        std::os::unix::fs::chown(&directory, Some(sympozium_testkit::as_user::ORDINARY), None).unwrap();
        machine.refused(&["list"], "", 1, "belongs to another user");
        std::os::unix::fs::chown(&directory, Some(0), None).unwrap();
    }
    machine.done(&["list"], "");
}

#[test]
fn a_terminal_prompts_without_echo() {
    let machine = Machine::new();
    let set = |typed: &str| {
        let terminal = Terminal::new(24, 80).unwrap();
        let program = env!("CARGO_BIN_EXE_sympozium");
        let mut program = terminal.command(program).unwrap();
        program.args(["secret", "set", "github", "TOKEN"]);
        let mut child = program.env("SYMPOZIUM_STATE", machine.state()).spawn().unwrap();
        terminal.wait_for("Value of TOKEN (not shown):");
        terminal.type_in(typed).unwrap();
        let code = child.wait().unwrap().code();
        // The echo is restored in every case.
        let modes = tcgetattr(terminal.open().unwrap()).unwrap().local_modes;
        let usual = LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        assert!(modes.contains(usual), "{modes:?}");
        (code, terminal)
    };
    let (code, terminal) = set(&format!("{VALUE}x\u{7f}\r"));
    terminal.wait_for("set key TOKEN of Secret github");
    assert_eq!(code, Some(0));
    assert!(!terminal.raw().contains("hunter"), "{}", terminal.raw());
    assert_eq!(machine.value("github", "TOKEN"), VALUE.as_bytes());
    let (code, terminal) = set("hunter3\u{3}");
    terminal.wait_for("interrupted; the Secret is unchanged");
    assert_eq!(code, Some(1));
    assert!(!terminal.raw().contains("hunter"), "{}", terminal.raw());
    assert_eq!(machine.value("github", "TOKEN"), VALUE.as_bytes());
}
