//! A run from its creation to the proof that nothing of it is left, and what the case has done to it meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Deserialize as _;
use serde_json::{Value, json};
use sympozium_conformance::Case;
use sympozium_conformance::case::{DecisionToGive, Deed, Moment, PersonSays};
use sympozium_testkit::cluster::Kubectl;
use sympozium_testkit::cluster::runs::is_over;

use super::node::{Files, Node, files};
use super::objects::RUN;

/// How long a case may take before it counts as stuck.
const DEADLINE: Duration = Duration::from_secs(240);
/// Between two looks at the workspace.
const LOOK: Duration = Duration::from_millis(15);
/// The person who decides. They have the role that is shipped for it, in the namespace of the case, and nothing else.
pub const PERSON: &str = "person@example.test";

/// A run that goes on, as far as it was seen.
pub struct Course<'c> {
    case: &'c Case,
    kubectl: &'c Kubectl,
    node: &'c Node,
    decisions: VecDeque<DecisionToGive>,
    /// Whether what is to be done meanwhile is still to be done.
    waits: bool,
    /// Questions that were seen, by name.
    asked: Vec<String>,
    /// The run, as it was seen last.
    pub run: Value,
    /// A claim's directory where that is the workspace.
    pub claim: Option<PathBuf>,
    /// Whether the files of a pod are on the node, and not in a kernel of its own.
    pub sees_files: bool,
    files: Option<Files>,
    pub surprises: Vec<String>,
}

/// Something that a watch tells.
enum Told {
    Run(Value),
    Question(Value),
    /// A watch has ended, and nothing more will come of it.
    Cut,
}

impl<'c> Course<'c> {
    pub fn new(case: &'c Case, kubectl: &'c Kubectl, node: &'c Node, run: Value) -> Self {
        Self {
            case,
            kubectl,
            node,
            decisions: case.spec.decisions.iter().cloned().collect(),
            waits: case.spec.meanwhile.is_some(),
            asked: Vec::new(),
            run,
            claim: None,
            sees_files: true,
            files: None,
            surprises: Vec::new(),
        }
    }

    /// Follows the run until it is over and its rights are taken back, and does to it what the case says.
    pub fn follow(&mut self) -> anyhow::Result<()> {
        let (tell, told) = channel();
        let runs = ["get", "agentrun", RUN, "--watch", "-o", "json"];
        let questions = ["get", "toolapprovals", "--watch", "-o", "json"];
        let _watches = [
            Watch::start(self.kubectl, &runs, tell.clone(), Told::Run)?,
            Watch::start(self.kubectl, &questions, tell, Told::Question)?,
        ];
        self.watched(&told)?;
        if self.waits {
            self.surprises
                .push("the moment to do something never came".to_owned());
        }
        for left in &self.decisions {
            self.surprises
                .push(format!("nobody was asked about {}", left.tool));
        }
        Ok(())
    }

