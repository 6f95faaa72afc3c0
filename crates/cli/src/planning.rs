//! Plans the runs of files, for every command that uses their plans.
//!
//! The same stages as `sympozium validate`: files are read and validated against schemas, references are resolved, runs
//! are admitted or denied; then the admitted ones are planned. What the files do not have is what an installation
//! ships: packs, policies and the floor.

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

#[derive(Debug, Clone, Copy)]
pub struct Request<'r> {
    /// Files and directories.
    pub files: &'r [PathBuf],
    /// The file with the cluster's floor.
    pub floor: Option<&'r Path>,
    /// The namespace of objects that name none.
    pub namespace: &'r str,
    /// Plan only runs of this name.
    pub run: Option<&'r str>,
    /// The UID of runs that have none.
    pub uid: &'r str,
}

/// The result of planning.
#[derive(Debug)]
pub struct Planning<T> {
    /// All findings, as `validate` reports them.
    pub report: Report,
    /// Every run, in the order of the files; then agents without one.
    pub runs: Vec<Run<T>>,
}

#[derive(Debug)]
pub struct Run<T> {
    /// The run's name; for an agent without a run, the agent's.
    pub name: ObjectName,
    /// Whether the files have no such run, and it was made up for an agent.
    pub is_assumed: bool,
    /// Where its policy and its packs came from.
    pub origins: Vec<ResolvedFrom>,
    pub outcome: RunOutcome<T>,
}

#[derive(Debug)]
pub enum RunOutcome<T> {
    /// Admitted; the value was made from its plan.
    Made(T),
    /// Denied, with all violations.
    Denied(Vec<Denial>),
    /// An object that decides about it is missing.
    Undecided,
    /// Admitted, but it cannot be planned or used.
    Failed(anyhow::Error),
}

/// A broken admission rule, with the object that has to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Denial {
    /// The object that has to change.
    pub object: ObjectName,
    pub field: String,
    pub rule: &'static str,
    pub message: String,
    pub hint: String,
}

/// Plans the runs of the request, and calls `make` with each plan.
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

/// The same, where files without runs are not an error.
pub fn plan_any<T>(request: &Request<'_>, make: impl FnMut(&Planned<'_>) -> anyhow::Result<T>) -> Planning<T> {
    let session = Session::read(request.namespace, request.files, request.floor);
    let schemas = &mut Schemas::default();
    plan_session(session, schemas, request.run, request.uid, make)
}

/// The same for files that were read already.
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

/// The error that the files have no run of the name, or neither runs nor agents.
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
    /// Whether the files could be read and have nothing to plan.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && !self.report.has_unreadable()
    }

    /// Determines the exit code.
    pub fn conclusion(&self) -> Conclusion {
        let failed = |run: &Run<T>| matches!(run.outcome, RunOutcome::Failed(_));
        match self.report.conclusion() {
            Conclusion::Well if self.runs.iter().any(failed) => Conclusion::Broken,
            conclusion => conclusion,
        }
    }

    /// Messages about runs that are admitted and could not be planned or used.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.runs.iter().filter_map(|run| match &run.outcome {
            RunOutcome::Failed(error) => Some(format!("error: {}: {error:#}", run.name)),
            _ => None,
        });
        failed.collect()
    }

    /// The admitted runs with what was made from their plans. Nothing if a file could not be read completely: a
    /// misspelt field may be a restriction.
    pub fn made(&self) -> impl Iterator<Item = (&Run<T>, &T)> {
        let readable = !self.report.has_unreadable();
        let runs = self.runs.iter().filter(move |_| readable);
        runs.filter_map(|run| match &run.outcome {
            RunOutcome::Made(made) => Some((run, made)),
            _ => None,
        })
    }
}

/// Parses a UID of the form that API servers generate.
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

/// Prints the errors and denials to standard error, as `validate` does.
pub fn tell<T>(planning: &Planning<T>) {
    let text = planning.report.text_of_failures();
    if !text.is_empty() {
        crate::output::note(text.trim_end());
    }
    for failure in planning.failures() {
        crate::output::note(&failure);
    }
}
