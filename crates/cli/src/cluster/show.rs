//! `sympozium runs` and `sympozium show` in a cluster.

use std::collections::BTreeMap;

use sympozium_api::{AgentRun, RunPlan};

use super::view::{self, to_view};
use super::{Cluster, Connection, FoundRun, approvals, list_runs, plan, truncation_warning};
use sympozium_api::origin;
use sympozium_runs::HintedError;
use sympozium_runs::{Listed, Question, RunDetails, RunView};

/// The maximum number of characters of a task that are printed.
const MAX_TASK_CHARS: usize = 4_096;

/// The newest runs of the namespace.
///
/// # Errors
///
/// When they cannot be listed.
pub fn list_views(cluster: &Cluster, limit: Option<usize>) -> Result<Listed<RunView>, HintedError> {
    let connection = &cluster.connection;
    let view = |run: AgentRun| Some(to_view(&run, &connection.target).0);
    let (mut items, has_more) = cluster.block_on(list_runs(connection, view))?;
    items.sort_by(|a, b| (b.started_ms, &b.name).cmp(&(a.started_ms, &a.name)));
    let count = items.len();
    items.truncate(limit.unwrap_or(usize::MAX));
    let warnings = has_more.then(truncation_warning).into_iter().collect();
    Ok(Listed { omitted: count - items.len(), items, warnings })
}

/// Reads everything about one run.
///
/// # Errors
///
/// When there is no such run, or it cannot be read.
pub fn show_run(cluster: &Cluster, run: &str) -> Result<RunDetails, HintedError> {
    let connection = &cluster.connection;
    let found = cluster.find(run)?;
    let (plan, questions) = cluster.block_on(async {
        let plan = plan::read_stored_plan(connection, &found.run).await;
        // A user who may not list questions sees the run nevertheless.
        let questions = approvals::run_questions(connection, &found, plan.as_plan()).await;
        (plan, questions.unwrap_or_default())
    });
    let mut details = to_details(&found, connection, questions, plan.as_plan());
    if let Some(plan) = plan.as_plan() {
        details.view.model = format!("{}/{}", plan.model.provider, plan.model.model);
    }
    Ok(details)
}

/// The details of a run, without further requests.
pub fn to_details(
    found: &FoundRun,
    connection: &Connection,
    questions: Vec<Question>,
    plan: Option<&RunPlan>,
) -> RunDetails {
    let run = &found.run;
    let (view, outcome) = to_view(run, &connection.target);
    let status = view::status(run);
    let waits_for = match outcome {
        Some(_) => Vec::new(),
        None => view::unmet_conditions(run),
    };
    RunDetails {
        questions: if view.alive { questions } else { Vec::new() },
        view,
        task: view::task(run).chars().take(MAX_TASK_CHARS).collect(),
        plan: status.plan_digest,
        origins: origin::from_resolved(&status.resolved),
        pid: None,
        pod: status.pod_name.map(|it| it.as_str().to_owned()),
        waits_for: waits_for.into_iter().map(|(_, text)| text).collect(),
        outcome,
        isolation: view::isolation(run, plan),
        leftovers: view::leftovers(run),
        files: BTreeMap::new(),
    }
}
