//! `sympozium runs`.

use std::process::ExitCode;

use sympozium_runs::time::now_ms;
use sympozium_runs::{RunView, short_uid};

use super::arguments::RunsArguments;
use super::duration::format_age;
use super::table::format_table;
use super::view::{format_duration, format_tokens};
use crate::arguments::OutputFormat;
use crate::backend;
use crate::failure::Failure;
use crate::output::{print_stderr, print_stdout, to_json};

pub fn list(arguments: &RunsArguments) -> Result<ExitCode, Failure> {
    let limit = if arguments.all { None } else { usize::try_from(arguments.limit).ok() };
    let runs = backend::open_store(&arguments.cluster)?.list(limit)?;
    print_runs(&runs.items, runs.omitted, arguments.output)?;
    for warning in &runs.warnings {
        print_stderr(warning);
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints runs, and how many older ones there are.
fn print_runs(views: &[RunView], older: usize, format: OutputFormat) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => print_stdout(&to_json(&views)?)?,
        OutputFormat::Text if views.is_empty() => {
            print_stderr("there are no runs\nhint: start one with `sympozium run \"TASK\"`, or try `sympozium demo`")
        }
        OutputFormat::Text => print_stdout(&runs_table(views, now_ms()))?,
    }
    match older {
        0 => {}
        1 => print_stderr("1 older run is not listed; --all lists every run"),
        more => print_stderr(&format!("{more} older runs are not listed; --all lists every run")),
    }
    Ok(())
}

fn runs_table(views: &[RunView], now_ms: u64) -> String {
    let titles = ["name", "uid", "agent", "model", "state", "age", "took", "tokens", "workspace"];
    let row = |view: &RunView| {
        let workspace = match &view.workspace {
            Some(workspace) => workspace.display().to_string(),
            None => "-".to_owned(),
        };
        vec![
            view.name.clone(),
            short_uid(&view.uid),
            view.agent.clone(),
            view.model.clone(),
            view.state.to_owned(),
            format_age(now_ms.saturating_sub(view.started_ms)),
            format_duration(view, now_ms),
            format_tokens(view),
            workspace,
        ]
    };
    let rows: Vec<Vec<String>> = views.iter().map(row).collect();
    format_table(&titles, &rows)
}
