//! The end of a run: rights first, then everything else, and the proof that nothing is left.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::events::EventType;
use kube::{Api, ResourceExt as _};
use sympozium_api::agent_run::{
    ContainerFailure, CostEstimate, GateVerdict, GrantRecord, IsolationRecord, Phase, Revocation, TokenUsage,
};
use sympozium_api::run_plan::Identity;
use sympozium_api::{AgentRun, RunPlan, labels, limits};
use sympozium_plan::render::SandboxVersion;
use sympozium_plan::render::names::Names;

use super::again::again;
use super::error::Error;
use super::faults;
use super::objects;
use super::plans::identity;
use super::status::{Change, Says, condition, now, release, since};
use crate::context::{About, Context};
use crate::world::is_revoked;

/// Why a run is not revoked of which something is still there.
const REMAINING: &str = "Remaining";
/// How long to wait before looking again at something that should be gone. Usually its going is seen first.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The same for what was removed and is there all the same: nobody tells when it goes.
const REMAINING_PAUSE: Duration = Duration::from_secs(2);
/// How long to wait at most before something is looked at again that does not go.
const MOST_PAUSE: Duration = Duration::from_secs(60);
/// How long a pod may take to go before that is written down.
const POD_PATIENCE: Duration = Duration::from_secs(60);
/// Pods of a run that are read back: more than a run can have.
const PODS_READ: u32 = 100;
/// Rights of one identity that are asked about in the end. One of each rule, for so many rules.
const RIGHTS_ASKED: usize = 16;

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Where it stands for good.
    pub phase: Phase,
    /// The agent's answer.
    pub result: Option<String>,
    /// Why there is none.
    pub error: Option<String>,
    /// The exit code of the agent's container.
    pub exit_code: Option<i32>,
    /// What the model was asked and said, counted.
    pub token_usage: Option<TokenUsage>,
    /// The isolation that was live.
    pub isolation: Vec<IsolationRecord>,
    /// Containers that failed.
    pub failed_containers: Vec<ContainerFailure>,
    /// What a gate decided.
    pub gate: Option<GateVerdict>,
    /// What is to be said about admission.
    pub admitted: Option<Says>,
    /// Whether its network was held in.
    pub network: Option<Says>,
    /// What went wrong without changing the outcome.
    pub warning: Option<String>,
}

impl Outcome {
    /// It failed.
    pub fn failed(why: &str) -> Self {
        Self { phase: Phase::Failed, error: Some(why.to_owned()), ..Self::default() }
    }

    /// A person ended it before it began.
    pub fn cancelled() -> Self {
        Self { phase: Phase::Cancelled, ..Self::default() }
    }
}

/// Whose rights are taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Everybody's.
    All,
    /// Those of skills; hooks keep theirs.
    Skills,
}

/// Takes back what parts may do at the Kubernetes API: bindings first, which works at once, then tokens.
pub async fn revoke_rights(run: &AgentRun, whose: Whose, context: &Context) -> Result<(), Error> {
    let uid = run.uid().unwrap_or_default();
    let grants = grants(run);
    let concerned = |it: &&GrantRecord| whose == Whose::All || it.skill.is_some();
    let bindings = grants.iter().filter(|it| is_binding(it)).filter(concerned);
    let tokens = grants.iter().filter(|it| is_token(it)).filter(concerned);
    let remove = |record| objects::remove(context, record, &uid, None);
    // Side by side: one that cannot be taken back, or is not answered for long, keeps none of the others.
    let mut removed = join_all(bindings.map(remove)).await;
    removed.extend(join_all(tokens.map(remove)).await);
    removed.into_iter().try_for_each(|it| it.map(drop))
}

fn is_binding(record: &GrantRecord) -> bool {
    record.kind.ends_with("Binding")
}

fn is_token(record: &GrantRecord) -> bool {
    record.kind == "Secret" && record.name.ends_with("token")
}

fn grants(run: &AgentRun) -> &[GrantRecord] {
    run.status.as_ref().map(|it| it.grants.as_slice()).unwrap_or_default()
}

/// Whether a record is of something that makes pods.
pub fn is_workload(record: &GrantRecord) -> bool {
    matches!(record.kind.as_str(), "Job" | "Sandbox")
}

