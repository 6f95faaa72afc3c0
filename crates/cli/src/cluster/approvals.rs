//! Questions of runs in a cluster: ToolApprovals. A vote is written to their status, as the user that the API server
//! authenticates.

use anyhow::{anyhow, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use sympozium_api::agent_run::AgentRunStatus;
use sympozium_api::labels::{annotation, field_manager};
use sympozium_api::names::Digest;
use sympozium_api::policy::ApproverKind;
use sympozium_api::run_plan::ApprovalPlan;
use sympozium_api::tool_approval::{ApprovalDecision, ApprovalScope, ApprovalVote, ToolApprovalStatus};
use sympozium_api::{AgentRun, RunPlan, ToolApproval};
use sympozium_gateway::run_api::local::{Says, Undecidable};

use super::connection::Me;
use super::follow::plan_of;
use super::question::{self, question};
use super::records::of_run as selector_of_run;
use super::refused::{CallError, Role, shortened};
use super::{Cluster, Connection, Found, PAGE, list, plan, view, warn_of_more};
use crate::approvals::waiting::{Asker, Waiting};
use crate::failure::Failure;
use crate::local::control::{Decided, Word};
use crate::local::event::Question;
use crate::local::time::now_ms;
use crate::output::note;
use crate::run::follow::Heard;

/// The maximum number of ToolApprovals that are listed.
const MAX_APPROVALS: usize = 10_000;
/// The maximum number of groups that a vote names.
const MAX_GROUPS: usize = 16;
/// How often a vote is written again after a conflict with another approver's vote.
const ATTEMPTS: u32 = 5;

/// All open questions of the namespace, those of the newest run first.
///
/// # Errors
///
/// When they cannot be listed.
pub fn all(cluster: &Cluster) -> Result<Vec<Waiting>, Failure> {
    let connection = &cluster.connection;
    cluster.wait(async {
        let open = open(connection, None).await?;
        if open.is_empty() {
            return Ok(Vec::new());
        }
        let asks = |run: AgentRun| {
            let asks = view::outcome(&run).is_none() && open.iter().any(|it| is_of(it, &run));
            asks.then(|| bare(run))
        };
        let (mut runs, has_more) = list(connection, asks).await?;
        if has_more {
            warn_of_more();
        }
        runs.sort_by_key(|run| std::cmp::Reverse(view::view(run, &connection.place).0.started_ms));
        let mut waiting = Vec::new();
        for run in runs {
            let of_run = open.iter().filter(|it| is_of(it, &run));
            let of_run: Vec<&ToolApproval> = of_run.collect();
            let plan = plan_of(connection, &run).await;
            let names = plan::names(&run);
            waiting.extend(of_run.into_iter().map(|approval| Waiting {
                run: run.name_any(),
                uid: run.uid().unwrap_or_default(),
                question: question(approval, &names, plan.as_deref()),
                asker: Asker::Object(Box::new(approval.clone())),
                place: connection.place.clone(),
            }));
        }
        Ok(waiting)
    })
}

/// Drops the run's status except for what is needed to find its plan.
fn bare(mut run: AgentRun) -> AgentRun {
    run.status =
        run.status.map(|status| AgentRunStatus { plan_digest: status.plan_digest, ..AgentRunStatus::default() });
    run
}

/// The open questions of one run.
///
/// # Errors
///
/// When they cannot be listed.
pub async fn of_run(connection: &Connection, found: &Found, plan: Option<&RunPlan>) -> Result<Vec<Question>, Failure> {
    let open = open(connection, Some(&found.run)).await?;
    let names = plan::names(&found.run);
    let of_run = open.iter().filter(|it| is_of(it, &found.run));
    Ok(of_run.map(|it| question(it, &names, plan)).collect())
}

fn is_of(approval: &ToolApproval, run: &AgentRun) -> bool {
    run.metadata.uid.as_deref() == Some(approval.spec.run.uid.as_str())
}

/// Lists the requests that are undecided and not expired, page by page.
async fn open(connection: &Connection, run: Option<&AgentRun>) -> Result<Vec<ToolApproval>, Failure> {
    let api = connection.approvals();
    let mut parameters = ListParams::default().limit(PAGE);
    if let Some(run) = run {
        parameters = parameters.labels(&selector_of_run(run));
    }
    let (mut open, mut count) = (Vec::new(), 0);
    loop {
        let page = connection.call("list ToolApprovals", Role::Viewer, api.list(&parameters));
        let page = page.await?;
        count += page.items.len();
        let now = now_ms();
        open.extend(page.items.into_iter().filter(|it| question::is_open(it, now)));
        let next = page.metadata.continue_.filter(|it| !it.is_empty());
        match next {
            Some(next) if count < MAX_APPROVALS => {
                parameters = parameters.continue_token(&next);
            }
            Some(_) => {
                note(&format!("warning: there are more than {MAX_APPROVALS} requests, and some were not looked at"));
                break;
            }
            None => break,
        }
    }
    open.sort_by_key(|it| view::milliseconds(&it.spec.requested_at));
    Ok(open)
}

/// `cast_vote` for synchronous commands, about a request that the approver was shown.
///
/// # Errors
///
/// When it is unknown whether the vote counts.
pub fn decide_now(
    cluster: &Cluster,
    approval: &ToolApproval,
    says: Word,
    reason: Option<&str>,
) -> anyhow::Result<Decided> {
    let name = approval.name_any();
    let action = &approval.spec.action_hash;
    let connection = &cluster.connection;
    let decided = decide(connection, &name, action, says.into(), reason);
    Ok(match cluster.wait(decided) {
        Ok(Heard::Decided) => Decided::Answered,
        Ok(Heard::More(more)) => Decided::More(more),
        Ok(Heard::Noted) => Decided::Noted,
        Err(Undecided::Unknown(why)) => bail!("{why}"),
        Err(why) => Decided::Refused(why.to_string()),
    })
}

/// Why a vote does not count.
#[derive(Debug, thiserror::Error)]
pub enum Undecided {
    /// The rules of the run's plan forbid it.
    #[error(transparent)]
    Rule(#[from] Undecidable),
    /// Another approver was faster.
    #[error("it is decided already: {0}")]
    Already(String),
    /// The API server rejected it.
    #[error("{0}")]
    Refused(String),
    /// It is unknown whether it counts.
    #[error("{0}")]
    Unknown(String),
}

impl From<Failure> for Undecided {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure.words())
    }
}

