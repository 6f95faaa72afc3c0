//! `sympozium runs`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use super::arguments::RunsArguments;
use super::span::ago;
use super::swept_state;
use super::table::table;
use super::view::{View, short};
use crate::arguments::OutputFormat;
use crate::cluster::{self, Cluster};
use crate::failure::Failure;
use crate::local::sweep::directories;
use crate::local::time::now_ms;
use crate::output::{answer, json, note};

pub fn list(arguments: &RunsArguments) -> Result<ExitCode, Failure> {
    if let Some(cluster) = Cluster::chosen(&arguments.cluster)? {
        let most = match arguments.all {
            true => None,
            false => usize::try_from(arguments.limit).ok(),
        };
        let (views, more) = cluster::show::views(&cluster, most)?;
        print(&views, more, arguments.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let hint = "see that the directory is readable, or set SYMPOZIUM_STATE to another";
    let failed = |error| Failure::new(error, hint);
    let state = swept_state()?;
    let runs = state.list().map_err(failed)?;
    let most = match arguments.all {
        true => usize::MAX,
        false => usize::try_from(arguments.limit).unwrap_or(usize::MAX),
    };
    let views: Vec<View> = (runs.iter().take(most)).map(|(directory, record)| View::new(directory, record).0).collect();
    print(&views, runs.len() - views.len(), arguments.output)?;
    let readable: BTreeSet<&Path> = runs.iter().map(|(directory, _)| directory.path()).collect();
    let unreadable = (directories(&state).map_err(failed)?.iter())
        .filter(|it| !readable.contains(it.path()) && !it.is_alive())
        .count();
    if unreadable > 0 {
        note(&format!(
            "{unreadable} more in {} have no record that this release can read; `sympozium prune` removes them when they are old",
            state.runs().display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints runs, and how many older ones there are.
fn print(views: &[View], older: usize, format: OutputFormat) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => answer(&json(&views)?)?,
        OutputFormat::Text if views.is_empty() => {
            note("there are no runs yet\nhint: `sympozium run \"task\"` starts one, `sympozium demo` shows one")
        }
        OutputFormat::Text => answer(&text(views, now_ms()))?,
    }
    match older {
        0 => {}
        1 => note("one older run is not shown; --all lists it too"),
        more => note(&format!("{more} older runs are not shown; --all lists them too")),
    }
    Ok(())
}

fn text(views: &[View], now_ms: u64) -> String {
    let titles = ["name", "uid", "agent", "model", "state", "age", "took", "tokens", "workspace"];
    let row = |view: &View| {
        let workspace = match &view.workspace {
            Some(workspace) => workspace.display().to_string(),
            None => "-".to_owned(),
        };
        vec![
            view.name.clone(),
            short(&view.uid),
            view.agent.clone(),
            view.model.clone(),
            view.state.to_owned(),
            ago(now_ms.saturating_sub(view.started_ms)),
            view.duration(now_ms),
            view.tokens(),
            workspace,
        ]
    };
    let rows: Vec<Vec<String>> = views.iter().map(row).collect();
    table(&titles, &rows)
}