/// Has the run's pod end: what makes it first, so that it makes no other, and then the pod itself, which may have lost its
/// maker.
pub async fn remove_workload(run: &AgentRun, pod: &Pod, context: &Context) -> Result<(), Error> {
    let uid = run.uid().unwrap_or_default();
    let version = sandbox_version(run, context)?;
    let post = run.status.as_ref().and_then(|it| it.post_run_job_name.as_ref());
    for record in grants(run).iter().filter(|it| is_workload(it)) {
        // Hooks have their turn afterwards.
        if post.is_some_and(|it| it.as_str() == record.name) {
            continue;
        }
        objects::remove(context, record, &uid, version).await?;
    }
    objects::remove(context, &record_of(pod), &uid, version).await?;
    Ok(())
}

/// A pod as something that is to be gone.
fn record_of(pod: &Pod) -> GrantRecord {
    GrantRecord {
        kind: "Pod".to_owned(),
        namespace: pod.namespace().map(Into::into),
        name: pod.name_any(),
        uid: pod.uid().map(Into::into),
        skill: None,
    }
}

/// The version of Sandboxes that the cluster has, if it has any.
///
/// # Errors
///
/// While nobody knows: then nobody knows either whether a Sandbox is there.
fn sandbox_version(run: &AgentRun, context: &Context) -> Result<Option<SandboxVersion>, Error> {
    let surroundings = context.surroundings.borrow();
    match surroundings.as_ref() {
        Some(surroundings) => Ok(surroundings.render.sandbox_version),
        None if grants(run).iter().all(|it| it.kind != "Sandbox") => Ok(None),
        None => Err(Error::Waiting("the cluster around it is known")),
    }
}

/// The UID of what a record of the run names, if it is there and the run's.
pub async fn find(run: &AgentRun, record: &GrantRecord, context: &Context) -> Result<Option<String>, Error> {
    let uid = run.uid().unwrap_or_default();
    objects::find(context, record, &uid, sandbox_version(run, context)?).await
}

/// The run is over: takes its rights, says what came of it, and removes the rest.
pub async fn finish(run: Arc<AgentRun>, outcome: Outcome, context: &Context) -> Result<Action, Error> {
    revoke_rights(&run, Whose::All, context).await?;
    let mut change = Change::of(&run)
        .set("phase", outcome.phase)?
        .set("result", &outcome.result)?
        .fail(outcome.error.as_deref())?
        .set("completedAt", now())?
        .set("exitCode", outcome.exit_code)?
        .set("tokenUsage", &outcome.token_usage)?
        .set("isolation", &outcome.isolation)?
        .set("failedContainers", &outcome.failed_containers)?
        .set("gateVerdict", outcome.gate)?;
    if let Some(cost) = cost_of(&run, &outcome, context).await {
        change = change.set("costEstimate", &cost)?;
    }
    let status = run.status.as_ref();
    if status.is_some_and(|it| it.granted_at.is_some()) {
        // Only now: the gateway hears nothing more of a run of which this is said, and the bridge has its last word until then.
        change = change
            .set("revokedAt", now())?
            .say(condition::GRANTED, Says::no("Revoked", "the run is over, and its rights were taken back"));
        let reported = status.and_then(|it| it.report.as_ref());
        if let Some(reported) = reported.filter(|it| it.finished) {
            context.metrics.revoked_after(since(&reported.reported_at));
        }
    }
    if let Some(says) = outcome.network {
        change = change.say(condition::NETWORK_ENFORCED, says);
    }
    if let Some(says) = outcome.admitted {
        change = change.say(condition::ADMITTED, says);
    }
    if grants(&run).is_empty() {
        // Nothing of it was ever there.
        change = change.set("revocation", revocation(Vec::new()))?;
    } else {
        change = change.say(condition::REVOKED, Says::no("Revoking", "what was made for the run is being removed"));
    }
    let run = change.write(context).await?;
    let (type_, note) = match (&run.status.as_ref().and_then(|it| it.error.clone()), &outcome.warning) {
        (Some(error), _) => (EventType::Warning, error.clone()),
        (None, Some(warning)) => (EventType::Warning, warning.clone()),
        (None, None) => (EventType::Normal, "the run is over".to_owned()),
    };
    let reason = match outcome.phase {
        Phase::Succeeded => "Succeeded",
        Phase::Cancelled => "Cancelled",
        Phase::Skipped => "Skipped",
        _ => "Failed",
    };
    let about = About { type_, reason, action: "End", note: &note };
    context.tell(&run, about).await;
    clean(run, context).await
}

