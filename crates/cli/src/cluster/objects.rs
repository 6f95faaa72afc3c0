//! The objects of files that are created in a cluster: created if they do not exist, and never changed.

use anyhow::anyhow;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use sympozium_api::labels::field_manager;
use sympozium_api::names::{NamespaceName, ObjectName};
use sympozium_api::text::{printable, quote};
use sympozium_api::{
    Agent, AgentSpec, Model, ModelSpec, SkillPack, SkillPackSpec, SympoziumInstance, SympoziumPolicy,
    SympoziumPolicySpec,
};

use super::Connection;
use super::call_error::Role;
use sympozium_manifests::kinds::Kind;
use sympozium_runs::HintedError;

/// The kinds of objects that a run may need and that files may contain, in the order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileObjectKind {
    ConfigMap,
    Secret,
    Model,
    Policy,
    Pack,
    Agent,
    Instance,
}

/// What creating objects of a kind needs.
struct KindRow {
    resource: ApiResource,
    /// A role that may create it.
    creator: Role,
    /// Whether an object of the cluster equals that of the files, apart from the defaults that the API server sets.
    is_same: fn(&Value, &Value) -> bool,
}

/// An object of the files.
#[derive(Debug, Clone, PartialEq)]
pub struct FileObject {
    pub kind: FileObjectKind,
    pub namespace: String,
    pub name: String,
    /// The complete manifest.
    pub value: Value,
}

impl FileObjectKind {
    const ALL: [Self; 7] =
        [Self::ConfigMap, Self::Secret, Self::Model, Self::Policy, Self::Pack, Self::Agent, Self::Instance];

    fn row(self) -> KindRow {
        fn row<K: Resource<DynamicType = ()>>(creator: Role, is_same: fn(&Value, &Value) -> bool) -> KindRow {
            KindRow { resource: ApiResource::erase::<K>(&()), creator, is_same }
        }
        match self {
            Self::ConfigMap => row::<ConfigMap>(Role::Edit, has_same_data),
            Self::Secret => row::<Secret>(Role::Edit, |wanted, found| secret_content(wanted) == secret_content(found)),
            Self::Model => row::<Model>(Role::Author, has_same_spec::<ModelSpec>),
            Self::Policy => row::<SympoziumPolicy>(Role::ClusterAdmin, has_same_spec::<SympoziumPolicySpec>),
            Self::Pack => row::<SkillPack>(Role::Author, has_same_spec::<SkillPackSpec>),
            Self::Agent => row::<Agent>(Role::Author, has_same_spec::<AgentSpec>),
            Self::Instance => row::<SympoziumInstance>(Role::Author, has_same_spec::<AgentSpec>),
        }
    }

    /// From one of our kinds, if a run may need it.
    pub fn from_kind(kind: Kind) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.resource().kind == kind.name())
    }

    /// From a kind of Kubernetes itself, if a run may need it.
    pub fn from_core_kind(api_version: Option<&str>, kind: &str) -> Option<Self> {
        match (api_version, kind) {
            (Some("v1"), "ConfigMap") => Some(Self::ConfigMap),
            (Some("v1"), "Secret") => Some(Self::Secret),
            _ => None,
        }
    }

    fn resource(self) -> ApiResource {
        self.row().resource
    }
}

impl FileObject {
    fn title(&self) -> String {
        format!("{} {}/{}", self.kind.resource().kind, printable(&self.namespace), printable(&self.name))
    }

    fn api(&self, connection: &Connection) -> Api<DynamicObject> {
        let client = connection.client.clone();
        Api::namespaced_with(client, &self.namespace, &self.kind.resource())
    }
}

/// Whether these are valid names of an object and of its namespace. Invalid ones are not sent: they would become part
/// of the request's path.
pub fn are_valid_names(namespace: &str, name: &str) -> bool {
    NamespaceName::from(namespace).check().is_ok() && ObjectName::from(name).check().is_ok()
}

