//! A run from its first event to its last: what is seen of it, and what the case has done to it.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sympozium_conformance::case::{DecisionToGive, Intervention, Meanwhile, Moment, OutcomeKind, PersonSays};
use sympozium_conformance::observed::{Records, results};
use sympozium_conformance::{Case, Observed};
use sympozium_testkit::processes;

use super::Local;
use super::home::Home;

/// How long a case may take before it counts as stuck.
const DEADLINE: Duration = Duration::from_secs(240);
/// Between two looks at the workspace, while a file in it is waited for.
const LOOK: Duration = Duration::from_millis(10);

/// A run that goes on, as far as it was seen.
pub struct RunObserver<'c> {
    local: &'c Local,
    case: &'c Case,
    home: &'c Home,
    pid: u32,
    decisions: VecDeque<DecisionToGive>,
    /// Whether what is to be done meanwhile is still to be done.
    waits: bool,
    /// Whether the receipt of a call has left the run.
    called: bool,
    uid: Option<String>,
    workspace: Option<PathBuf>,
    ended: Option<Value>,
    around: BTreeMap<String, Vec<String>>,
    surprises: Vec<String>,
}

impl<'c> RunObserver<'c> {
    pub fn new(local: &'c Local, case: &'c Case, home: &'c Home, pid: u32) -> Self {
        Self {
            local,
            case,
            home,
            pid,
            decisions: case.spec.decisions.iter().cloned().collect(),
            waits: case.spec.meanwhile.is_some(),
            called: false,
            uid: None,
            workspace: None,
            ended: None,
            around: BTreeMap::new(),
            surprises: Vec::new(),
        }
    }

    /// Follows the events to the last, and does to the run what the case says.
    pub fn follow(&mut self, lines: Receiver<String>) -> anyhow::Result<()> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match lines.recv_timeout(LOOK) {
                Ok(line) => {
                    let event: Value =
                        serde_json::from_str(&line).with_context(|| format!("a line that is no event: {line}"))?;
                    self.see(&event)?;
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    bail!("it is not over after {} s", DEADLINE.as_secs());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let made = match (self.moment(), &self.workspace) {
                // One that is empty was made, and not written yet.
                (Some(Moment::File(name)), Some(workspace)) => {
                    fs::metadata(workspace.join(name)).is_ok_and(|it| it.len() > 0)
                }
                _ => false,
            };
            if made && (self.called || !self.awaits_call()) {
                self.interfere()?;
            }
        }
        if self.waits {
            self.surprises.push("the moment to do something never came".to_owned());
        }
        for left in &self.decisions {
            self.surprises.push(format!("no question was asked about {}", left.tool));
        }
        Ok(())
    }

    fn see(&mut self, event: &Value) -> anyhow::Result<()> {
        if self.ended.is_some() {
            self.surprises.push(format!("an event after the last: {event}"));
        }
        match event["event"].as_str().unwrap_or_default() {
            "planned" => {
                self.uid = event["uid"].as_str().map(str::to_owned);
                self.workspace = event["workspace"].as_str().map(PathBuf::from);
            }
            "isolated" => {
                let guarantees = event["report"]["guarantees"].as_object().into_iter().flatten();
                let enforced = guarantees.filter(|(_, held)| held["state"] == "enforced");
                let part = event["part"].as_str().unwrap_or_default().to_owned();
                let names = enforced.map(|(name, _)| name.clone());
                self.around.insert(part, names.collect());
            }
            "phase" if event["phase"] == "working" && self.moment() == Some(&Moment::Working) => {
                self.interfere()?;
            }
            "receipt" => self.called |= event["receipt"]["event"]["kind"] == "called",
            "asked" if self.moment() == Some(&Moment::Asked) => self.interfere()?,
            "asked" => self.decide(&event["question"])?,
            "ended" => self.ended = Some(event.clone()),
            _ => {}
        }
        Ok(())
    }

    /// Whether the receipt of a call must have left the run before anything is done to it.
    fn awaits_call(&self) -> bool {
        let meanwhile = self.case.spec.meanwhile.as_ref();
        meanwhile.is_some_and(Meanwhile::kills_bridge_in_call)
    }