/// What the run cost, where its model has a price. Not worth failing for.
async fn cost_of(run: &AgentRun, outcome: &Outcome, context: &Context) -> Option<CostEstimate> {
    let usage = outcome.token_usage.as_ref()?;
    let prices = context.settings.prices.as_ref()?;
    let plan = context.plans.of(run, context).await.ok()?;
    let model = &plan.model;
    prices.estimate(&model.provider, &model.model, usage, now())
}

fn revocation(remaining: Vec<GrantRecord>) -> Revocation {
    Revocation { checked_at: now(), remaining }
}

/// Removes what is left of a run that is over, looks whether all of it is gone, and writes that down.
pub async fn clean(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let uid = run.uid().unwrap_or_default();
    if grants(&run).is_empty() || is_revoked(&run) {
        release(&run, context).await?;
        forget(&uid, context);
        return Ok(Action::await_change());
    }
    let keep = run.spec.cleanup == sympozium_api::agent_run::Cleanup::Keep;
    let ended = remove_all(&run, keep, context).await?;
    let pods = if keep { Vec::new() } else { pods_of(&run, context) };
    if (!ended || !pods.is_empty()) && completed(&run) < POD_PATIENCE {
        return Ok(Action::requeue(LOOK_AGAIN));
    }
    let Left { remaining, asked } = left(&run, keep, context).await?;
    let says = if remaining.is_empty() {
        Says::yes("Revoked", format!("nothing of the run is left; checked {asked}"))
    } else {
        let names: Vec<String> = remaining.iter().map(|it| format!("{} {}", it.kind, it.name)).collect();
        Says::no(REMAINING, format!("still there: {}", names.join(", ")))
    };
    let is_clean = remaining.is_empty();
    let mut change = Change::of(&run).say(condition::REVOKED, says);
    let known = run.status.as_ref().and_then(|it| it.revocation.as_ref());
    // Written when it changes, not each time that it is looked at.
    if known.is_none_or(|it| it.remaining != remaining) {
        change = change.set("revocation", revocation(remaining.clone()))?;
    }
    let run = change.write(context).await?;
    if !is_clean {
        remove_again(&uid, &remaining, context);
        // When a pod goes is seen.
        let pause = match pods.is_empty() {
            true => REMAINING_PAUSE,
            false => LOOK_AGAIN,
        };
        return Ok(Action::requeue(rarer(pause, completed(&run))));
    }
    release(&run, context).await?;
    forget(&uid, context);
    Ok(Action::await_change())
}

/// What has lasted for long is looked at more rarely.
fn rarer(pause: Duration, lasts: Duration) -> Duration {
    (lasts / 10).clamp(pause, MOST_PAUSE)
}

/// Removes everything of a run, in an order in which its pod is never less held in than before. Whether its pods have ended.
async fn remove_all(run: &AgentRun, keep: bool, context: &Context) -> Result<bool, Error> {
    let uid = run.uid().unwrap_or_default();
    let version = sandbox_version(run, context)?;
    // Who wrote that time had taken them.
    let remained = has_remained(run);
    if remained || run.status.as_ref().is_none_or(|it| it.revoked_at.is_none()) {
        revoke_rights(run, Whose::All, context).await?;
    }
    let mut outcome = Ok(());
    let pods = match run.status.as_ref().is_some_and(|it| it.pod_uid.is_some()) {
        true => pods_of(run, context),
        // Nobody has written one down: the watch may be behind.
        false => live_pods(run, context).await?,
    };
    let still = pods.iter().all(|pod| faults::is_still(pod));
    // A pod that is to be kept is kept once it has ended by itself; an agent that lingers is ended.
    let lingering = keep && !still && has_lingered(run);
    if !keep || lingering {
        for record in grants(run).iter().filter(|it| is_workload(it)) {
            let removed = objects::remove(context, record, &uid, version).await;
            outcome = outcome.and(removed.map(drop));
        }
        // A pod goes with what made it. One that was torn away from it does not.
        if has_lingered(run) {
            for pod in pods.iter().filter(|it| it.metadata.deletion_timestamp.is_none()) {
                let removed = objects::remove(context, &record_of(pod), &uid, version).await;
                outcome = outcome.and(removed.map(drop));
            }
        }
        if pods.iter().any(|pod| !faults::is_still(pod)) {
            return Ok(false);
        }
    } else if !still {
        return Ok(false);
    }
    // Nothing runs any more: what held it in, what it read and who it was can go.
    for record in grants(run).iter().rev() {
        if !is_workload(record) && (remained || !is_right(record)) {
            // One that cannot be removed keeps none of the others.
            let removed = objects::remove(context, record, &uid, version).await;
            outcome = outcome.and(removed.map(drop));
        }
    }
    outcome.map(|()| true)
}