fn check_names(wanted: &[FileObject]) -> Result<(), HintedError> {
    match wanted.iter().find(|it| !are_valid_names(&it.namespace, &it.name)) {
        None => Ok(()),
        Some(object) => Err(HintedError::new(
            anyhow!(
                "the name of {} {} in namespace {} is invalid",
                object.kind.resource().kind,
                quote(&object.name),
                quote(&object.namespace)
            ),
            "use lower-case letters, digits, `-` and `.`; names of namespaces cannot have a `.`",
        )),
    }
}

/// The objects that do not exist yet. Nothing is created.
///
/// # Errors
///
/// When an object exists and differs from that of the files, or a name is invalid.
pub async fn find_missing<'w>(
    connection: &Connection,
    wanted: &'w [FileObject],
) -> Result<Vec<&'w FileObject>, HintedError> {
    check_names(wanted)?;
    let mut missing = Vec::new();
    let mut different = Vec::new();
    for object in wanted {
        let api = object.api(connection);
        let title = object.title();
        let found = match connection.try_call(api.get_opt(&object.name)).await {
            Ok(found) => found,
            Err(error) if error.is_forbidden() && object.kind == FileObjectKind::Secret => {
                // Few users may read Secrets. Creating it shows whether it exists.
                missing.push(object);
                continue;
            }
            Err(error) => {
                let connection = connection.in_namespace(&object.namespace);
                let operation = format!("read {title}");
                return Err(connection.call_context(&operation, Role::Viewer).as_failure(&error));
            }
        };
        match found.map(|it| serde_json::to_value(it).unwrap_or_default()) {
            None => missing.push(object),
            Some(found) if is_same(object.kind, &object.value, &found) => {}
            Some(_) => different.push(title),
        }
    }
    if different.is_empty() {
        return Ok(missing);
    }
    Err(HintedError::new(
        anyhow!("{} in the cluster differs from the files; nothing was created", different.join(", ")),
        "leave the file out to use the object of the cluster, or update the object: kubectl apply -f FILE",
    ))
}

