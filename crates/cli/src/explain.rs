//! `sympozium explain`: prints what a run can touch.

mod difference;
pub(crate) mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use serde::Serialize;
use sympozium_manifests::planning::{PlanResults, PlannedRun, RunResult};
use sympozium_manifests::validate::{Conclusion, Finding, ObjectName};
use sympozium_plan::admit::Violation;
use sympozium_plan::explain::{Explanation, explain};

use crate::arguments::{ExplainArguments, ExplainFormat};
use crate::backend::{self, Backend};
use crate::failure::{Failure, POWER_ADDED, exit_code};
use crate::output::{print_stderr, print_stdout, to_json, to_yaml};
use crate::planning::{self, NIL_UID, PlanRequest, plan_files};

pub fn run(arguments: &ExplainArguments) -> Result<ExitCode, Failure> {
    let backend = backend::open(&arguments.cluster)?;
    if arguments.diff {
        return compare(&*backend, arguments);
    }
    let planning = backend.explain(arguments, &arguments.files)?;
    if planning.is_empty() {
        return Err(planning::no_runs_failure(arguments.run.as_deref()));
    }
    match arguments.output {
        ExplainFormat::Text => {
            print_stdout(&text::render(&planning))?;
            planning::print_failures(&planning);
            note_warnings(&planning);
        }
        ExplainFormat::Json => print_stdout(&to_json(&ExplainOutput::from_results(&planning))?)?,
        ExplainFormat::Yaml => print_stdout(&to_yaml(&ExplainOutput::from_results(&planning))?)?,
    }
    Ok(exit_code(planning.conclusion()))
}

fn compare(backend: &dyn Backend, arguments: &ExplainArguments) -> Result<ExitCode, Failure> {
    let [old, new] = arguments.files.as_slice() else {
        let error = anyhow!("--diff compares two paths, and {} were named", arguments.files.len());
        return Err(Failure::usage(
            error,
            "put what belongs together into one directory: sympozium explain --diff OLD NEW",
        ));
    };
    let explain_side = |path: &PathBuf| backend.explain(arguments, std::slice::from_ref(path));
    // A run that only one side has was added or removed.
    let (old, new) = (explain_side(old)?, explain_side(new)?);
    if old.is_empty() && new.is_empty() {
        return Err(planning::no_runs_failure(arguments.run.as_deref()));
    }
    let differences = difference::compare_runs(&old, &new);
    match arguments.output {
        ExplainFormat::Text => {
            print_stdout(&difference::render(&differences))?;
            planning::print_failures(&old);
            planning::print_failures(&new);
        }
        ExplainFormat::Json => print_stdout(&to_json(&differences)?)?,
        ExplainFormat::Yaml => print_stdout(&to_yaml(&differences)?)?,
    }
    // Whether the old files were denied does not matter for the new ones.
    let conclusion = match old.conclusion() {
        Conclusion::Invalid => Conclusion::Invalid,
        Conclusion::Passed | Conclusion::Denied => new.conclusion(),
    };
    Ok(match conclusion {
        Conclusion::Passed if differences.has_additions() => ExitCode::from(POWER_ADDED),
        conclusion => exit_code(conclusion),
    })
}

/// Plans and explains the runs of files by what an installation ships, without a cluster.
pub fn explain_files(arguments: &ExplainArguments, files: &[PathBuf]) -> PlanResults<Explanation> {
    let request = PlanRequest {
        files,
        floor: arguments.floor.as_deref(),
        namespace: arguments.cluster.local_namespace(),
        run: arguments.run.as_deref(),
        uid: NIL_UID,
    };
    plan_files(&request, |planned| Ok(explain(&planned.plan)))
}

fn note_warnings(planning: &PlanResults<Explanation>) {
    match planning.report.warnings() {
        0 => {}
        1 => print_stderr("1 warning; `sympozium validate` shows it"),
        count => print_stderr(&format!("{count} warnings; `sympozium validate` shows them")),
    }
}

/// The JSON and YAML output. Fields may be added; none changes its meaning.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainOutput<'a> {
    /// Explanations of the admitted runs.
    runs: Vec<RunExplanation<'a>>,
    /// Denied runs, each with all violations.
    denied: Vec<DeniedRun<'a>>,
    /// Runs that could not be decided or planned, because something is missing or cannot be realised.
    undecided: Vec<&'a ObjectName>,
    /// All findings, as `sympozium validate -o json` prints them.
    findings: &'a [Finding],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RunExplanation<'a> {
    /// Whether the files have no such run, and this is the simplest one that the agent could have.
    assumed: bool,
    #[serde(flatten)]
    explanation: &'a Explanation,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeniedRun<'a> {
    run: &'a ObjectName,
    reasons: &'a [Violation],
}

impl<'a> ExplainOutput<'a> {
    fn from_results(planning: &'a PlanResults<Explanation>) -> Self {
        let denied = |run: &'a PlannedRun<Explanation>| match &run.result {
            RunResult::Denied(reasons) => Some(DeniedRun { run: &run.name, reasons }),
            _ => None,
        };
        let undecided =
            |run: &&PlannedRun<Explanation>| matches!(run.result, RunResult::Undecided | RunResult::Failed(_));
        Self {
            runs: planning
                .admitted()
                .map(|(run, explanation)| RunExplanation { assumed: run.is_assumed, explanation })
                .collect(),
            denied: planning.runs.iter().filter_map(denied).collect(),
            undecided: planning.runs.iter().filter(undecided).map(|it| &it.name).collect(),
            findings: planning.report.findings(),
        }
    }
}
