//! `sympozium runs`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use super::arguments::RunsArguments;
use super::duration::format_age;
use super::open_swept_state;
use super::table::format_table;
use super::view::{RunView, short_uid};
use crate::arguments::OutputFormat;
use crate::cluster::{self, Cluster};
use crate::failure::Failure;
use crate::output::{print_stderr, print_stdout, to_json};
use sympozium_local::sweep::list_run_directories;
use sympozium_runs::time::now_ms;

pub fn list(arguments: &RunsArguments) -> Result<ExitCode, Failure> {
    if let Some(cluster) = Cluster::select(&arguments.cluster)? {
        let most = match arguments.all {
            true => None,
            false => usize::try_from(arguments.limit).ok(),
        };
        let (views, more) = cluster::show::list_views(&cluster, most)?;
        print_runs(&views, more, arguments.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let hint = "see that the directory is readable, or set SYMPOZIUM_STATE to another";
    let failed = |error| Failure::new(error, hint);
    let state = open_swept_state()?;
    let runs = state.list_runs().map_err(failed)?;
    let most = match arguments.all {
        true => usize::MAX,
        false => usize::try_from(arguments.limit).unwrap_or(usize::MAX),
    };
    let views: Vec<RunView> =
        (runs.iter().take(most)).map(|(directory, record)| RunView::new(directory, record).0).collect();
    print_runs(&views, runs.len() - views.len(), arguments.output)?;
    let readable: BTreeSet<&Path> = runs.iter().map(|(directory, _)| directory.path()).collect();
    let unreadable = (list_run_directories(&state).map_err(failed)?.iter())
        .filter(|it| !readable.contains(it.path()) && !it.is_running())
        .count();
    if unreadable > 0 {
        print_stderr(&format!(
            "{unreadable} more in {} have no record that this release can read; `sympozium prune` removes them when they are old",
            state.runs_directory().display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints runs, and how many older ones there are.
fn print_runs(views: &[RunView], older: usize, format: OutputFormat) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => print_stdout(&to_json(&views)?)?,
        OutputFormat::Text if views.is_empty() => {
            print_stderr("there are no runs yet\nhint: `sympozium run \"task\"` starts one, `sympozium demo` shows one")
        }
        OutputFormat::Text => print_stdout(&runs_table(views, now_ms()))?,
    }
    match older {
        0 => {}
        1 => print_stderr("one older run is not shown; --all lists it too"),
        more => print_stderr(&format!("{more} older runs are not shown; --all lists them too")),
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
            view.format_duration(now_ms),
            view.format_tokens(),
            workspace,
        ]
    };
    let rows: Vec<Vec<String>> = views.iter().map(row).collect();
    format_table(&titles, &rows)
}
