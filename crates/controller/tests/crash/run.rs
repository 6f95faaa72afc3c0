//! A run that is tried, and what must hold when it is over.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use sympozium_api::agent_run::{AgentRunStatus, Cleanup, Phase};
use sympozium_api::{AgentRun, RunPlan, labels};
use sympozium_testkit::cluster::played::{Pods, RESULT};

use super::harness::Harness;

/// How long a run may take to its end, faults included. A machine that does ten things at once is slow.
pub const TIMEOUT: Duration = Duration::from_secs(240);
/// How many writes fewer one run may have than another like it: what is seen at once is written at once, and rights
/// that the API server is late to forget are looked at twice. So the last writes of one may never come in another.
pub const WRITE_COUNT_SPREAD: usize = 6;
/// Between two watches.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// A run that was created.
pub struct TestRun {
    pub name: String,
    pub uid: String,
    api: Api<AgentRun>,
    /// Whether its pod stays.
    keeps_pod: bool,
    client: Client,
}

impl TestRun {
    pub async fn create(harness: &Harness, run: Value) -> Self {
        let api = harness.runs();
        let run: AgentRun = serde_json::from_value(run).expect("a run");
        let created = api.create(&PostParams::default(), &run).await.expect("the run is created");
        Self {
            name: created.name_any(),
            uid: created.uid().unwrap_or_default(),
            api,
            keeps_pod: run.spec.cleanup == Cleanup::Keep,
            client: harness.client.clone(),
        }
    }

    pub fn api(&self) -> &Api<AgentRun> {
        &self.api
    }

    /// The run as it is now, if it is there.
    pub async fn get(&self) -> Option<AgentRun> {
        let found = self.api.get_opt(&self.name).await.expect("asked for");
        found.filter(|it| it.uid().as_deref() == Some(&self.uid))
    }

    /// Whether nothing is to be done about the run any more, or it is gone.
    pub async fn is_terminal(&self) -> bool {
        let run = self.get().await;
        run.is_none() || is_torn_down(run.as_ref())
    }

    pub async fn is_running(&self) -> bool {
        is_running(self.get().await.as_ref())
    }

    /// Waits until something holds for the run; `None` stands for a run that is gone.
    pub async fn wait_until(
        &self,
        what: &str,
        harness: &Harness,
        condition: impl Fn(Option<&AgentRun>) -> bool + Send,
    ) {
        let holds = async {
            // A watch that fails is begun again, with what is there.
            while let Err(error) = await_condition(self.api.clone(), &self.name, &condition).await {
                eprintln!("waiting for {what}: {error}");
                tokio::time::sleep(WATCH_INTERVAL).await;
            }
        };
        let waiting = async {
            tokio::select! {
                () = holds => {}
                () = harness.keep_alive() => {}
            }
        };
        if tokio::time::timeout(TIMEOUT, waiting).await.is_err() {
            panic!("waited in vain for {what}\n{}", harness.describe(self).await);
        }
    }

    /// Waits until nothing is to be done about the run any more, and gives its status.
    pub async fn wait_torn_down(&self, harness: &Harness) -> AgentRunStatus {
        self.wait_until("the run to be over and clean", harness, is_torn_down).await;
        let run = self.get().await.expect("a run that is over stays");
        run.status.expect("it has a status")
    }

    pub async fn wait_running(&self, harness: &Harness) {
        self.wait_until("the run to go on", harness, is_running).await;
    }

    /// What exists in the cluster for this run, the run itself apart: kind and name.
    pub async fn remaining_objects(&self) -> BTreeSet<String> {
        let kinds = [
            ApiResource::erase::<Pod>(&()),
            ApiResource::erase::<Job>(&()),
            ApiResource::erase::<ConfigMap>(&()),
            ApiResource::erase::<Secret>(&()),
            ApiResource::erase::<ServiceAccount>(&()),
            ApiResource::erase::<PersistentVolumeClaim>(&()),
            ApiResource::erase::<NetworkPolicy>(&()),
            ApiResource::erase::<Role>(&()),
            ApiResource::erase::<RoleBinding>(&()),
            ApiResource::erase::<ClusterRole>(&()),
            ApiResource::erase::<ClusterRoleBinding>(&()),
        ];
        let selector = ListParams::default().labels(&format!("{}={}", labels::RUN_UID, self.uid));
        let mut left = BTreeSet::new();
        for kind in kinds {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
            let found = api.list(&selector).await.expect("listed");
            left.extend(found.iter().map(|it| format!("{} {}", kind.kind, it.name_any())));
        }
        left
    }

