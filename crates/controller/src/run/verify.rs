//! The last step of the end of a run: verifies that nothing of it is left.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use sympozium_api::agent_run::{Cleanup, GrantRecord, GrantRole};
use sympozium_api::run_plan::Identity;
use sympozium_api::{RunPlan, limits};
use sympozium_plan::render::names::ObjectNames;

use super::error::Error;
use super::objects;
use super::retry::retry;
use super::stored::StoredRun;
use super::teardown::{list_pods, pod_record};
use crate::conditions::ConditionValue;
use crate::context::Context;

/// Reason of the condition `Revoked` while objects of the run remain.
pub const REMAINING_REASON: &str = "Remaining";
/// Access reviews per identity: the first verb and resource of each rule, for so many rules.
const MAX_ACCESS_REVIEWS: usize = 16;

/// The result of a verification.
pub struct Verification {
    /// Objects that still exist.
    pub objects: Vec<GrantRecord>,
    /// Accounts that still have access, though they may not exist any more.
    pub accounts: Vec<GrantRecord>,
    /// Whether the plan was there: without it, it is unknown what to ask about the accounts.
    pub access_reviewed: bool,
}

impl Verification {
    /// What is left, as far as the status can record it.
    pub fn remaining(&self) -> Vec<GrantRecord> {
        self.objects.iter().chain(&self.accounts).take(limits::GRANTS).cloned().collect()
    }

    /// The condition `Revoked`.
    pub fn condition(&self) -> ConditionValue {
        let names = |records: &[GrantRecord]| -> String {
            let names: Vec<String> = records.iter().map(|record| format!("{} {}", record.kind, record.name)).collect();
            names.join(", ")
        };
        let mut left = Vec::new();
        if !self.objects.is_empty() {
            left.push(format!("these objects of the run still exist: {}", names(&self.objects)));
        }
        if !self.accounts.is_empty() {
            left.push(format!("these accounts of the run still have access: {}", names(&self.accounts)));
        }
        if !left.is_empty() {
            return ConditionValue::no(REMAINING_REASON, format!("{}; the controller tries again", left.join("; ")));
        }
        let message = if self.access_reviewed {
            "no object of the run exists and its accounts have no access; verified by reading the objects and by \
             access reviews"
        } else {
            "no object of the run exists; verified by reading the objects, without access reviews because the plan of \
             the run is gone"
        };
        ConditionValue::yes("Revoked", message)
    }
}

/// Reads back every object of the run, and asks for the access of its accounts. With [`Cleanup::Keep`], workloads and
/// pods may be left.
pub async fn verify(run: &StoredRun, cleanup: Cleanup, context: &Context) -> Result<Verification, Error> {
    let mut objects = Vec::new();
    if cleanup == Cleanup::Delete {
        objects.extend(list_pods(run, context).await?.iter().map(|pod| pod_record(pod)));
    }
    for record in run.grants() {
        if cleanup == Cleanup::Keep && record.role() == GrantRole::Workload {
            continue;
        }
        if objects::find(context, record, run).await?.is_some() {
            objects.push(record.clone());
        }
    }
    let plan = match context.plans.load(run, context).await {
        Err(error) if !error.is_final() => return Err(error),
        loaded => loaded.ok(),
    };
    let mut accounts = Vec::new();
    if let Some(plan) = &plan {
        for identity in &plan.identities {
            if still_has_access(plan, identity, context).await? {
                accounts.push(account_record(plan, identity));
            }
        }
    }
    Ok(Verification { objects, accounts, access_reviewed: plan.is_some() })
}

fn account_record(plan: &RunPlan, identity: &Identity) -> GrantRecord {
    GrantRecord {
        kind: "ServiceAccount".to_owned(),
        namespace: Some(plan.run.namespace.clone()),
        name: account_name(plan, identity),
        uid: None,
        skill: identity.pack.clone(),
        role: Some(GrantRole::Other),
    }
}

fn account_name(plan: &RunPlan, identity: &Identity) -> String {
    ObjectNames::new(&plan.run).with_suffix(&identity.name.0.replace('-', ""))
}

/// Whether an account of the run still has access that an account which never existed does not have: access that
/// everyone has is not the run's.
async fn still_has_access(plan: &RunPlan, identity: &Identity, context: &Context) -> Result<bool, Error> {
    let account = account_name(plan, identity);
    let never_existed = ObjectNames::new(&plan.run).with_suffix("nobody");
    let namespace = plan.run.namespace.as_str();
    let in_namespace = identity.namespace_rules.iter().map(|rule| (rule, Some(namespace)));
    let in_cluster = identity.cluster_rules.iter().map(|rule| (rule, None));
    for (rule, scope) in in_namespace.chain(in_cluster).take(MAX_ACCESS_REVIEWS) {
        let attributes = ResourceAttributes {
            group: rule.api_groups.first().cloned(),
            resource: rule.resources.first().map(|resource| resource.split('/').next().unwrap_or(resource).to_owned()),
            subresource: rule
                .resources
                .first()
                .and_then(|resource| resource.split_once('/'))
                .map(|(_, sub)| sub.to_owned()),
            verb: rule.verbs.first().cloned(),
            name: rule.resource_names.first().cloned(),
            namespace: scope.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        if has_access(&account, namespace, &attributes, context).await?
            && !has_access(&never_existed, namespace, &attributes, context).await?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn has_access(
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
    let answer = retry(|| reviews.create(&parameters, &review)).await;
    let answer = answer.map_err(Error::api("review the access of", "ServiceAccount", account))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
