//! The only module that writes to runs: the controller's own fields of their status, and its finalizer.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Map, Value, json};
use sympozium_api::AgentRun;
use sympozium_api::labels::{field_manager, finalizer};
use sympozium_api::limits;

use super::error::{Error, is_not_found};
use super::retry::{retry, with_timeout};
use crate::context::Context;

pub use sympozium_api::agent_run::condition;

/// Limit for a condition's message, in characters; the API server rejects longer ones.
const MAX_MESSAGE: usize = 32_768;

/// The current time in whole seconds, as the API server stores it: so what is read equals what was written.
pub fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

pub fn elapsed_since(time: &Time) -> Duration {
    let elapsed = Timestamp::now().duration_since(time.0);
    Duration::try_from(elapsed).unwrap_or_default()
}

/// The value of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionValue {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One CamelCase word.
    pub reason: String,
    /// One sentence.
    pub message: String,
}

impl ConditionValue {
    /// Status `True`.
    pub fn yes(reason: &str, message: impl Into<String>) -> Self {
        Self::new("True", reason, message)
    }

    /// Status `False`.
    pub fn no(reason: &str, message: impl Into<String>) -> Self {
        Self::new("False", reason, message)
    }

    /// Status `Unknown`.
    pub fn unknown(reason: &str, message: impl Into<String>) -> Self {
        Self::new("Unknown", reason, message)
    }

    fn new(status: &'static str, reason: &str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Self { status, reason: reason.to_owned(), message }
    }
}

/// The merge patch that replaces `old` by `new`. A merge patch merges objects, so a key that is missing in `new` has to
/// be null (RFC 7396): a list that becomes empty, and is omitted for that, would otherwise stay for ever.
fn merge_patch(old: &Value, new: Value) -> Value {
    match (old, new) {
        (Value::Object(old), Value::Object(mut new)) => {
            for (key, was) in old {
                let value = match new.remove(key) {
                    Some(value) => merge_patch(was, value),
                    None => Value::Null,
                };
                new.insert(key.clone(), value);
            }
            Value::Object(new)
        }
        (_, new) => new,
    }
}

/// Changes to a run's status that are written in one request.
#[derive(Debug)]
pub struct StatusPatch<'r> {
    run: &'r Arc<AgentRun>,
    fields: Map<String, Value>,
    conditions: Option<Vec<Condition>>,
}

impl<'r> StatusPatch<'r> {
    pub fn new(run: &'r Arc<AgentRun>) -> Self {
        Self { run, fields: Map::new(), conditions: None }
    }

    /// Sets a field, by its JSON name, if its value differs.
    pub fn set(mut self, field: &'static str, value: impl serde::Serialize) -> Result<Self, Error> {
        let value = serde_json::to_value(value)?;
        let status = serde_json::to_value(self.run.status.as_ref())?;
        let known = status.get(field).unwrap_or(&Value::Null);
        if known != &value {
            self.fields.insert(field.to_owned(), merge_patch(known, value));
        }
        Ok(self)
    }

    /// Sets the error of the run, truncated to what the schema allows.
    pub fn set_error(self, why: Option<&str>) -> Result<Self, Error> {
        let cut = |why: &str| why[..why.floor_char_boundary(limits::VALUE)].to_owned();
        self.set("error", why.map(cut))
    }

    /// Sets a condition, if its value differs.
    pub fn set_condition(mut self, type_: &'static str, says: ConditionValue) -> Self {
        let known = self.run.status.as_ref().map(|it| it.conditions.clone());
        let conditions = self.conditions.take().or(known).unwrap_or_default();
        self.conditions = Some(with_condition(conditions, type_, says, self.run.metadata.generation));
        self
    }

    /// Writes the changes, if there are any. Returns the run as it is afterwards.
    ///
    /// # Errors
    ///
    /// When the API server rejects the request.
    pub async fn write(self, context: &Context) -> Result<Arc<AgentRun>, Error> {
        let Self { run, mut fields, conditions } = self;
        let known = run.status.as_ref().map(|it| &it.conditions);
        if let Some(conditions) = conditions
            && known != Some(&conditions)
        {
            fields.insert("conditions".to_owned(), serde_json::to_value(conditions)?);
        }
        if fields.is_empty() {
            return Ok(Arc::clone(run));
        }
        if run.status.as_ref().and_then(|it| it.observed_generation) != run.metadata.generation {
            fields.insert("observedGeneration".to_owned(), json!(run.metadata.generation));
        }
        let name = run.name_any();
        // With the UID: a later run of the same name is a different run.
        let patch = json!({ "metadata": { "uid": run.uid() }, "status": fields });
        context.metrics.count_write("AgentRun", "status");
        let (api, parameters, patch) = (api(run, context), patch_params(), Patch::Merge(&patch));
        let written = retry(|| api.patch_status(&name, &parameters, &patch)).await;
        let written = written.map_err(Error::api("write the status of", "AgentRun", name))?;
        Ok(context.own_writes.remember(written))
    }
}

