//! Creates the objects of a run, in an order in which a crash leaves nothing usable.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use sympozium_api::RunPlan;
use sympozium_api::agent_run::{GrantRecord, GrantRole, Phase, condition};
use sympozium_api::names::{ObjectName, Uid};
use sympozium_api::run_plan::Workload;
use sympozium_plan::admit::Violation;
use sympozium_plan::render::{CreationStep, Object, PendingSecret, Rendered, SecretPurpose};

use super::error::Error;
use super::resolve::Prepared;
use super::status::{StatusPatch, add_finalizer};
use super::stored::StoredRun;
use super::{inputs, objects};
use crate::cluster_info::ClusterInfo;
use crate::conditions::{ConditionValue, elapsed_since, now};
use crate::context::Context;

/// The creation of a run's objects. After an error, [`Self::run`] is the run as far as they were created.
pub struct Creation<'c> {
    pub run: StoredRun,
    plan: RunPlan,
    rendered: Rendered,
    warnings: Vec<Violation>,
    grants: Vec<GrantRecord>,
    context: &'c Context,
}

impl<'c> Creation<'c> {
    pub fn new(run: StoredRun, prepared: Prepared, context: &'c Context) -> Self {
        let Prepared { plan, rendered, warnings } = prepared;
        let grants = grant_records(&rendered);
        Self { run, plan, rendered, warnings, grants, context }
    }

    /// Creates all objects. The order is what makes a crash harmless; see each step.
    pub async fn create_all(&mut self, cluster_info: &ClusterInfo) -> Result<Action, Error> {
        let context = self.context;
        inputs::fill_secrets(&self.plan, &mut self.rendered, cluster_info)?;
        // First of all: from here on the run cannot be deleted before we revoke what we grant.
        self.run = add_finalizer(&self.run, context).await?;
        // The names are recorded before the objects are created: after a crash they are looked for by these names.
        self.write_plan().await?;
        context.plans.insert(self.plan.clone());
        // Accounts, confinement, inputs, roles: none of these gives a permission to anything.
        self.create_inert().await?;
        self.write_tokens(cluster_info).await?;
        // Bindings last: from here on the tokens, which no part has yet, give permissions.
        self.create_bindings().await?;
        self.write_granted().await?;
        // From here on the UIDs are in the status.
        context.index.forget_created(self.run.uid());
        if self.is_unwanted() {
            return Ok(Action::requeue(Duration::ZERO));
        }
        for object in self.rendered.objects_of_step(CreationStep::Workload) {
            objects::create(context, object, &self.run).await?;
        }
        context.index.mark_job_created(self.run.uid());
        if let Some(created) = self.run.creation_timestamp() {
            context.metrics.observe_job_created(elapsed_since(&created));
        }
        // The watch delivers the pod; if none appears, the start deadline applies.
        Ok(Action::requeue(Duration::from_secs(self.plan.deadlines.start_seconds)))
    }

    /// Writes the plan's digest and the names of all objects, before any is created.
    async fn write_plan(&mut self) -> Result<(), Error> {
        let mut patch = StatusPatch::new(&self.run);
        let status = &mut patch.status;
        if status.plan_digest.is_some() {
            return Ok(());
        }
        let name_of = |step| self.rendered.objects_of_step(step).next().map(|object| ObjectName::new(object.name()));
        let workload = name_of(CreationStep::Workload);
        match self.plan.workload {
            Workload::Job => status.job_name = workload,
            Workload::Sandbox { .. } => status.sandbox_name = workload,
        }
        status.post_run_job_name = name_of(CreationStep::AfterRun);
        status.phase = Some(Phase::Pending);
        status.plan_digest = Some(self.rendered.digest.clone());
        status.resolved.clone_from(&self.plan.resolved);
        status.grants.clone_from(&self.grants);
        patch.set_condition(condition::ADMITTED, admitted_condition(&self.warnings));
        self.run = patch.write(self.context).await?;
        Ok(())
    }