/// Whether something was there that had been removed: then nothing that is written down about removals counts.
fn has_remained(run: &AgentRun) -> bool {
    let conditions = run.status.iter().flat_map(|it| &it.conditions);
    let mut revoked = conditions.filter(|it| it.type_ == condition::REVOKED);
    revoked.any(|it| it.reason == REMAINING)
}

/// The pods of a run, as the watch has seen them.
pub fn pods_of(run: &AgentRun, context: &Context) -> Vec<Arc<Pod>> {
    context.world.pods.state_filter(|pod| is_pod_of(pod, run))
}

/// The pods of a run as the API server has them: what the watch has shown may be behind.
async fn live_pods(run: &AgentRun, context: &Context) -> Result<Vec<Arc<Pod>>, Error> {
    let namespace = run.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let selector = format!("{}={}", labels::RUN_UID, run.uid().unwrap_or_default());
    let parameters = ListParams::default().labels(&selector).limit(PODS_READ);
    let pods = again(|| api.list(&parameters)).await;
    let pods = pods.map_err(Error::api("list", "Pod", run.name_any()))?;
    let pods = pods.items.into_iter().filter(|pod| is_pod_of(pod, run));
    Ok(pods.map(Arc::new).collect())
}

/// Whether a pod is the run's: the one that is written down, or made by what was made for the run. Labels can be put on any pod.
fn is_pod_of(pod: &Pod, run: &AgentRun) -> bool {
    let labelled = pod.labels().get(labels::RUN_UID) == run.metadata.uid.as_ref();
    if !labelled || pod.namespace() != run.namespace() {
        return false;
    }
    let written = run.status.as_ref().and_then(|it| it.pod_uid.as_ref());
    if written.is_some() && pod.uid().as_deref() == written.map(|it| it.as_str()) {
        return true;
    }
    let owners = pod.owner_references().iter();
    let mut makers = owners.filter(|it| it.controller == Some(true));
    makers.any(|owner| {
        let mut workloads = grants(run).iter().filter(|it| is_workload(it));
        workloads.any(|record| match &record.uid {
            Some(uid) => uid.as_str() == owner.uid,
            None => record.kind == owner.kind && record.name == owner.name,
        })
    })
}

/// How long ago the run was over.
fn completed(run: &AgentRun) -> Duration {
    let completed = run.status.as_ref().and_then(|it| it.completed_at.as_ref());
    completed.map_or(Duration::ZERO, since)
}

/// How long a pod that is to be kept may take to end after its run.
pub const LINGER: Duration = Duration::from_secs(15);

fn has_lingered(run: &AgentRun) -> bool {
    completed(run) >= LINGER
}

fn is_right(record: &GrantRecord) -> bool {
    is_binding(record) || is_token(record)
}

/// Whether a record is not of an object, but of an account that may still do what it was granted.
fn is_allowed_only(record: &GrantRecord) -> bool {
    record.kind == "ServiceAccount" && record.uid.is_none()
}

/// What is left of a run.
struct Left {
    remaining: Vec<GrantRecord>,
    /// How that was found out.
    asked: &'static str,
}