/// Casts a vote about one exact action.
///
/// The vote is written as the user that the API server authenticates. The approver whose vote is the last that is
/// needed also writes the decision, if they may read the plan, which has the required number. The gateway decides what
/// counts in the end, from the run's plan and all votes.
///
/// # Errors
///
/// When the vote does not count.
pub async fn decide(
    connection: &Connection,
    name: &str,
    action: &Digest,
    says: Says,
    reason: Option<&str>,
) -> Result<Heard, Undecided> {
    let me = connection.me().await?;
    let api = connection.approvals();
    let doing = "answer the question (ToolApproval)";
    for _ in 0..ATTEMPTS {
        let found = connection.call("read the question", Role::Viewer, api.get_opt(name));
        let Some(approval) = found.await? else {
            return Err(Undecidable::Unknown.into());
        };
        if approval.spec.action_hash != *action {
            return Err(Undecidable::Action.into());
        }
        let rules = rules(connection, &approval).await?;
        let now = Time(jiff::Timestamp::now());
        let (status, counted) = voted(&approval, &rules, &me, says, reason, now)?;
        let patch = json!({
            "metadata": {"resourceVersion": approval.metadata.resource_version},
            "status": status,
        });
        let parameters = PatchParams { field_manager: Some(field_manager::CLI.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(&patch);
        let written = connection.attempt(api.patch_status(name, &parameters, &patch));
        match written.await {
            Ok(_) => return Ok(counted),
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(refused(connection, doing, &error)),
        }
    }
    Err(Undecided::Refused("others decide at the same time; try again".to_owned()))
}

fn is_conflict(error: &CallError) -> bool {
    error.status().is_some_and(|it| it.is_conflict())
}

fn refused(connection: &Connection, doing: &str, error: &CallError) -> Undecided {
    match error.status() {
        // A rule of the CRD or of an admission policy of the installation.
        Some(status) if status.is_invalid() => Undecided::Refused(shortened(&status.message)),
        Some(_) => connection.refused(doing, Role::Approver).failure(error).into(),
        None => Undecided::Unknown(connection.refused(doing, Role::Approver).failure(error).words()),
    }
}

/// What decides whether a vote counts, as far as it is known here.
#[derive(Debug, Default)]
struct Rules {
    /// `None` when the plan cannot be read.
    plan: Option<ApprovalPlan>,
    /// Who created the run, if that is recorded.
    author: Option<String>,
}

async fn rules(connection: &Connection, approval: &ToolApproval) -> Result<Rules, Undecided> {
    let reference = &approval.spec.run;
    let api = connection.runs();
    let run = connection.call("read the run that asks", Role::Viewer, api.get_opt(reference.name.as_str()));
    let run = run.await?;
    let Some(run) = run.filter(|it| is_of(approval, it) && view::outcome(it).is_none()) else {
        return Err(Undecided::Refused("the run is over".to_owned()));
    };
    let plan = plan_of(connection, &run).await.map(|it| it.approval);
    Ok(Rules { plan, author: author(&run) })
}

/// Who created a run, if that is recorded. An empty name counts as none.
fn author(run: &AgentRun) -> Option<String> {
    let author = run.annotations().get(annotation::CREATED_BY);
    author.filter(|it| !it.is_empty()).cloned()
}

/// The status with this user's vote in it, and the effect of the vote.
fn voted(
    approval: &ToolApproval,
    rules: &Rules,
    me: &Me,
    says: Says,
    reason: Option<&str>,
    now: Time,
) -> Result<(ToolApprovalStatus, Heard), Undecided> {
    if let Some((decision, by)) = question::decision(approval) {
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        let decision = format!("{decision:?}").to_lowercase();
        return Err(Undecided::Already(format!("{decision}{by}")));
    }
    if view::milliseconds(&approval.spec.expires_at) <= view::milliseconds(&now) {
        return Err(Undecidable::Unknown.into());
    }
    check(rules, me, says)?;
    let (decision, scope) = match says {
        Says::Yes => (ApprovalDecision::Approved, None),
        Says::YesForTheRun => (ApprovalDecision::Approved, Some(ApprovalScope::Run)),
        Says::No => (ApprovalDecision::Denied, None),
    };
    let mut status = approval.status.clone().unwrap_or_default();
    let earlier = status.votes.iter().find(|it| it.by == me.name);
    match earlier.map(|it| it.decision) {
        Some(ApprovalDecision::Approved) if decision == ApprovalDecision::Approved => {
            return Err(Undecidable::Twice.into());
        }
        // Their vote stays as it is, and one denial is enough.
        Some(_) => {}
        None => status.votes.push(vote(rules, me, decision, scope, reason, &now)?),
    }
    let yes = status.votes.iter();
    let yes = yes.filter(|it| it.decision == ApprovalDecision::Approved);
    let yes = u32::try_from(yes.count()).unwrap_or(u32::MAX);
    match (says, &rules.plan) {
        // One denial is enough, whatever the plan requires.
        (Says::No, _) => {}
        // A decision is final, and it is not known here whether this is the last approval that is needed.
        (Says::Yes | Says::YesForTheRun, None) => return Ok((status, Heard::Noted)),
        (Says::Yes | Says::YesForTheRun, Some(plan)) => {
            let more = plan.required.max(1).saturating_sub(yes);
            if more > 0 {
                return Ok((status, Heard::More(more)));
            }
        }
    }
    status.decision = Some(decision);
    status.decided_by = Some(me.name.clone());
    status.decided_at = Some(now);
    status.reason = reason.map(str::to_owned);
    status.scope = scope;
    Ok((status, Heard::Decided))
}

/// A vote that names those of the user's groups that may matter.
fn vote(
    rules: &Rules,
    me: &Me,
    decision: ApprovalDecision,
    scope: Option<ApprovalScope>,
    reason: Option<&str>,
    now: &Time,
) -> Result<ApprovalVote, Undecided> {
    let approvers = rules.plan.as_ref().map(|it| it.approvers.as_deref());
    let is_wanted = |group: &&String| match approvers {
        Some(approvers) => {
            approvers.unwrap_or_default().iter().any(|it| it.kind == ApproverKind::Group && it.name == **group)
        }
        // It is not known which groups the plan names, but not the ones that every user is in.
        None => !group.starts_with("system:"),
    };
    let groups: Vec<&String> = me.groups.iter().filter(is_wanted).take(MAX_GROUPS).collect();
    // By way of JSON: a version of the kind without groups ignores them.
    let vote = json!({
        "by": me.name, "decision": decision, "at": now, "reason": reason, "scope": scope, "groups": groups,
    });
    serde_json::from_value(vote).map_err(|error| Undecided::Refused(error.to_string()))
}

fn check(rules: &Rules, me: &Me, says: Says) -> Result<(), Undecidable> {
    let Some(plan) = &rules.plan else {
        return Ok(());
    };
    if says == Says::YesForTheRun && !plan.run_scope {
        return Err(Undecidable::ForTheRun);
    }
    if let Some(approvers) = &plan.approvers {
        let is_me = |kind: ApproverKind, name: &str| match kind {
            ApproverKind::User => me.name == name,
            ApproverKind::Group => me.groups.iter().any(|it| it == name),
        };
        if !approvers.iter().any(|it| is_me(it.kind, &it.name)) {
            return Err(Undecidable::Approver);
        }
    }
    let is_author = rules.author.as_ref() == Some(&me.name);
    if is_author && !plan.run_author && says != Says::No {
        return Err(Undecidable::Author);
    }
    Ok(())
}

/// Asks the controller to end a run, by a merge patch of the only field of the spec that can be changed.
pub(super) async fn cancel(connection: &Connection, found: &Found) -> Result<(), Failure> {
    let patch = json!({
        "metadata": {"uid": found.uid},
        "spec": {"cancel": true},
    });
    let parameters = PatchParams { field_manager: Some(field_manager::CLI.to_owned()), ..PatchParams::default() };
    let api = connection.runs();
    let patch = Patch::Merge(&patch);
    let patched = api.patch(&found.name, &parameters, &patch);
    let patched = connection.call("cancel the run", Role::Runner, patched).await;
    patched.map(drop).map_err(|failure| {
        // The UID is in the patch so that no other run of the same name is cancelled.
        Failure::new(
            anyhow!("{} is not cancelled: {}", found.name, failure.words()),
            format!("`sympozium show {}{}` says how it stands", found.name, connection.place.flags()),
        )
    })
}

#[cfg(test)]
mod tests {
    use sympozium_api::policy::Approver;

    use super::*;

    fn me(name: &str) -> Me {
        Me { name: name.to_owned(), groups: vec!["sre".to_owned()] }
    }

    fn at(second: i64) -> Time {
        Time(jiff::Timestamp::from_second(second).unwrap())
    }

    fn asked() -> ToolApproval {
        serde_json::from_value(json!({
            "apiVersion": "sympozium.ai/v1alpha1", "kind": "ToolApproval", "metadata": {"name": "run-q1"},
            "spec": {
                "run": {"name": "run", "uid": "uid"}, "tool": "execute_command",
                "actionHash": format!("sha256:{}", "0".repeat(64)), "summary": "shell: ls",
                "requestedAt": "1970-01-01T00:00:10Z", "expiresAt": "1970-01-01T00:01:00Z",
            },
        }))
        .unwrap()
    }

    fn rules(required: u32) -> Rules {
        Rules {
            plan: Some(ApprovalPlan { approvers: None, required, run_scope: false, run_author: false }),
            author: Some("ada".to_owned()),
        }
    }

    fn says(
        approval: &ToolApproval,
        rules: &Rules,
        name: &str,
        says: Says,
    ) -> Result<(ToolApprovalStatus, Heard), String> {
        let voted = voted(approval, rules, &me(name), says, Some("because"), at(20));
        voted.map_err(|error| error.to_string())
    }

    #[test]
    fn the_last_vote_that_is_needed_decides() {
        let mut approval = asked();
        let (status, counted) = says(&approval, &rules(2), "bob", Says::Yes).unwrap();
        assert_eq!(counted, Heard::More(1));
        assert_eq!((status.decision, status.votes.len()), (None, 1));
        approval.status = Some(status);
        let twice = says(&approval, &rules(2), "bob", Says::Yes).unwrap_err();
        assert_eq!(twice, Undecidable::Twice.to_string());
        let (status, counted) = says(&approval, &rules(2), "eve", Says::Yes).unwrap();
        assert_eq!(counted, Heard::Decided);
        assert_eq!(status.decision, Some(ApprovalDecision::Approved));
        assert_eq!(status.decided_by.as_deref(), Some("eve"));
        assert_eq!(status.decided_at, Some(at(20)));
        let by: Vec<&str> = status.votes.iter().map(|it| it.by.as_str()).collect();
        assert_eq!(by, ["bob", "eve"]);
        // One denial is enough, also by an approver who has approved before.
        let (status, counted) = says(&approval, &rules(2), "bob", Says::No).unwrap();
        assert_eq!(counted, Heard::Decided);
        assert_eq!(status.decision, Some(ApprovalDecision::Denied));
        assert_eq!(status.votes, approval.status.unwrap().votes);
    }

    #[test]
    fn who_may_not_decide_is_told_why() {
        let author = says(&asked(), &rules(1), "ada", Says::Yes).unwrap_err();
        assert_eq!(author, Undecidable::Author.to_string());
        assert!(says(&asked(), &rules(1), "ada", Says::No).is_ok());
        let scope = says(&asked(), &rules(1), "bob", Says::YesForTheRun).unwrap_err();
        assert_eq!(scope, Undecidable::ForTheRun.to_string());
        let approver = |kind, name: &str| Approver { kind, name: name.to_owned() };
        let mut only = rules(1);
        let among = |rules: &mut Rules, all: Vec<Approver>| {
            rules.plan.as_mut().unwrap().approvers = Some(all);
        };
        among(&mut only, vec![approver(ApproverKind::User, "eve")]);
        let other = says(&asked(), &only, "bob", Says::Yes).unwrap_err();
        assert_eq!(other, Undecidable::Approver.to_string());
        among(&mut only, vec![approver(ApproverKind::Group, "sre")]);
        assert!(says(&asked(), &only, "bob", Says::Yes).is_ok());
        among(&mut only, Vec::new());
        assert!(says(&asked(), &only, "bob", Says::No).is_err());
    }

    #[test]
    fn what_is_decided_or_late_stays_so() {
        let mut approval = asked();
        let (status, _) = says(&approval, &rules(1), "bob", Says::No).unwrap();
        approval.status = Some(status);
        let again = says(&approval, &rules(1), "eve", Says::Yes).unwrap_err();
        assert_eq!(again, "it is decided already: denied by bob");
        let late = voted(&asked(), &rules(1), &me("bob"), Says::Yes, None, at(60)).unwrap_err();
        assert_eq!(late.to_string(), Undecidable::Unknown.to_string());
    }

    #[test]
    fn who_may_not_read_the_plan_votes_and_decides_nothing_but_a_no() {
        let mut approval = asked();
        let nobody = Rules::default();
        for (name, votes) in [("bob", 1), ("eve", 2)] {
            let (status, counted) = says(&approval, &nobody, name, Says::Yes).unwrap();
            assert_eq!(counted, Heard::Noted);
            assert_eq!((status.decision, status.votes.len()), (None, votes));
            approval.status = Some(status);
        }
        // An approver who may read the plan counts the votes of those who may not.
        let (status, counted) = says(&approval, &rules(3), "joe", Says::Yes).unwrap();
        assert_eq!(counted, Heard::Decided);
        assert_eq!(status.decision, Some(ApprovalDecision::Approved));
        let (status, counted) = says(&approval, &nobody, "joe", Says::No).unwrap();
        assert_eq!(counted, Heard::Decided);
        assert_eq!(status.decision, Some(ApprovalDecision::Denied));
    }

    #[test]
    fn an_empty_author_is_none() {
        let created_by = |name: &str| {
            let mut run = AgentRun::new("run", sympozium_api::AgentRunSpec::default());
            let annotations = [(annotation::CREATED_BY.to_owned(), name.to_owned())];
            run.metadata.annotations = Some(annotations.into());
            author(&run)
        };
        assert_eq!(created_by(""), None);
        assert_eq!(created_by("ada"), Some("ada".to_owned()));
    }
}