    /// Creates everything that gives no permission and starts nothing.
    async fn create_inert(&mut self) -> Result<(), Error> {
        for item in &self.rendered.objects {
            let uid = match (&item.step, &item.object) {
                (CreationStep::Workload, _) => continue,
                (_, Object::RoleBinding(_) | Object::ClusterRoleBinding(_)) => continue,
                (CreationStep::AfterRun, Object::Job(job)) => {
                    objects::create(self.context, &suspend_job(job), &self.run).await?
                }
                (_, object) => objects::create(self.context, object, &self.run).await?,
            };
            set_uid(&mut self.grants, &item.object, uid);
        }
        Ok(())
    }

    /// Fills the Secrets with tokens, which give no permission yet.
    async fn write_tokens(&self, cluster_info: &ClusterInfo) -> Result<(), Error> {
        for pending in &self.rendered.pending_secrets {
            if !matches!(pending.purpose, SecretPurpose::Token { .. }) {
                continue;
            }
            let record = self.grants.iter().find(|grant| grant.kind == "Secret" && grant.name == pending.secret);
            let uid = record
                .and_then(|record| record.uid.as_ref())
                .ok_or_else(|| Error::WithoutUid { kind: "Secret".to_owned(), name: pending.secret.clone() })?;
            inputs::write_token(&self.plan, pending, uid.as_str(), cluster_info, self.context).await?;
        }
        Ok(())
    }

    async fn create_bindings(&mut self) -> Result<(), Error> {
        for item in &self.rendered.objects {
            if matches!(item.object, Object::RoleBinding(_) | Object::ClusterRoleBinding(_)) {
                let uid = objects::create(self.context, &item.object, &self.run).await?;
                set_uid(&mut self.grants, &item.object, uid);
            }
        }
        Ok(())
    }

    /// Records the UIDs of the objects, and that the run has its grants.
    async fn write_granted(&mut self) -> Result<(), Error> {
        let mut patch = StatusPatch::new(&self.run);
        patch.status.grants.clone_from(&self.grants);
        patch.status.granted_at.get_or_insert_with(now);
        patch.set_condition(condition::GRANTED, granted_condition(&self.plan));
        self.run = patch.write(self.context).await?;
        Ok(())
    }

    /// Whether the run was cancelled or deleted in the meantime.
    fn is_unwanted(&self) -> bool {
        let latest = self.context.caches.runs.get(&self.run.reference());
        latest.is_some_and(|latest| {
            latest.metadata.uid.as_deref() == Some(self.run.uid())
                && (latest.spec.cancel || latest.metadata.deletion_timestamp.is_some())
        })
    }
}

/// The condition `Admitted` of a run that may exist.
pub fn admitted_condition(warnings: &[Violation]) -> ConditionValue {
    let listed: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    if listed.is_empty() {
        ConditionValue::yes("Admitted", "no rule or policy denies the run")
    } else {
        ConditionValue::yes("AdmittedWithWarnings", listed.join("\n"))
    }
}

fn granted_condition(plan: &RunPlan) -> ConditionValue {
    let count = plan.identities.len();
    if count == 0 {
        return ConditionValue::yes("NoRights", "no part of the run has permissions at the Kubernetes API");
    }
    let names: Vec<&str> = plan.identities.iter().map(|identity| identity.pack.as_deref().unwrap_or("hooks")).collect();
    ConditionValue::yes("Granted", format!("these parts have permissions at the Kubernetes API: {}", names.join(", ")))
}

/// The objects that are deleted with the run, in the order of their creation. The plan is not among them.
fn grant_records(rendered: &Rendered) -> Vec<GrantRecord> {
    let objects = rendered.objects.iter().map(|item| &item.object).filter(|object| !is_plan(object));
    objects.map(|object| grant_record(object, grant_role(object, rendered))).collect()
}