    fn watched(&mut self, told: &Receiver<Told>) -> anyhow::Result<()> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match told.recv_timeout(LOOK) {
                Ok(Told::Run(run)) => self.see(run)?,
                Ok(Told::Question(question)) => self.hear(&question)?,
                Ok(Told::Cut) => bail!("a watch was cut"),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("both watches were cut"),
            }
            if is_over(&self.run) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!(
                    "it is not over after {} s: {}",
                    DEADLINE.as_secs(),
                    self.run["status"]
                );
            }
            self.look()?;
        }
    }

    /// Looks into the workspace. What it has last before the pod is gone is what the run leaves.
    fn look(&mut self) -> anyhow::Result<()> {
        let place = match (&self.claim, self.run["status"]["podUID"].as_str()) {
            (Some(claim), _) => claim.clone(),
            (None, Some(pod)) if self.sees_files => self.node.workspace(pod),
            (None, _) => return Ok(()),
        };
        let Some(found) = files(&place) else {
            return Ok(());
        };
        // A directory that is being taken away loses its files one by one. Nothing in any case removes one.
        let shrinks = self.files.as_ref().is_some_and(|before| {
            let is_gone = |name: &String| !found.contains_key(name);
            is_ending(&self.run) && before.keys().any(is_gone)
        });
        if shrinks {
            return Ok(());
        }
        let made = matches!(self.moment(), Some(Moment::File(name)) if found.contains_key(name));
        self.files = Some(found);
        if made {
            self.interfere()?;
        }
        Ok(())
    }

    fn see(&mut self, run: Value) -> anyhow::Result<()> {
        self.run = run;
        let works = self.run["status"]["report"]["phase"] == "working";
        if works && self.moment() == Some(&Moment::Working) {
            self.interfere()?;
        }
        Ok(())
    }

    /// A question that is there, or has changed.
    fn hear(&mut self, question: &Value) -> anyhow::Result<()> {
        let name = question["metadata"]["name"].as_str().unwrap_or_default();
        let is_known = self.asked.iter().any(|it| it == name);
        if is_known || question["spec"]["run"]["uid"] != self.run["metadata"]["uid"] {
            return Ok(());
        }
        self.asked.push(name.to_owned());
        if self.moment() == Some(&Moment::Asked) {
            return self.interfere();
        }
        self.decide(question)
    }

    fn moment(&self) -> Option<&'c Moment> {
        let meanwhile = self.case.spec.meanwhile.as_ref().filter(|_| self.waits);
        meanwhile.map(|it| &it.when)
    }

    /// Says what the case has the person say.
    fn decide(&mut self, question: &Value) -> anyhow::Result<()> {
        let Some(decision) = self.decisions.pop_front() else {
            self.surprises.push(format!(
                "a question that the case has no answer for: {question}"
            ));
            return self.cancel();
        };
        let spec = &question["spec"];
        if spec["tool"] != decision.tool.as_str() {
            let text = format!("asked about {}, and not {}", spec["tool"], decision.tool);
            self.surprises.push(text);
        }
        if let Some(shown) = &decision.shown {
            let wrong = shown.problems(spec["summary"].as_str().unwrap_or_default());
            let wrong = wrong
                .iter()
                .map(|it| format!("what the person is shown {it}"));
            self.surprises.extend(wrong);
        }
        let (word, scope) = match decision.says {
            PersonSays::Nothing => return Ok(()),
            PersonSays::Approve => ("approved", "once"),
            PersonSays::ApproveForRun => ("approved", "run"),
            PersonSays::Deny => ("denied", "once"),
        };
        let mut status = json!({
            "decision": word, "decidedBy": PERSON, "decidedAt": jiff::Timestamp::now().to_string(),
            "scope": scope,
        });
        if let Some(reason) = &decision.reason {
            status["reason"] = json!(reason);
        }
        let patch = json!({ "status": status }).to_string();
        let name = question["metadata"]["name"].as_str().unwrap_or_default();
        let person = self.kubectl.clone().impersonating(PERSON);
        let answer = [
            "patch",
            "toolapproval",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        let printed = person.attempt(&answer)?;
        if !printed.success {
            self.surprises
                .push(format!("the answer was not taken: {}", printed.stderr));
            // Nobody else would answer.
            self.cancel()?;
        }
        Ok(())
    }

    /// Does to the run what the case says, at the moment that it says.
    fn interfere(&mut self) -> anyhow::Result<()> {
        self.waits = false;
        match self.case.spec.meanwhile.as_ref().map(|it| &it.act) {
            Some(Deed::Cancel) => self.cancel(),
            Some(Deed::Kill(part)) => {
                let pod = self.run["status"]["podName"].as_str();
                let pod = pod.context("the run has no pod")?;
                self.node.kill(self.kubectl, pod, part)
            }
            None => Ok(()),
        }
    }

    fn cancel(&self) -> anyhow::Result<()> {
        let cancel = [
            "patch",
            "agentrun",
            RUN,
            "--type=merge",
            "-p",
            r#"{"spec":{"cancel":true}}"#,
        ];
        self.kubectl.run(&cancel).map(drop)
    }

    /// The files of the workspace; nothing where there never was one to look into.
    pub fn files(&self) -> Option<BTreeMap<String, Vec<u8>>> {
        match &self.claim {
            Some(claim) => files(claim),
            None => self.files.clone(),
        }
    }
}

/// Whether the run has said that it is over, or somebody else has.
fn is_ending(run: &Value) -> bool {
    let status = &run["status"];
    let phase = status["phase"].as_str().unwrap_or_default();
    let going = ["", "Pending", "Running"].contains(&phase);
    status["report"]["finished"] == true || !going || run["spec"]["cancel"] == true
}

/// `kubectl get --watch`, ended when it is dropped.
struct Watch(Child);

impl Watch {
    fn start(
        kubectl: &Kubectl,
        arguments: &[&str],
        tell: Sender<Told>,
        what: fn(Value) -> Told,
    ) -> anyhow::Result<Self> {
        let mut child = kubectl
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting kubectl")?;
        let stdout = child.stdout.take().context("kubectl has no output")?;
        std::thread::spawn(move || {
            let mut objects = serde_json::Deserializer::from_reader(BufReader::new(stdout));
            while let Ok(object) = Value::deserialize(&mut objects) {
                if tell.send(what(object)).is_err() {
                    return;
                }
            }
            let _ = tell.send(Told::Cut);
        });
        Ok(Self(child))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
