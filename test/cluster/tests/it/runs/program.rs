//! `sympozium` as people use it, against the real controller and gateway: a run that asks, one that is cancelled, and
//! everything that is printed about them.

use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sympozium_testkit::cluster::{Exclusivity, eventually};
use sympozium_testkit::{command, static_build};
use tempfile::TempDir;

use super::harness::{Harness, PATIENCE, commands, hold, scripted, shell_pack};

/// Names another program to be tried, as for the conformance suite.
const BINARY: &str = "SYMPOZIUM_BINARY";
/// What a person is asked about.
const ASKED: &str = "echo hello from the cluster";
/// A policy by which commands are asked about.
const RULES: &str = "\n---\napiVersion: sympozium.ai/v1alpha1\nkind: SympoziumPolicy\nmetadata: {name: rules}\nspec:\n  \
    toolGating: {defaultAction: allow, rules: [{tool: execute_command, action: ask}]}\n";

/// The program that the conformance suite tries.
fn program() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(BINARY) {
        return Ok(given.into());
    }
    static_build::program("sympozium-under-test")
}

/// A user with the program, a kubeconfig and a directory.
struct Person<'h> {
    harness: &'h Harness,
    program: PathBuf,
    context: String,
    folder: TempDir,
}

impl<'h> Person<'h> {
    fn new(harness: &'h Harness) -> Result<Self> {
        let config = std::fs::read_to_string(harness.cluster.kubeconfig())?;
        let config: Value = serde_saphyr::from_str(&config)?;
        let context = config["current-context"].as_str().context("a context")?;
        Ok(Self { harness, program: program()?, context: context.to_owned(), folder: tempfile::tempdir()? })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command in the namespace of the test.
    fn command(&self, words: &[&str]) -> std::process::Command {
        let mut command = command(&self.program);
        command
            .args(words)
            .arg("--kubeconfig")
            .arg(self.harness.cluster.kubeconfig())
            .args(["--context", &self.context])
            .args(["--namespace", self.harness.namespace.name()])
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Result<Printed> {
        let output = self.command(words).output()?;
        Ok(Printed::of(words, &output))
    }

    /// What a command that ends well prints.
    fn stdout(&self, words: &[&str]) -> Result<String> {
        let printed = self.run(words)?;
        ensure!(printed.code == Some(0), "{printed:?}");
        Ok(printed.stdout)
    }

    /// The same as a value.
    fn value(&self, words: &[&str]) -> Result<Value> {
        let words = [words, &["-o", "json"]].concat();
        serde_json::from_str(&self.stdout(&words)?).with_context(|| words.join(" "))
    }

    /// Starts a command whose output goes to files.
    fn start(&self, words: &[&str]) -> Result<Child> {
        let file = |name: &str| std::fs::File::create(self.path(name));
        let mut command = self.command(words);
        command.stdout(file("stdout")?).stderr(file("stderr")?);
        command.spawn().context("starting sympozium")
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

/// What a command came to.
#[derive(Debug)]
#[expect(dead_code, reason = "shown as a whole where something is wrong")]
struct Printed {
    words: String,
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Printed {
    fn of(words: &[&str], output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            words: words.join(" "),
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

#[test]
fn a_person_runs_answers_looks_cancels_and_removes() -> Result<()> {
    let Some(harness) = Harness::new("program", Exclusivity::shared())? else {
        return Ok(());
    };
    let person = Person::new(&harness)?;
    runs_and_answers(&person)?;
    looks(&person)?;
    cancels(&person)?;
    removes(&person)
}

/// A run is started and followed; its question is answered by another process; the first one ends with the answer.
fn runs_and_answers(person: &Person<'_>) -> Result<()> {
    let agent = "  policyRef: rules\n  skills: [{skillPackRef: tools}]";
    let files = scripted("asks", &commands(&[ASKED]), agent, "") + &shell_pack("tools") + RULES;
    write(&person.path("asks.yaml"), &files)?;
    let mut run = person.start(&["run", "asks.yaml"])?;
    let question = eventually("a question", PATIENCE, || {
        let waiting = person.value(&["approvals"])?;
        let first = waiting[0]["question"].clone();
        ensure!(run.try_wait()?.is_none(), "it ended before a question was asked: {}", person.read("stderr"));
        Ok((!first.is_null()).then_some(first))
    })?;
    assert_eq!(question["tool"], "execute_command", "{question}");
    let action = question["action"].as_str().context("an action")?;
    let listed = person.stdout(&["approvals"])?;
    assert!(listed.contains(ASKED) && listed.contains(action), "{listed}");
    // Of another action nothing is approved, and the run waits.
    let other = format!("sha256:{}", "0".repeat(64));
    let refused = person.run(&["approve", "asks", "--action", &other])?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let approve = ["approve", "asks", "--action", action, "--reason", "it is fine"];
    let approved = person.stdout(&approve)?;
    assert!(approved.starts_with("approved: "), "{approved}");

    let code = eventually("`sympozium run` to end", PATIENCE, || Ok(run.try_wait()?.map(|it| it.code())))?;
    let printed = person.read("stderr");
    assert_eq!((code, person.read("stdout").as_str()), (Some(0), "Done.\n"), "{printed}");
    assert!(printed.contains("succeeded after "), "{printed}");
    // An answered question does not wait.
    assert_eq!(person.value(&["approvals"])?, json!([]));
    Ok(())
}

/// Everything that is printed about a run that is finished.
fn looks(person: &Person<'_>) -> Result<()> {
    let run = person.harness.ended("asks")?;
    let uid = run["metadata"]["uid"].as_str().context("a UID")?;
    let listed = person.value(&["runs"])?;
    assert_eq!(
        (&listed[0]["name"], &listed[0]["uid"], &listed[0]["state"]),
        (&json!("asks"), &json!(uid), &json!("succeeded")),
        "{listed}"
    );
    let shown = person.value(&["show", "asks"])?;
    assert_eq!(
        (&shown["outcome"], &shown["leftovers"]),
        (&json!({ "is": "succeeded", "answer": "Done." }), &json!([])),
        "{shown}"
    );
    assert_eq!(shown["plan"], run["status"]["planDigest"], "{shown}");
    let shown = person.stdout(&["show", &uid[..8]])?;
    assert!(shown.contains("succeeded") && shown.contains("ANSWER\n  Done."), "{shown}");
    let logs = person.stdout(&["logs", "asks"])?;
    assert!(logs.contains("hello from the cluster") && logs.ends_with("answer:\n  Done.\n"), "{logs}");
    let receipts = person.stdout(&["audit", "asks"])?;
    assert!(receipts.contains("execute_command"), "{receipts}");
    let lines = person.stdout(&["audit", "asks", "-o", "jsonl"])?;
    let kinds: Vec<String> = lines
        .lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line)?;
            Ok(value["event"]["kind"].as_str().unwrap_or("?").to_owned())
        })
        .collect::<Result<_>>()?;
    let count = |kind: &str| kinds.iter().filter(|it| *it == kind).count();
    assert_eq!(["started", "asked", "answered", "acted", "ended"].map(count), [1; 5], "{kinds:?}");
    let verified = person.stdout(&["audit", "verify", "asks"])?;
    let head = run["status"]["report"]["receiptsHead"].as_str();
    let head = head.context("a head")?;
    assert!(
        verified.starts_with("ok: asks (") && verified.contains(&format!("{} receipts, head {head}", kinds.len())),
        "{verified}"
    );
    let explained = person.stdout(&["explain", "asks"])?;
    assert!(explained.contains("tools") && explained.contains("execute_command"), "{explained}");
    Ok(())
}

/// A second run is left to itself, and ended in the middle.
fn cancels(person: &Person<'_>) -> Result<()> {
    let skills = "  skills: [{skillPackRef: tools}]";
    write(&person.path("held.yaml"), &scripted("held", &hold(), skills, ""))?;
    assert_eq!(person.stdout(&["run", "held.yaml", "--detach"])?, "held\n");
    person.harness.pod_with("held", "agent")?;
    // One that goes on is not removed.
    let goes_on = person.run(&["rm", "held"])?;
    assert_eq!(goes_on.code, Some(1), "{goes_on:?}");
    let ending = person.stdout(&["cancel", "held"])?;
    assert!(ending.starts_with("cancelling held ("), "{ending}");
    let run = person.harness.ended("held")?;
    assert_eq!(run["status"]["phase"], "Cancelled", "{run}");
    let shown = person.value(&["show", "held"])?;
    assert_eq!((&shown["outcome"]["is"], &shown["leftovers"]), (&json!("cancelled"), &json!([])), "{shown}");
    assert_eq!(person.harness.left_of(&run)?, Vec::<String>::new());
    let again = person.run(&["cancel", "held"])?;
    assert_eq!(again.code, Some(1), "{again:?}");
    Ok(())
}

/// Both are removed, and with them what was kept.
fn removes(person: &Person<'_>) -> Result<()> {
    for name in ["asks", "held"] {
        let removed = person.stdout(&["rm", name])?;
        assert!(removed.starts_with(&format!("removed {name} (")), "{removed}");
        let gone = person.run(&["show", name])?;
        assert_eq!((gone.code, gone.stdout.as_str()), (Some(1), ""), "{gone:?}");
    }
    eventually("records and plans to go with their runs", PATIENCE, || {
        let kept = ["get", "agentruns,runrecords,toolapprovals"];
        let kept = person.harness.kubectl().json(&kept)?;
        let plans = "--selector=sympozium.ai/component=plan";
        let plans = person.harness.kubectl().json(&["get", "configmaps", plans])?;
        let none = |list: &Value| list["items"].as_array().is_some_and(Vec::is_empty);
        Ok((none(&kept) && none(&plans)).then_some(()))
    })
}
