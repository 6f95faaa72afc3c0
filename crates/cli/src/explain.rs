//! `sympozium explain`: prints what a run can touch.

mod difference;
mod text;

pub use text::render as text_of;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use serde::Serialize;
use sympozium_plan::explain::{Explanation, explain};

use crate::arguments::{ExplainArguments, ExplainFormat};
use crate::cluster::{self, Cluster};
use crate::failure::{ADDED, Failure};
use crate::output::{answer, json, note, yaml};
use crate::planning::{self, Denial, NIL_UID, Planning, Request, Run, RunOutcome, plan_any, plan_runs};
use crate::validate::{Conclusion, Finding, ObjectName};

pub fn run(arguments: &ExplainArguments) -> Result<ExitCode, Failure> {
    let cluster = Cluster::chosen_beside_files(&arguments.cluster)?;
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
        Some(cluster) => cluster::explain::planning(&cluster, arguments)?,
        None => {
            let request = request(arguments, &arguments.files);
            plan_runs(&request, |planned| Ok(explain(&planned.plan)))?
        }
    };
    match arguments.output {
        ExplainFormat::Text => {
            answer(&text::render(&planning))?;
            planning::tell(&planning);
            note_warnings(&planning);
        }
        ExplainFormat::Json => answer(&json(&Answer::of(&planning))?)?,
        ExplainFormat::Yaml => answer(&yaml(&Answer::of(&planning))?)?,
    }
    Ok(planning.conclusion().exit_code())
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
        plan_any(&request, |planned| Ok(explain(&planned.plan)))
    };
    // A run that only one side has was added or removed.
    let (old, new) = (planned(old), planned(new));
    if old.is_empty() && new.is_empty() {
        return Err(planning::nothing(&request(arguments, &arguments.files)));
    }
    let differences = difference::of(&old, &new);
    match arguments.output {
        ExplainFormat::Text => {
            answer(&difference::render(&differences))?;
            planning::tell(&old);
            planning::tell(&new);
        }
        ExplainFormat::Json => answer(&json(&differences)?)?,
        ExplainFormat::Yaml => answer(&yaml(&differences)?)?,
    }
    // Whether the old files were denied does not matter for the new ones.
    let conclusion = match old.conclusion() {
        Conclusion::Broken => Conclusion::Broken,
        Conclusion::Well | Conclusion::Denied => new.conclusion(),
    };
    Ok(match conclusion {
        Conclusion::Well if differences.adds() => ExitCode::from(ADDED),
        conclusion => conclusion.exit_code(),
    })
}

fn request<'r>(arguments: &'r ExplainArguments, files: &'r [PathBuf]) -> Request<'r> {
    Request {
        files,
        floor: arguments.floor.as_deref(),
        namespace: arguments.cluster.namespace_here(),
        run: arguments.run.as_deref(),
        uid: NIL_UID,
    }
}

fn note_warnings(planning: &Planning<Explanation>) {
    match planning.report.warnings() {
        0 => {}
        1 => note("1 warning; `sympozium validate` shows it"),
        count => note(&format!("{count} warnings; `sympozium validate` shows them")),
    }
}

/// The JSON and YAML output. Fields may be added; none changes its meaning.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    /// Explanations of the admitted runs.
    runs: Vec<Explained<'a>>,
    /// Denied runs, each with all violations.
    denied: Vec<DeniedRun<'a>>,
    /// Runs that could not be decided or planned, because something is missing or cannot be realised.
    undecided: Vec<&'a ObjectName>,
    /// All findings, as `sympozium validate -o json` prints them.
    findings: &'a [Finding],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained<'a> {
    /// Whether the files have no such run, and this is the simplest one that the agent could have.
    assumed: bool,
    #[serde(flatten)]
    explanation: &'a Explanation,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeniedRun<'a> {
    run: &'a ObjectName,
    reasons: &'a [Denial],
}

impl<'a> Answer<'a> {
    fn of(planning: &'a Planning<Explanation>) -> Self {
        let denied = |run: &'a Run<Explanation>| match &run.outcome {
            RunOutcome::Denied(reasons) => Some(DeniedRun { run: &run.name, reasons }),
            _ => None,
        };
        let undecided = |run: &&Run<Explanation>| matches!(run.outcome, RunOutcome::Undecided | RunOutcome::Failed(_));
        Self {
            runs: planning
                .made()
                .map(|(run, explanation)| Explained { assumed: run.is_assumed, explanation })
                .collect(),
            denied: planning.runs.iter().filter_map(denied).collect(),
            undecided: planning.runs.iter().filter(undecided).map(|it| &it.name).collect(),
            findings: planning.report.findings(),
        }
    }
}