fn grant_role(object: &Object, rendered: &Rendered) -> GrantRole {
    let is_token = |secret: &PendingSecret| {
        secret.secret == object.name() && matches!(secret.purpose, SecretPurpose::Token { .. })
    };
    match object {
        Object::RoleBinding(_) | Object::ClusterRoleBinding(_) => GrantRole::Binding,
        Object::Secret(_) if rendered.pending_secrets.iter().any(is_token) => GrantRole::Token,
        Object::Job(_) | Object::Sandbox(_) => GrantRole::Workload,
        _ => GrantRole::Other,
    }
}

/// The plan's ConfigMap lives as long as the run itself: it documents what the run could touch.
pub fn is_plan(object: &Object) -> bool {
    let component = object.metadata().labels.as_ref().and_then(|labels| labels.get(sympozium_api::labels::COMPONENT));
    component.is_some_and(|value| value == sympozium_api::labels::component::PLAN)
}

fn grant_record(object: &Object, role: GrantRole) -> GrantRecord {
    let skill = object.metadata().labels.as_ref().and_then(|labels| labels.get(sympozium_api::labels::SKILL));
    GrantRecord {
        kind: object.kind().to_owned(),
        namespace: object.namespace().map(Into::into),
        name: object.name().to_owned(),
        uid: None,
        skill: skill.cloned(),
        role: Some(role),
    }
}

/// Sets the UID of a created object in its record.
fn set_uid(grants: &mut [GrantRecord], object: &Object, uid: String) {
    let is_it = |record: &&mut GrantRecord| record.kind == object.kind() && record.name == object.name();
    if let Some(record) = grants.iter_mut().find(is_it) {
        record.uid = Some(Uid::new(uid));
    }
}

/// The Job of the hooks after the run, suspended until the agent has ended. It is created now, so that a pack that
/// changes meanwhile does not change the hooks.
fn suspend_job(job: &Job) -> Object {
    let mut job = job.clone();
    if let Some(spec) = &mut job.spec {
        spec.suspend = Some(true);
    }
    Object::from(job)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use sympozium_api::names::Digest;
    use sympozium_api::run_plan::{IdentityName, PartName};
    use sympozium_plan::render::RenderedObject;

    use super::*;

    fn named(name: &str) -> ObjectMeta {
        ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
    }

    fn secret(name: &str) -> Object {
        Secret { metadata: named(name), ..Secret::default() }.into()
    }

    #[test]
    fn the_role_of_a_record_is_what_was_rendered_and_not_its_name() {
        let token = SecretPurpose::Token {
            identity: IdentityName("skill-0".to_owned()),
            service_account: "account".to_owned(),
            seconds: 600,
        };
        let input = SecretPurpose::Input { part: PartName("agent".to_owned()) };
        let pending = |secret: &str, purpose| PendingSecret { secret: secret.to_owned(), purpose, keys: Vec::new() };
        let objects = [
            (ServiceAccount { metadata: named("account"), ..Default::default() }.into(), GrantRole::Other),
            (secret("plain"), GrantRole::Token),
            (secret("token"), GrantRole::Other),
            (Role { metadata: named("role"), ..Default::default() }.into(), GrantRole::Other),
            (RoleBinding { metadata: named("role"), ..Default::default() }.into(), GrantRole::Binding),
            (ClusterRole { metadata: named("role"), ..Default::default() }.into(), GrantRole::Other),
            (ClusterRoleBinding { metadata: named("role"), ..Default::default() }.into(), GrantRole::Binding),
            (Job { metadata: named("job"), ..Default::default() }.into(), GrantRole::Workload),
        ];
        let (objects, roles): (Vec<Object>, Vec<GrantRole>) = objects.into_iter().unzip();
        let objects = objects.into_iter().map(|object| RenderedObject { step: CreationStep::Grants, object });
        let rendered = Rendered {
            digest: Digest::new(""),
            objects: objects.collect(),
            pending_secrets: vec![pending("plain", token), pending("token", input)],
        };
        let records: Vec<GrantRole> = grant_records(&rendered).iter().map(GrantRecord::role).collect();
        assert_eq!(records, roles);
    }
}