    fn moment(&self) -> Option<&'c Moment> {
        let meanwhile = self.case.spec.meanwhile.as_ref().filter(|_| self.waits);
        meanwhile.map(|it| &it.when)
    }

    /// Says what the case has the person say.
    fn decide(&mut self, question: &Value) -> anyhow::Result<()> {
        let Some(decision) = self.decisions.pop_front() else {
            self.surprises.push(format!("a question that the case has no answer for: {question}"));
            kill_process(self.raw_pid()?, Signal::INT)?;
            return Ok(());
        };
        let text = |field: &str| question[field].as_str().unwrap_or_default().to_owned();
        if text("tool") != decision.tool {
            self.surprises.push(format!("asked about {}, and not {}", text("tool"), decision.tool));
        }
        if let Some(shown) = &decision.shown {
            let wrong = shown.problems(&text("shown"));
            self.surprises.extend(wrong.iter().map(|it| format!("what the person is shown {it}")));
        }
        let (verb, more) = match decision.says {
            PersonSays::Nothing => return Ok(()),
            PersonSays::Approve => ("approve", None),
            PersonSays::ApproveForRun => ("approve", Some("--for-the-run")),
            PersonSays::Deny => ("deny", None),
        };
        let mut command = self.local.command(self.home);
        command.arg(verb).arg(self.uid.as_deref().unwrap_or_default());
        command.arg(text("approval")).args(["--action", &text("action")]).args(more);
        if let Some(reason) = &decision.reason {
            command.args(["--reason", reason]);
        }
        let output = command.output().context("the answer cannot be given")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            self.surprises.push(format!("the answer was not taken: {said}"));
            // Nobody else would answer.
            kill_process(self.raw_pid()?, Signal::INT)?;
        }
        Ok(())
    }

    /// Does to the run what the case says, at the moment that it says.
    fn interfere(&mut self) -> anyhow::Result<()> {
        self.waits = false;
        match self.case.spec.meanwhile.as_ref().map(|it| &it.act) {
            Some(Intervention::Cancel) => kill_process(self.raw_pid()?, Signal::INT)?,
            Some(Intervention::Kill(part)) => {
                let victim = self.process_of(part).with_context(|| format!("there is no process of {part}"))?;
                let victim = Pid::from_raw(victim).context("a process without a number")?;
                kill_process(victim, Signal::KILL)?;
            }
            None => {}
        }
        Ok(())
    }

    /// The process of a part: of those below the run's own that were started under its name, the last.
    fn process_of(&self, part: &str) -> Option<i32> {
        let name = match part {
            "agent" => "agent-runner",
            "ipc-bridge" => part,
            _ => "skill-sidecar",
        };
        let tree = processes::tree_of(i32::try_from(self.pid).ok()?);
        let is_it = |pid: &&i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
            first.ends_with(name.as_bytes())
        };
        tree.iter().rev().find(is_it).copied()
    }

    fn raw_pid(&self) -> anyhow::Result<Pid> {
        let pid = i32::try_from(self.pid)?;
        Pid::from_raw(pid).context("a process without a number")
    }

    /// What was seen, once the process is over.
    pub fn observed(self, code: Option<i32>, said: &str) -> anyhow::Result<Observed> {
        let runs = self.home.at("state/runs");
        let mut surprises = self.surprises;
        let Some(ended) = &self.ended else {
            let outcome = match code {
                Some(3) => OutcomeKind::Denied,
                Some(1) => OutcomeKind::Refused,
                _ => bail!("it ended with {code:?} and without a last event, and said: {said}"),
            };
            let records = fs::read_dir(&runs).into_iter().flatten().flatten();
            surprises.extend(records.map(|it| format!("{} is kept of it", it.path().display())));
            return Ok(Observed {
                outcome,
                text: said.to_owned(),
                rules: Vec::new(),
                records: None,
                leftovers: Vec::new(),
                surprises,
            });
        };
        let outcome = &ended["outcome"];
        let (outcome, text, expected) = match outcome["is"].as_str().unwrap_or_default() {
            "succeeded" => (OutcomeKind::Succeeded, &outcome["answer"], 0),
            "failed" => (OutcomeKind::Failed, &outcome["why"], 4),
            "refused" => (OutcomeKind::Refused, &outcome["why"], 1),
            "timedOut" => (OutcomeKind::TimedOut, &Value::Null, 5),
            "cancelled" => (OutcomeKind::Cancelled, &Value::Null, 130),
            other => bail!("an unknown outcome: {other}"),
        };
        if code != Some(expected) {
            surprises.push(format!("the exit code is {code:?}, and should be {expected}; it said: {said}"));
        }
        let text = text.as_str().unwrap_or_default().to_owned();
        let leftovers = ended["leftovers"].as_array().into_iter().flatten();
        let leftovers = leftovers.map(|it| format!("{it}, by its own word")).collect();
        let directory = runs.join(self.uid.as_deref().context("it never said its UID")?);
        Ok(Observed {
            outcome,
            text,
            rules: Vec::new(),
            records: Some(records(&directory, self.workspace.as_deref(), self.around)?),
            leftovers,
            surprises,
        })
    }
}

/// What is kept of a run in its directory.
fn records(
    directory: &Path,
    workspace: Option<&Path>,
    around: BTreeMap<String, Vec<String>>,
) -> anyhow::Result<Records> {
    let read = |name: &str| {
        let path = directory.join(name);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    // A run that never came so far has neither.
    let transcript = read("transcript.jsonl").unwrap_or_default();
    let receipts = read("receipts.jsonl").unwrap_or_default();
    let report: Option<Value> = match read("report.json") {
        Ok(report) => Some(serde_json::from_slice(&report).context("report.json is no report")?),
        Err(_) => None,
    };
    let mut files = BTreeMap::new();
    if let Some(workspace) = workspace {
        collect(workspace, workspace, &mut files)?;
    }
    Ok(Records {
        plan: read("plan.json")?,
        receipts,
        head: report.and_then(|report| report["head"].as_str().map(str::to_owned)),
        results: results(&String::from_utf8_lossy(&transcript))?,
        around,
        files: Some(files),
    })
}

fn collect(root: &Path, directory: &Path, files: &mut BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            collect(root, &path, files)?;
        } else if kind.is_file() {
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            files.insert(name, fs::read(&path)?);
        }
    }
    Ok(())
}
