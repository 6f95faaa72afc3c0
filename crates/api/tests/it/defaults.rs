//! Defaults: the same in the schema, after deserialisation, and in Rust; and those that the documentation promises.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sympozium_api::agent::{Memory, Observability, RateLimit, Subagents, WebEndpoint};
use sympozium_api::lifecycle::LifecycleHooks;
use sympozium_api::model::{Inference, ModelResources, ModelSource, ModelStorage, Placement};
use sympozium_api::network::NetworkPolicy;
use sympozium_api::policy::{
    AgentSandboxPolicy, ApprovalPolicy, HostAccessPolicy, PackPolicy, RbacPolicy, SandboxPolicy, SubagentPolicy,
    ToolGating,
};
use sympozium_api::sandbox::WarmPool;
use sympozium_api::skill_pack::HostAccess;
use sympozium_api::{AgentRunSpec, SympoziumPolicySpec};

use crate::support::{KINDS, schema};

/// An empty object and `Default` are the same.
#[test]
fn rust_has_the_defaults_of_the_wire() {
    fn check<T: Default + DeserializeOwned + PartialEq + std::fmt::Debug>() {
        let read: T = serde_json::from_value(json!({})).expect("every field is optional");
        assert_eq!(read, T::default());
    }
    check::<AgentRunSpec>();
    check::<SympoziumPolicySpec>();
    check::<Memory>();
    check::<Observability>();
    check::<RateLimit>();
    check::<Subagents>();
    check::<WebEndpoint>();
    check::<LifecycleHooks>();
    check::<Inference>();
    check::<ModelResources>();
    check::<ModelSource>();
    check::<ModelStorage>();
    check::<Placement>();
    check::<NetworkPolicy>();
    check::<AgentSandboxPolicy>();
    check::<ApprovalPolicy>();
    check::<HostAccessPolicy>();
    check::<PackPolicy>();
    check::<RbacPolicy>();
    check::<SandboxPolicy>();
    check::<SubagentPolicy>();
    check::<ToolGating>();
    check::<WarmPool>();
    check::<HostAccess>();
}

/// All defaults of all kinds, by path. A change of one changes the meaning of users' manifests.
#[test]
fn the_schemas_have_these_defaults() {
    let mut found = Vec::new();
    for kind in KINDS {
        if kind != "SympoziumInstance" {
            defaults_of(kind, &schema(kind)["properties"]["spec"], &mut found);
        }
    }
    insta::assert_snapshot!(found.join("\n"));
}

fn defaults_of(path: &str, schema: &Value, found: &mut Vec<String>) {
    if let Some(default) = schema.get("default") {
        found.push(format!("{path} = {default}"));
    }
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        defaults_of(&format!("{path}.{key}"), property, found);
    }
    if schema["items"].is_object() {
        defaults_of(&format!("{path}[]"), &schema["items"], found);
    }
}