/// Creates objects, or checks with a dry run that they could be created.
///
/// # Errors
///
/// When the API server rejects one.
pub async fn create(connection: &Connection, wanted: &[&FileObject], mode: CreateMode) -> Result<(), HintedError> {
    for object in wanted {
        let title = object.title();
        let mut value = object.value.clone();
        value["metadata"]["namespace"] = json!(object.namespace);
        let dynamic: DynamicObject = serde_json::from_value(value).map_err(|error| {
            HintedError::new(
                anyhow::Error::from(error).context(format!("{title} is not a valid object")),
                "`sympozium validate` checks manifests",
            )
        })?;
        let api = object.api(connection);
        let connection = connection.in_namespace(&object.namespace);
        let parameters = post_params(mode);
        let created = connection.try_call(api.create(&parameters, &dynamic));
        match created.await {
            Ok(_) if mode == CreateMode::Persist => {
                crate::output::print_stderr(&format!("created {title}"));
            }
            Ok(_) => {}
            Err(error) if error.status().is_some_and(|it| it.is_already_exists()) => {
                return Err(HintedError::new(
                    anyhow!("{title} exists already, and you have no permission to compare it with the files"),
                    "leave it out of the files, or ask for permission to read it",
                ));
            }
            Err(error) => {
                let operation = format!("create {title}");
                return Err(connection.call_context(&operation, object.kind.row().creator).as_failure(&error));
            }
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// A dry run: the API server validates the object and stores nothing.
    DryRun,
    /// The object is stored.
    Persist,
}

/// The parameters of every create request.
pub fn post_params(how: CreateMode) -> PostParams {
    PostParams { dry_run: how == CreateMode::DryRun, field_manager: Some(field_manager::CLI.to_owned()) }
}

/// Whether an object of the cluster equals that of the files, apart from the defaults that the API server sets.
pub fn is_same(kind: FileObjectKind, wanted: &Value, found: &Value) -> bool {
    (kind.row().is_same)(wanted, found)
}

fn has_same_data(wanted: &Value, found: &Value) -> bool {
    ["data", "binaryData"].iter().all(|field| entries(&wanted[*field]) == entries(&found[*field]))
}

/// Compares after a round trip through the type, so that an absent field equals its default.
fn has_same_spec<S: DeserializeOwned + Serialize>(wanted: &Value, found: &Value) -> bool {
    let complete = |object: &Value| {
        // An object without a spec has an empty one.
        let spec = Some(&object["spec"]).filter(|spec| !spec.is_null()).cloned().unwrap_or_else(|| json!({}));
        let read: S = serde_json::from_value(spec).ok()?;
        serde_json::to_value(read).ok()
    };
    complete(wanted).is_some_and(|wanted| complete(found) == Some(wanted))
}

fn entries(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// The data of a Secret, and its type.
fn secret_content(value: &Value) -> (Map<String, Value>, String) {
    let mut data = entries(&value["data"]);
    for (name, text) in entries(&value["stringData"]) {
        let encoded = BASE64.encode(text.as_str().unwrap_or_default());
        data.insert(name, json!(encoded));
    }
    let kind = value["type"].as_str().filter(|it| !it.is_empty());
    (data, kind.unwrap_or("Opaque").to_owned())
}

/// The warning about an object of the files that is not created.
pub fn ignored_warning(kind: &str, name: &str) -> String {
    format!("{} {} of the files is not created; create it with `kubectl apply`", printable(kind), quote(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_of_the_api_server_are_not_a_difference() {
        let wanted = json!({"spec": {"agents": {"default": {"model": "m"}}, "skills": [{"skillPackRef": "a"}]}});
        let mut found: Value =
            serde_json::to_value(serde_json::from_value::<AgentSpec>(wanted["spec"].clone()).unwrap()).unwrap();
        assert!(is_same(FileObjectKind::Agent, &wanted, &json!({"spec": found, "status": {"a": 1}})));
        found["skills"] = json!([{"skillPackRef": "a"}, {"skillPackRef": "b"}]);
        assert!(!is_same(FileObjectKind::Agent, &wanted, &json!({"spec": found})));
        // What cannot be parsed is not equal.
        assert!(!is_same(FileObjectKind::Agent, &wanted, &json!({"spec": {"skills": 7}})));
    }

    #[test]
    fn objects_with_invalid_names_are_not_sent() {
        let wanted = |namespace: &str, name: &str| FileObject {
            kind: FileObjectKind::Secret,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            value: json!({}),
        };
        assert!(check_names(&[wanted("team", "key.pem")]).is_ok());
        for (namespace, name) in [
            ("../../kube-system", "key"),
            ("team", "key/../../x"),
            ("team", "key?x=1"),
            ("a.b", "key"),
            ("", "key"),
            ("team", ""),
        ] {
            let all = [wanted("team", "fine"), wanted(namespace, name)];
            assert!(check_names(&all).is_err(), "{namespace} {name}");
        }
        let failure = check_names(&[wanted("team\u{1b}[2J", "key")]).unwrap_err();
        assert_eq!(
            crate::failure::Failure::from(failure).text(),
            "error: the name of Secret `key` in namespace `team\\u{1b}[2J` is invalid\n\
             hint: use lower-case letters, digits, `-` and `.`; names of namespaces cannot have a `.`\n"
        );
    }

    #[test]
    fn secrets_are_compared_by_data_and_type() {
        let wanted = json!({"stringData": {"key": "value"}});
        let found = json!({"data": {"key": "dmFsdWU="}, "type": "Opaque"});
        assert!(is_same(FileObjectKind::Secret, &wanted, &found));
        let more = json!({"data": {"key": "dmFsdWU=", "b": ""}, "type": "Opaque"});
        assert!(!is_same(FileObjectKind::Secret, &wanted, &more));
        let other = json!({"data": {"key": "dmFsdWU="}, "type": "kubernetes.io/tls"});
        assert!(!is_same(FileObjectKind::Secret, &wanted, &other));
        let map = json!({"data": {"a": "1"}});
        assert!(is_same(FileObjectKind::ConfigMap, &map, &json!({"data": {"a": "1"}, "binaryData": {}})));
        assert!(!is_same(FileObjectKind::ConfigMap, &map, &json!({"data": {"a": "1", "b": "2"}})));
    }
}