/// What is still there, by reading back and by asking what the run's accounts may do.
async fn left(run: &AgentRun, keep: bool, context: &Context) -> Result<Left, Error> {
    let uid = run.uid().unwrap_or_default();
    let version = sandbox_version(run, context)?;
    let mut remaining = Vec::new();
    if !keep {
        let pods = live_pods(run, context).await?;
        remaining.extend(pods.iter().map(|pod| record_of(pod)));
    }
    for record in grants(run) {
        if keep && is_workload(record) {
            continue;
        }
        if (objects::find(context, record, &uid, version).await?).is_some() {
            remaining.push(record.clone());
        }
    }
    // A plan that is gone has been read when the run began; without it the objects were still read back.
    let plan = match context.plans.of(run, context).await {
        Err(error) if !error.is_final() => return Err(error),
        found => found.ok(),
    };
    let mut asked = "by reading back; its plan is gone, so that nobody knows what to ask about its accounts";
    if let Some(plan) = plan {
        asked = "by reading back and by asking what its accounts may do";
        for identity in &plan.identities {
            if may_still(run, &plan, identity, context).await? {
                remaining.push(GrantRecord {
                    kind: "ServiceAccount".to_owned(),
                    namespace: Some(plan.run.namespace.clone()),
                    name: Names::new(&plan.run).of(&identity.name.0.replace('-', "")),
                    uid: None,
                    skill: identity.pack.clone(),
                });
            }
        }
    }
    remaining.truncate(limits::GRANTS);
    Ok(Left { remaining, asked })
}

/// Whether an account of the run may still do what it was granted, and one that never was there may not: what everybody may do
/// is not the run's.
async fn may_still(run: &AgentRun, plan: &RunPlan, identity_: &Identity, context: &Context) -> Result<bool, Error> {
    let names = Names::new(&identity(run));
    let account = names.of(&identity_.name.0.replace('-', ""));
    let nobody = names.of("nobody");
    let namespace = plan.run.namespace.as_str();
    let in_namespace = identity_.namespace_rules.iter().map(|rule| (rule, Some(namespace)));
    let in_cluster = identity_.cluster_rules.iter().map(|rule| (rule, None));
    for (rule, scope) in in_namespace.chain(in_cluster).take(RIGHTS_ASKED) {
        let attributes = ResourceAttributes {
            group: rule.api_groups.first().cloned(),
            resource: rule.resources.first().map(|it| it.split('/').next().unwrap_or(it).to_owned()),
            subresource: rule.resources.first().and_then(|it| it.split_once('/')).map(|(_, sub)| sub.to_owned()),
            verb: rule.verbs.first().cloned(),
            name: rule.resource_names.first().cloned(),
            namespace: scope.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        if may(&account, namespace, &attributes, context).await?
            && !may(&nobody, namespace, &attributes, context).await?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn may(
    account: &str,
    namespace: &str,
    attributes: &ResourceAttributes,
    context: &Context,
) -> Result<bool, Error> {
    let reviews: Api<SubjectAccessReview> = Api::all(context.client.clone());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{namespace}:{account}")),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes.clone()),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let parameters = PostParams::default();
    let answer = again(|| reviews.create(&parameters, &review)).await;
    let answer = answer.map_err(Error::api("ask about", "ServiceAccount", account))?;
    Ok(answer.status.is_some_and(|it| it.allowed))
}

/// A run that is being deleted: as if it were cancelled, and then it may go.
pub async fn deleted(run: Arc<AgentRun>, context: &Context) -> Result<Action, Error> {
    let uid = run.uid().unwrap_or_default();
    if !grants(&run).is_empty() {
        let ended = remove_all(&run, false, context).await?;
        if !ended || !pods_of(&run, context).is_empty() {
            return Ok(Action::requeue(LOOK_AGAIN));
        }
        let mut remaining = left(&run, false, context).await?.remaining;
        // An account that is gone and that somebody has given rights is nobody's, and must not keep the run for ever.
        remaining.retain(|it| !is_allowed_only(it));
        if !remaining.is_empty() {
            remove_again(&uid, &remaining, context);
            let deleted = run.metadata.deletion_timestamp.as_ref();
            let lasts = deleted.map_or(Duration::ZERO, since);
            return Ok(Action::requeue(rarer(REMAINING_PAUSE, lasts)));
        }
    }
    release(&run, context).await?;
    forget(&uid, context);
    context.index.forget(&uid);
    context.written.forget(&uid);
    Ok(Action::await_change())
}

/// What is still there is removed again the next time; the rest is not.
fn remove_again(uid: &str, remaining: &[GrantRecord], context: &Context) {
    for record in remaining {
        context.index.forget_removed(uid, &record.kind, &record.name);
    }
}

/// Nothing more is to be known about a run.
pub fn forget(uid: &str, context: &Context) {
    context.plans.forget(uid);
    context.refusals.forget(uid);
    context.hindrances.forget(uid);
    context.renewals.forget(uid);
}
