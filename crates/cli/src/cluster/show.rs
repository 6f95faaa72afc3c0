//! `sympozium runs` and `sympozium show` in a cluster.

use std::collections::BTreeMap;

use sympozium_api::{AgentRun, RunPlan};

use super::view::{self, view};
use super::{Cluster, Connection, Found, approvals, list, plan, warn_of_more};
use crate::failure::Failure;
use crate::local::event::Question;
use crate::origin;
use crate::runs::show::Shown;
use crate::runs::view::View;

/// The maximum number of characters of a task that are printed.
const TASK_SHOWN: usize = 4_096;

/// The newest runs of the namespace, and how many more there are.
///
/// # Errors
///
/// When they cannot be listed.
pub fn views(cluster: &Cluster, most: Option<usize>) -> Result<(Vec<View>, usize), Failure> {
    let connection = &cluster.connection;
    let shown = |run: AgentRun| Some(view(&run, &connection.place).0);
    let (views, has_more) = cluster.wait(list(connection, shown))?;
    if has_more {
        warn_of_more();
    }
    Ok(newest(views, most))
}

fn newest(mut views: Vec<View>, most: Option<usize>) -> (Vec<View>, usize) {
    views.sort_by(|a, b| (b.started_ms, &b.name).cmp(&(a.started_ms, &a.name)));
    let all = views.len();
    views.truncate(most.unwrap_or(usize::MAX));
    let more = all - views.len();
    (views, more)
}

/// Reads everything about one run.
///
/// # Errors
///
/// When there is no such run, or it cannot be read.
pub fn shown(cluster: &Cluster, run: &str) -> Result<Shown, Failure> {
    let connection = &cluster.connection;
    let found = cluster.find(run)?;
    let (plan, questions) = cluster.wait(async {
        let plan = plan::stored(connection, &found.run).await;
        // A user who may not list questions sees the run nevertheless.
        let questions = approvals::of_run(connection, &found, plan.readable()).await;
        (plan, questions.unwrap_or_default())
    });
    let mut shown = of(&found, connection, questions, plan.readable());
    if let Some(plan) = plan.readable() {
        shown.view.model = format!("{}/{}", plan.model.provider, plan.model.model);
    }
    Ok(shown)
}

/// The details of a run, without further requests.
pub fn of(found: &Found, connection: &Connection, questions: Vec<Question>, plan: Option<&RunPlan>) -> Shown {
    let run = &found.run;
    let (view, outcome) = view(run, &connection.place);
    let status = view::status(run);
    let waits_for = match outcome {
        Some(_) => Vec::new(),
        None => view::waits_for(run),
    };
    Shown {
        questions: if view.alive { questions } else { Vec::new() },
        view,
        task: view::task(run).chars().take(TASK_SHOWN).collect(),
        plan: status.plan_digest,
        origins: origin::in_cluster(&status.resolved),
        pid: None,
        pod: status.pod_name.map(|it| it.as_str().to_owned()),
        waits_for: waits_for.into_iter().map(|(_, text)| text).collect(),
        outcome,
        isolation: view::isolation(run, plan),
        leftovers: view::leftovers(run),
        files: BTreeMap::new(),
    }
}
