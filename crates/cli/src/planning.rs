//! From paths to planned runs, for every command that makes something of them.
//!
//! The same stages as `sympozium validate`: files are read, held against schemas, references are looked up, runs are judged;
//! then those that are admitted are planned. What is not among the files is what an installation brings: packs, policies
//! and the floor.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sympozium_plan::admit::Reason;
use sympozium_plan::plan::{PlanSettings, Planned, plan};

use crate::failure::Failure;
use crate::origin::ResolvedFrom;
use crate::validate::{
    Completeness, Conclusion, Demand, Judged, ObjectName, Outcome, Purpose, Report, Schemas, Session,
};

/// The UID of a run that no cluster has stored.
pub const NIL_UID: &str = "00000000-0000-0000-0000-000000000000";

/// What to plan.
#[derive(Debug, Clone, Copy)]
pub struct Request<'r> {
    /// Files and directories.
    pub files: &'r [PathBuf],
    /// The file with the cluster's floor.
    pub floor: Option<&'r Path>,
    /// The namespace of objects that name none.
    pub namespace: &'r str,
    /// Only runs of this name.
    pub run: Option<&'r str>,
    /// The UID of runs that have none.
    pub uid: &'r str,
}

/// What came of a request.
#[derive(Debug)]
pub struct Planning<T> {
    /// Everything that was found, in the words of `validate`.
    pub report: Report,
    /// Every run, in the order of the files; then agents without one.
    pub runs: Vec<Run<T>>,
}

/// One run.
#[derive(Debug)]
pub struct Run<T> {
    /// The run; of an agent without one, the agent.
    pub name: ObjectName,
    /// Whether it was made up for an agent.
    pub is_assumed: bool,
    /// Where its policy and its packs came from.
    pub origins: Vec<ResolvedFrom>,
    /// What came of it.
    pub outcome: RunOutcome<T>,
}

/// What came of a run.
#[derive(Debug)]
pub enum RunOutcome<T> {
    /// It is admitted, and this was made of its plan.
    Made(T),
    /// It is denied.
    Denied(Vec<Denial>),
    /// Something that decides about it is not there.
    Undecided,
    /// It is admitted, and nothing can be made of it.
    Failed(anyhow::Error),
}

/// Why a run is denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Denial {
    /// The object that is to be changed.
    pub object: ObjectName,
    /// The field in it.
    pub field: String,
    /// The rule that it breaks.
    pub rule: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// Plans what is asked for, and makes something of each plan.
///
/// # Errors
///
/// When the files have no run of the name, or neither runs nor agents.
pub fn plan_runs<T>(
    request: &Request<'_>,
    make: impl FnMut(&Planned<'_>) -> anyhow::Result<T>,
) -> Result<Planning<T>, Failure> {
    let planning = plan_any(request, make);
    match planning.is_empty() {
        true => Err(nothing(request)),
        false => Ok(planning),
    }
}

/// The same, where it is no error that there is nothing.
pub fn plan_any<T>(request: &Request<'_>, make: impl FnMut(&Planned<'_>) -> anyhow::Result<T>) -> Planning<T> {
    let session = Session::read(request.namespace, request.files, request.floor);
    let schemas = &mut Schemas::default();
    plan_session(session, schemas, request.run, request.uid, make)
}

/// The same for files that have been read.
pub fn plan_session<T>(
    session: Session<'_>,
    schemas: &mut Schemas,
    run: Option<&str>,
    uid: &str,
    mut make: impl FnMut(&Planned<'_>) -> anyhow::Result<T>,
) -> Planning<T> {
    let settings = PlanSettings::default();
    let mut runs: Vec<Run<T>> = Vec::new();
    let mut look = |judged: &Judged<'_>| {
        let outcome = match &judged.outcome {
            Outcome::Admitted(input, admitted) => {
                let planned = plan(input, admitted, &settings).map_err(anyhow::Error::from);
                match planned.and_then(|planned| make(&planned)) {
                    Ok(made) => RunOutcome::Made(made),
                    Err(error) => RunOutcome::Failed(error),
                }
            }
            Outcome::Denied(reasons) => {
                let own = &judged.name.namespace;
                RunOutcome::Denied(reasons.iter().map(|it| denial(it, own)).collect())
            }
            Outcome::Undecided => RunOutcome::Undecided,
        };
        runs.push(Run {
            name: judged.name.clone(),
            is_assumed: judged.is_imagined,
            origins: judged.origins.clone(),
            outcome,
        });
    };
    let demand = Demand { run, uid: Some(uid), purpose: Purpose::Use(&mut look) };
    let report = session.finish_for(schemas, Completeness::Partial, demand);
    Planning { report, runs }
}

/// That the files have no run of the name, or neither runs nor agents.
pub fn nothing(request: &Request<'_>) -> Failure {
    let what = match request.run {
        Some(name) => format!("no AgentRun called {} is among the files", crate::manifests::problem::quoted(name)),
        None => "there is no AgentRun and no Agent among the files".to_owned(),
    };
    Failure::new(
        anyhow::anyhow!(what),
        "name the files with the run and its agent; without --run every run among them is meant",
    )
}

fn denial(reason: &Reason, own_namespace: &str) -> Denial {
    let subject = &reason.subject;
    Denial {
        object: ObjectName {
            kind: subject.kind.to_owned(),
            namespace: subject.namespace.clone().unwrap_or_else(|| own_namespace.to_owned()),
            name: subject.name.clone(),
        },
        field: reason.field.clone(),
        rule: reason.rule,
        message: reason.message.clone(),
        hint: reason.remedy.clone(),
    }
}

impl<T> Planning<T> {
    /// Whether files that could be read have nothing to plan.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && !self.report.has_unreadable()
    }

    /// What decides the exit code.
    pub fn conclusion(&self) -> Conclusion {
        let failed = |run: &Run<T>| matches!(run.outcome, RunOutcome::Failed(_));
        match self.report.conclusion() {
            Conclusion::Well if self.runs.iter().any(failed) => Conclusion::Broken,
            conclusion => conclusion,
        }
    }

    /// What to say about runs of which nothing could be made though they are admitted.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.runs.iter().filter_map(|run| match &run.outcome {
            RunOutcome::Failed(error) => Some(format!("error: {}: {error:#}", run.name)),
            _ => None,
        });
        failed.collect()
    }

    /// What was made, run by run. Nothing of files that could not be read whole: what is misspelt in them may be a
    /// restriction.
    pub fn made(&self) -> impl Iterator<Item = (&Run<T>, &T)> {
        let readable = !self.report.has_unreadable();
        let runs = self.runs.iter().filter(move |_| readable);
        runs.filter_map(|run| match &run.outcome {
            RunOutcome::Made(made) => Some((run, made)),
            _ => None,
        })
    }
}

/// A UID as an API server makes them.
pub fn uid(typed: &str) -> Result<String, &'static str> {
    let parsed = typed.len() == 36
        && typed.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'),
        });
    match parsed {
        true => Ok(typed.to_owned()),
        false => Err("it is not a UID\n  hint: `kubectl get agentrun NAME -o jsonpath='{.metadata.uid}'` prints one"),
    }
}

/// Writes findings that stand against a run to standard error, in the words of `validate`; how many others there are.
pub fn tell<T>(planning: &Planning<T>) {
    let text = planning.report.text_of_failures();
    if !text.is_empty() {
        crate::output::note(text.trim_end());
    }
    for failure in planning.failures() {
        crate::output::note(&failure);
    }
}
