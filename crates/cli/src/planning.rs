//! Plans the runs of files, for every command that uses their plans.
//!
//! The same stages as `sympozium validate`: files are read and validated against schemas, references are resolved, runs
//! are admitted or denied; then the admitted ones are planned. What the files do not have is what an installation
//! ships: packs, policies and the floor.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sympozium_plan::admit::Violation;
use sympozium_plan::plan::{PlanSettings, Planned, plan};

use crate::failure::Failure;
use crate::validate::{
    CheckOptions, CheckedRun, Completeness, Conclusion, ObjectName, Purpose, Report, RunDecision, Schemas, Session,
};
use sympozium_api::origin::ObjectOrigin;

/// The UID of a run that no cluster has stored.
pub const NIL_UID: &str = "00000000-0000-0000-0000-000000000000";

#[derive(Debug, Clone, Copy)]
pub struct PlanRequest<'r> {
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
pub struct PlanResults<T> {
    /// All findings, as `validate` reports them.
    pub report: Report,
    /// Every run, in the order of the files; then agents without one.
    pub runs: Vec<PlannedRun<T>>,
}

#[derive(Debug)]
pub struct PlannedRun<T> {
    /// The run's name; for an agent without a run, the agent's.
    pub name: ObjectName,
    /// Whether the files have no such run, and it was made up for an agent.
    pub is_assumed: bool,
    /// Where its policy and its packs came from.
    pub origins: Vec<ObjectOrigin>,
    pub result: RunResult<T>,
}

#[derive(Debug)]
pub enum RunResult<T> {
    /// Admitted; the value was made from its plan.
    Admitted(T),
    /// Denied, with all violations.
    Denied(Vec<ViolationView>),
    /// An object that decides about it is missing.
    Undecided,
    /// Admitted, but it cannot be planned or used.
    Failed(anyhow::Error),
}

/// A broken admission rule, with the object that has to change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ViolationView {
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
    request: &PlanRequest<'_>,
    make: impl FnMut(&Planned<'_>) -> anyhow::Result<T>,
) -> Result<PlanResults<T>, Failure> {
    let planning = plan_files(request, make);
    match planning.is_empty() {
        true => Err(no_runs_failure(request)),
        false => Ok(planning),
    }
}

/// The same, where files without runs are not an error.
pub fn plan_files<T>(request: &PlanRequest<'_>, make: impl FnMut(&Planned<'_>) -> anyhow::Result<T>) -> PlanResults<T> {
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
) -> PlanResults<T> {
    let settings = PlanSettings::default();
    let mut runs: Vec<PlannedRun<T>> = Vec::new();
    let mut look = |judged: &CheckedRun<'_>| {
        let outcome = match &judged.decision {
            RunDecision::Admitted(input, admitted) => {
                let planned = plan(input, admitted, &settings).map_err(anyhow::Error::from);
                match planned.and_then(|planned| make(&planned)) {
                    Ok(made) => RunResult::Admitted(made),
                    Err(error) => RunResult::Failed(error),
                }
            }
            RunDecision::Denied(reasons) => {
                let own = &judged.name.namespace;
                RunResult::Denied(reasons.iter().map(|it| violation_view(it, own)).collect())
            }
            RunDecision::Undecided => RunResult::Undecided,
        };
        runs.push(PlannedRun {
            name: judged.name.clone(),
            is_assumed: judged.is_assumed,
            origins: judged.origins.clone(),
            result: outcome,
        });
    };
    let demand = CheckOptions { run, uid: Some(uid), purpose: Purpose::Use(&mut look) };
    let report = session.finish_with(schemas, Completeness::Partial, demand);
    PlanResults { report, runs }
}

/// The error that the files have no run of the name, or neither runs nor agents.
pub fn no_runs_failure(request: &PlanRequest<'_>) -> Failure {
    let what = match request.run {
        Some(name) => format!("no AgentRun called {} is among the files", crate::manifests::problem::quote(name)),
        None => "there is no AgentRun and no Agent among the files".to_owned(),
    };
    Failure::new(
        anyhow::anyhow!(what),
        "name the files with the run and its agent; without --run every run among them is meant",
    )
}

fn violation_view(reason: &Violation, own_namespace: &str) -> ViolationView {
    let subject = &reason.subject;
    ViolationView {
        object: ObjectName {
            kind: subject.kind.to_owned(),
            namespace: subject.namespace.clone().unwrap_or_else(|| own_namespace.to_owned()),
            name: subject.name.clone(),
        },
        field: reason.field.clone(),
        rule: reason.rule,
        message: reason.message.clone(),
        hint: reason.hint.clone(),
    }
}

impl<T> PlanResults<T> {
    /// Whether the files could be read and have nothing to plan.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && !self.report.has_unreadable()
    }

    /// Determines the exit code.
    pub fn conclusion(&self) -> Conclusion {
        let failed = |run: &PlannedRun<T>| matches!(run.result, RunResult::Failed(_));
        match self.report.conclusion() {
            Conclusion::Passed if self.runs.iter().any(failed) => Conclusion::Invalid,
            conclusion => conclusion,
        }
    }

    /// Messages about runs that are admitted and could not be planned or used.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.runs.iter().filter_map(|run| match &run.result {
            RunResult::Failed(error) => Some(format!("error: {}: {error:#}", run.name)),
            _ => None,
        });
        failed.collect()
    }

    /// The admitted runs with what was made from their plans. Nothing if a file could not be read completely: a
    /// misspelt field may be a restriction.
    pub fn admitted(&self) -> impl Iterator<Item = (&PlannedRun<T>, &T)> {
        let readable = !self.report.has_unreadable();
        let runs = self.runs.iter().filter(move |_| readable);
        runs.filter_map(|run| match &run.result {
            RunResult::Admitted(made) => Some((run, made)),
            _ => None,
        })
    }
}

/// Parses a UID of the form that API servers generate.
pub fn parse_uid(typed: &str) -> Result<String, &'static str> {
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
pub fn print_failures<T>(planning: &PlanResults<T>) {
    let text = planning.report.failures_text();
    if !text.is_empty() {
        crate::output::print_stderr(text.trim_end());
    }
    for failure in planning.failures() {
        crate::output::print_stderr(&failure);
    }
}