    /// Waits until nothing of a run that is gone is left.
    pub async fn assert_deleted(&self, harness: &Harness) {
        self.wait_until("the run to be gone", harness, |run| run.is_none()).await;
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let left = self.remaining_objects().await;
            if left.is_empty() {
                return;
            }
            // What the run owned goes by the cluster's own collector, which takes its time.
            if tokio::time::Instant::now() > deadline {
                panic!("still there: {left:?}\n{}", harness.describe(self).await);
            }
            harness.revive().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What became of the run's pods, when the play has seen the one that the status names: its watch may be behind the controller's.
    async fn pods(&self, harness: &Harness, status: &AgentRunStatus) -> Pods {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let pods = harness.played.pods_of(&self.uid);
            let is_seen = status.pod_uid.as_ref().is_none_or(|named| pods.seen.contains(named.as_str()));
            if is_seen || tokio::time::Instant::now() > deadline {
                return pods;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Asserts that the run succeeded, was executed exactly once, and left nothing but its plan.
    pub async fn assert_succeeded(&self, harness: &Harness, status: &AgentRunStatus, hooks: usize) {
        let pods = self.pods(harness, status).await;
        let wrong = self.problems(status, Phase::Succeeded, &pods).await;
        let mut wrong: Vec<String> = wrong.into_iter().collect();
        if status.result.as_deref() != Some(RESULT) {
            wrong.push(format!("the result is {:?}", status.result));
        }
        if pods.executed.len() != 1 {
            wrong.push(format!("{} executions", pods.executed.len()));
        }
        if pods.hooks.len() != hooks {
            wrong.push(format!("hooks ran {} times", pods.hooks.len()));
        }
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("; "), harness.describe(self).await);
    }

    /// Asserts that the run ended in this phase, was executed at most once, and left nothing but its plan.
    pub async fn assert_ended(&self, harness: &Harness, status: &AgentRunStatus, phase: Phase) {
        let pods = self.pods(harness, status).await;
        let wrong = self.problems(status, phase, &pods).await;
        assert!(wrong.is_empty(), "{}\n{}", wrong.join("; "), harness.describe(self).await);
    }

    /// What every run must have when it is over, however it ended.
    async fn problems(&self, status: &AgentRunStatus, phase: Phase, pods: &Pods) -> Vec<String> {
        let mut wrong = Vec::new();
        if status.phase != Some(phase) {
            wrong.push(format!("it is {:?}, not {phase:?}: {:?}", status.phase, status.error));
        }
        if pods.executed.len() > 1 || pods.seen.len() > 1 {
            wrong.push(format!("more than one pod: {pods:?}"));
        }
        if let Some(named) = &status.pod_uid
            && !pods.seen.contains(named.as_str())
        {
            wrong.push(format!("the status names pod {named}, which nobody saw"));
        }
        let executed = pods.executed.iter().next();
        if phase == Phase::Succeeded && status.pod_uid.as_ref().map(ToString::to_string).as_ref() != executed {
            wrong.push("the status names another pod than the one that ran".to_owned());
        }
        let revoked = status.conditions.iter().find(|it| it.type_ == "Revoked");
        let had_grants = !status.grants.is_empty();
        if had_grants && revoked.is_none_or(|it| it.status != "True") {
            wrong.push(format!("Revoked is {revoked:?}"));
        }
        if status.granted_at.is_some() && status.revoked_at.is_none() {
            wrong.push("granted, and not revoked by a time".to_owned());
        }
        match &status.revocation {
            Some(check) if check.remaining.is_empty() => {}
            other => wrong.push(format!("the check says {other:?}")),
        }
        // The plan stays, and is the one that was written down; so do a pod that is to be kept and its Job. Nothing else does.
        let left = self.remaining_objects().await;
        let job = status.job_name.as_ref().map(|it| it.as_str());
        let plan = job.map(|job| format!("{job}-plan"));
        let (mut pods_kept, mut others) = (0, Vec::new());
        for it in &left {
            match it.split_once(' ').unwrap_or_default() {
                ("ConfigMap", name) if Some(name) == plan.as_deref() => {}
                ("Job", name) if self.keeps_pod && Some(name) == job => {}
                ("Pod", _) if self.keeps_pod => pods_kept += 1,
                _ => others.push(it),
            }
        }
        if !others.is_empty() {
            wrong.push(format!("still there: {others:?}"));
        }
        if self.keeps_pod && phase == Phase::Succeeded && pods_kept != 1 {
            wrong.push(format!("{pods_kept} pods were kept"));
        }
        if let (Some(plan), Some(digest)) = (&plan, &status.plan_digest) {
            wrong.extend(self.plan_problem(plan, digest.as_str(), phase).await);
        }
        wrong
    }

    async fn plan_problem(&self, name: &str, written: &str, phase: Phase) -> Option<String> {
        let namespace = self.api.namespace().unwrap_or_default();
        let plans: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let plan = plans.get_opt(name).await.expect("asked for");
        let text = plan.and_then(|it| it.data?.remove("plan.json"));
        match text {
            // A run that was ended before it began may have none.
            None if phase != Phase::Succeeded => None,
            None => Some("the plan is gone".to_owned()),
            Some(text) => {
                let found = RunPlan::digest_of(text.as_bytes());
                (found.as_str() != written).then(|| format!("the plan has digest {found}, written down is {written}"))
            }
        }
    }
}

fn is_running(run: Option<&AgentRun>) -> bool {
    let status = run.and_then(|run| run.status.as_ref());
    status.is_some_and(|it| it.pod_uid.is_some())
}

fn is_torn_down(run: Option<&AgentRun>) -> bool {
    let Some(run) = run else { return false };
    let status = run.status.as_ref();
    let over = status.is_some_and(|it| it.phase.is_some_and(Phase::is_terminal));
    over && status.is_some_and(|it| it.revocation.is_some()) && run.finalizers().is_empty()
}
