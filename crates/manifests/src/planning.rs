//! Plans the runs of manifests.
//!
//! The same stages as in [`crate::validate`]: files are read and validated against schemas, references are resolved, runs
//! are admitted or denied; then the admitted ones are planned. What the files do not have is what an installation
//! ships: packs, policies and the floor.

use sympozium_api::origin::ObjectOrigin;
use sympozium_plan::admit::Violation;
use sympozium_plan::plan::{PlanSettings, Planned, plan};

use crate::validate::{
    CheckOptions, CheckedRun, Completeness, Conclusion, ObjectName, Purpose, Report, RunDecision, Schemas, Session,
};

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
    /// Denied, with all violations, each with the namespace of its object.
    Denied(Vec<Violation>),
    /// An object that decides about it is missing.
    Undecided,
    /// Admitted, but it cannot be planned or used.
    Failed(anyhow::Error),
}

/// Plans the runs of the files that the session has read, and calls `make` with each plan.
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
            RunDecision::Denied(violations) => RunResult::Denied(with_namespaces(violations, &judged.name.namespace)),
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

/// The violations with the namespace of every object: that of the run, unless it is known to be another.
fn with_namespaces(violations: &[Violation], own: &str) -> Vec<Violation> {
    let mut violations = violations.to_vec();
    for violation in &mut violations {
        violation.subject.namespace.get_or_insert_with(|| own.to_owned());
    }
    violations
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