/// Sets a condition in a list. The transition time changes only with the status.
fn with_condition(
    mut conditions: Vec<Condition>,
    type_: &str,
    says: ConditionValue,
    generation: Option<i64>,
) -> Vec<Condition> {
    let known = conditions.iter().position(|it| it.type_ == type_);
    let since = match known {
        Some(place) if conditions[place].status == says.status => conditions[place].last_transition_time.clone(),
        _ => now(),
    };
    let condition = Condition {
        type_: type_.to_owned(),
        status: says.status.to_owned(),
        reason: says.reason,
        message: says.message,
        last_transition_time: since,
        observed_generation: generation,
    };
    match known {
        Some(place) => conditions[place] = condition,
        None => conditions.push(condition),
    }
    conditions
}

pub fn condition_is_true(run: &AgentRun, type_: &str) -> bool {
    let conditions = run.status.iter().flat_map(|it| &it.conditions);
    conditions.filter(|it| it.type_ == type_).any(|it| it.status == "True")
}

/// Adds our finalizer, so that the run cannot be deleted before it is torn down.
///
/// # Errors
///
/// When the API server rejects the request.
pub async fn add_finalizer(run: Arc<AgentRun>, context: &Context) -> Result<Arc<AgentRun>, Error> {
    if run.finalizers().iter().any(|it| it == finalizer::RUN) {
        return Ok(run);
    }
    let mut finalizers = run.finalizers().to_vec();
    finalizers.push(finalizer::RUN.to_owned());
    write_finalizers(&run, finalizers, context).await
}

/// Removes our finalizer.
///
/// # Errors
///
/// When the API server rejects the request.
pub async fn remove_finalizer(run: &Arc<AgentRun>, context: &Context) -> Result<Arc<AgentRun>, Error> {
    if !run.finalizers().iter().any(|it| it == finalizer::RUN) {
        return Ok(Arc::clone(run));
    }
    let others = run.finalizers().iter().filter(|it| *it != finalizer::RUN);
    match write_finalizers(run, others.cloned().collect(), context).await {
        // The run was deleted with its last finalizer.
        Err(Error::Api { error, .. }) if is_not_found(&error) => Ok(Arc::clone(run)),
        written => written,
    }
}

/// With the resource version: a concurrent change of the list by another client must not be overwritten.
async fn write_finalizers(
    run: &Arc<AgentRun>,
    finalizers: Vec<String>,
    context: &Context,
) -> Result<Arc<AgentRun>, Error> {
    let name = run.name_any();
    let patch = json!({ "metadata": {
        "uid": run.uid(),
        "resourceVersion": run.resource_version(),
        "finalizers": finalizers,
    } });
    context.metrics.count_write("AgentRun", "patch");
    let (api, parameters, patch) = (api(run, context), patch_params(), Patch::Merge(&patch));
    // Once: a retry would conflict with the version that the first attempt created.
    let written = with_timeout(api.patch(&name, &parameters, &patch)).await;
    let written = written.map_err(Error::api("write the finalizers of", "AgentRun", name))?;
    Ok(context.own_writes.remember(written))
}

fn api(run: &AgentRun, context: &Context) -> Api<AgentRun> {
    Api::namespaced(context.client.clone(), &run.namespace().unwrap_or_default())
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(field_manager::CONTROLLER.to_owned()), ..PatchParams::default() }
}

/// The run as the API server has it now; `None` when it is gone.
///
/// # Errors
///
/// When the API server does not answer.
pub async fn refetch(run: &AgentRun, context: &Context) -> Result<Option<Arc<AgentRun>>, Error> {
    let name = run.name_any();
    let api = api(run, context);
    let found = retry(|| api.get_opt(&name)).await;
    let found = found.map_err(Error::api("read", "AgentRun", name))?;
    Ok(found.filter(|it| it.uid() == run.uid()).map(|it| context.own_writes.remember(it)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_any_more_is_taken_away_by_the_patch() {
        let remaining = json!({"checkedAt": "1", "remaining": [{"kind": "PersistentVolumeClaim"}]});
        assert_eq!(merge_patch(&remaining, json!({"checkedAt": "2"})), json!({"checkedAt": "2", "remaining": null}));
        assert_eq!(
            merge_patch(&json!({"a": {"b": 1, "c": 2}}), json!({"a": {"c": 3}, "d": []})),
            json!({"a": {"b": null, "c": 3}, "d": []})
        );
        // Lists and values are replaced as a whole.
        assert_eq!(merge_patch(&json!([{"a": 1}]), json!([])), json!([]));
        assert_eq!(merge_patch(&Value::Null, json!({"a": 1})), json!({"a": 1}));
    }
}
