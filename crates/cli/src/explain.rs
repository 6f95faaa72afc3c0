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
use crate::cluster::{self, Cluster};
use crate::failure::{Failure, POWER_ADDED, exit_code};
use crate::output::{print_stderr, print_stdout, to_json, to_yaml};
use crate::planning::{self, NIL_UID, PlanRequest, plan_files, plan_runs};

pub fn run(arguments: &ExplainArguments) -> Result<ExitCode, Failure> {
    let cluster = Cluster::select_with_files(&arguments.cluster)?;
    if arguments.diff {
        if cluster.is_some() {
            return Err(Failure::usage(
                anyhow!("--diff compares files, and a cluster was chosen"),
                "leave the cluster out, or explain what is in it without --diff",
            ));
        }
        return compare(arguments);
    }
    let planning = match cluster {
        Some(cluster) => cluster::explain::explain_inputs(&cluster, arguments)?,
        None => {
            let request = request(arguments, &arguments.files);
            plan_runs(&request, |planned| Ok(explain(&planned.plan)))?
        }
    };
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

fn compare(arguments: &ExplainArguments) -> Result<ExitCode, Failure> {
    let [old, new] = arguments.files.as_slice() else {
        let error = anyhow!("--diff compares two paths, and {} were named", arguments.files.len());
        return Err(Failure::usage(
            error,
            "put what belongs together into one directory: sympozium explain --diff OLD NEW",
        ));
    };
    let planned = |path: &PathBuf| {
        let request = request(arguments, std::slice::from_ref(path));
        plan_files(&request, |planned| Ok(explain(&planned.plan)))
    };
    // A run that only one side has was added or removed.
    let (old, new) = (planned(old), planned(new));
    if old.is_empty() && new.is_empty() {
        return Err(planning::no_runs_failure(&request(arguments, &arguments.files)));
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

fn request<'r>(arguments: &'r ExplainArguments, files: &'r [PathBuf]) -> PlanRequest<'r> {
    PlanRequest {
        files,
        floor: arguments.floor.as_deref(),
        namespace: arguments.cluster.local_namespace(),
        run: arguments.run.as_deref(),
        uid: NIL_UID,
    }
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
