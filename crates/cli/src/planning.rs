//! Plans the runs of files, for every command that uses their plans.

use std::path::{Path, PathBuf};

use sympozium_api::text::quote;
use sympozium_manifests::planning::{PlanResults, plan_session};
use sympozium_manifests::validate::{Schemas, Session};
use sympozium_plan::plan::Planned;

use crate::failure::Failure;
use crate::output::print_stderr;

/// The placeholder UID of a run that no cluster has stored.
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
    if planning.is_empty() { Err(no_runs_failure(request.run)) } else { Ok(planning) }
}

/// The same, where files without runs are not an error.
pub fn plan_files<T>(request: &PlanRequest<'_>, make: impl FnMut(&Planned<'_>) -> anyhow::Result<T>) -> PlanResults<T> {
    let session = Session::read(request.namespace, request.files, request.floor);
    let schemas = &mut Schemas::default();
    plan_session(session, schemas, request.run, request.uid, make)
}

/// The error that the files have no run of the name, or neither runs nor agents.
pub fn no_runs_failure(run: Option<&str>) -> Failure {
    let what = match run {
        Some(name) => format!("the files have no AgentRun {}", quote(name)),
        None => "the files have neither an AgentRun nor an Agent".to_owned(),
    };
    Failure::new(
        anyhow::anyhow!(what),
        "name the files with the run and its agent; without --run, every run of the files is used",
    )
}

/// Parses a UID of the form that API servers generate.
pub fn parse_uid(typed: &str) -> Result<String, &'static str> {
    let parsed = typed.len() == 36
        && typed.bytes().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'),
        });
    if parsed {
        Ok(typed.to_owned())
    } else {
        Err("invalid UID\n  hint: `kubectl get agentrun NAME -o jsonpath='{.metadata.uid}'` prints the UID of a run")
    }
}

/// Prints the errors and denials to standard error, as `validate` does.
pub fn print_failures<T>(planning: &PlanResults<T>) {
    let text = planning.report.failures_text();
    if !text.is_empty() {
        print_stderr(text.trim_end());
    }
    for failure in planning.failures() {
        print_stderr(&failure);
    }
}
