//! ConfigMaps and Secrets: those of the files and of this machine, and what the plan needs of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use sympozium_api::RunPlan;
use sympozium_api::environment::KeyReference;
use sympozium_api::run_plan::{Role, VolumeSource};
use sympozium_manifests::tree::{Node, Value as NodeValue};
use sympozium_manifests::validate::{Object, ObjectKind};
use zeroize::Zeroizing;

use crate::failure::Failure;
use sympozium_api::text::quote;
use sympozium_local::secrets::{Secret, SecretStore};
use sympozium_local::state::StateDirectory;

type Entries = BTreeMap<String, Zeroizing<Vec<u8>>>;
/// Objects by name; or why one cannot be used.
type ByName = BTreeMap<String, Result<Secret, String>>;

/// The ConfigMaps and Secrets of the files, in one namespace.
#[derive(Debug, Default)]
pub struct DataObjects {
    config_maps: ByName,
    secrets: ByName,
}

impl DataObjects {
    pub fn from_objects(objects: &[Object], namespace: &str) -> Self {
        let mut data = Self::default();
        for object in objects {
            let ObjectKind::Other(kind) = &object.kind else {
                continue;
            };
            let is_core = object.node.get("apiVersion").and_then(Node::as_text) == Some("v1");
            let named = match kind.as_str() {
                "ConfigMap" if is_core => &mut data.config_maps,
                "Secret" if is_core => &mut data.secrets,
                _ => continue,
            };
            if object.name.namespace == namespace {
                let read = read_entries(&object.node, kind == "Secret");
                let read = read.map_err(|error| format!("{} {}: {error:#}", kind, quote(&object.name.name)));
                // Of two objects with one name the first counts, as everywhere.
                named.entry(object.name.name.clone()).or_insert(read);
            }
        }
        data
    }

    /// Whether the files have a Secret of this name.
    pub fn has_secret(objects: &[Object], namespace: &str, name: &str) -> bool {
        objects.iter().any(|it| {
            it.kind == ObjectKind::Other("Secret".to_owned()) && it.name.namespace == namespace && it.name.name == name
        })
    }

    /// A Secret of the files, or else of this machine.
    pub fn find_secret(&self, state: &StateDirectory, namespace: &str, name: &str) -> anyhow::Result<Option<Secret>> {
        match self.secrets.get(name) {
            Some(Ok(secret)) => Ok(Some(secret.clone())),
            Some(Err(error)) => Err(anyhow!("{error}")),
            None => SecretStore::open(state, namespace)?.get(name),
        }
    }

    /// Finds what the plan names of both kinds. The error lists everything that is missing.
    pub fn resolve_for_plan(&self, plan: &RunPlan, state: &StateDirectory) -> Result<PlanData, Failure> {
        let needs = Requirements::from_plan(plan);
        let namespace = plan.run.namespace.as_str();
        let mut found = PlanData::default();
        let mut missing = Vec::new();
        let mut hint = None;
        for (name, need) in &needs.config_maps {
            let data = match self.config_maps.get(name) {
                Some(Ok(data)) => Some(data),
                Some(Err(error)) => return Err(unusable(anyhow!("{error}"))),
                None => None,
            };
            missing.extend(need.describe_missing("ConfigMap", name, data));
            if let Some(data) = data {
                let plain = data.0.iter().map(|(key, value)| (key.clone(), value.to_vec()));
                found.config_maps.insert(name.clone(), plain.collect());
            }
        }
        if !missing.is_empty() {
            hint =
                Some("name the file with it; a skill's or a model's ConfigMap is a manifest like any other".to_owned());
        }
        for (name, need) in &needs.secrets {
            let data = self.find_secret(state, namespace, name).map_err(unusable)?;
            let without = need.describe_missing("Secret", name, data.as_ref());
            if let (Some(_), None) = (&without, &hint) {
                let key = need.first_missing_key(data.as_ref()).unwrap_or("KEY");
                hint = Some(secret_hint(namespace, name, key));
            }
            missing.extend(without);
            found.secrets.extend(data.map(|data| (name.clone(), data)));
        }
        match missing.is_empty() {
            true => Ok(found),
            false => Err(Failure::new(anyhow!("{}", missing.join("; ")), hint.unwrap_or_default())),
        }
    }
}

/// The command that sets a Secret.
fn secret_hint(namespace: &str, name: &str, key: &str) -> String {
    match namespace {
        "default" => format!("sympozium secret set {name} {key}"),
        _ => format!("sympozium secret set -n {namespace} {name} {key}"),
    }
}

fn unusable(error: anyhow::Error) -> Failure {
    Failure::new(error, "correct it, or remove it and set it again")
}

/// The ConfigMaps and Secrets that a plan needs.
#[derive(Debug, Default)]
pub struct PlanData {
    pub config_maps: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    pub secrets: BTreeMap<String, Secret>,
}

fn read_entries(node: &Node, is_secret: bool) -> anyhow::Result<Secret> {
    let mut all = Entries::new();
    let (plain, encoded): (&[&str], &[&str]) = match is_secret {
        true => (&["stringData"], &["data"]),
        false => (&["data"], &["binaryData"]),
    };
    let fields = encoded.iter().map(|it| (*it, true));
    for (field, is_encoded) in fields.chain(plain.iter().map(|it| (*it, false))) {
        let entries = match node.get(field).map(|it| &it.value) {
            None | Some(NodeValue::Null) => continue,
            Some(NodeValue::Map(entries)) => entries,
            Some(_) => bail!("`{field}` must be an object"),
        };
        for entry in entries {
            let key = quote(&entry.key);
            let Some(text) = entry.node.as_text() else {
                bail!("{key} of `{field}` must be a string");
            };
            let value = match is_encoded {
                true => {
                    let plain: String = text.chars().filter(|it| !it.is_ascii_whitespace()).collect();
                    let decoded = BASE64.decode(plain);
                    decoded.map_err(|_| anyhow!("{key} of `{field}` is not Base64"))?
                }
                false => text.as_bytes().to_vec(),
            };
            all.insert(entry.key.clone(), Zeroizing::new(value));
        }
    }
    let entries = Secret(all);
    entries.check().context("it cannot be in a cluster either")?;
    Ok(entries)
}

/// The ConfigMaps and Secrets that a plan names.
#[derive(Debug, Default)]
struct Requirements {
    config_maps: BTreeMap<String, Requirement>,
    secrets: BTreeMap<String, Requirement>,
}

/// What is needed of one object.
#[derive(Debug, Default)]
struct Requirement {
    /// Whether the object must exist.
    required: bool,
    /// Keys that must exist.
    keys: BTreeSet<String>,
}

impl Requirement {
    /// The message if it is missing.
    fn describe_missing(&self, kind: &str, name: &str, data: Option<&Secret>) -> Option<String> {
        match (data, self.first_missing_key(data)) {
            (None, _) if self.required => Some(format!("there is no {kind} {}", quote(name))),
            (Some(_), Some(key)) => Some(format!("{kind} {} has no key {}", quote(name), quote(key))),
            _ => None,
        }
    }

    fn first_missing_key<'n>(&'n self, data: Option<&Secret>) -> Option<&'n str> {
        let has = |key: &&String| data.is_some_and(|it| it.0.contains_key(*key));
        self.keys.iter().find(|key| !has(key)).map(String::as_str)
    }
}

impl Requirements {
    fn from_plan(plan: &RunPlan) -> Self {
        let mut needs = Self::default();
        for volume in &plan.volumes {
            match &volume.source {
                VolumeSource::Secret { secret } => {
                    requirement_mut(&mut needs.secrets, secret.as_str()).required = true;
                }
                VolumeSource::ConfigMap { config_map } => {
                    requirement_mut(&mut needs.config_maps, config_map.as_str()).required = true;
                }
                VolumeSource::Declared { volume } => {
                    let source = |kind: &str| volume.source.get(kind);
                    add_declared(&mut needs.config_maps, source("configMap"), "name");
                    add_declared(&mut needs.secrets, source("secret"), "secretName");
                }
                _ => {}
            }
        }
        // The bridge's variables hold the model key, which has more sources.
        let parts = plan.parts.iter().filter(|it| it.role != Role::Bridge);
        let sources = parts.flat_map(|it| &it.env).filter_map(|it| it.value_from.as_ref());
        for source in sources {
            add_key(&mut needs.config_maps, source.config_map_key_ref.as_ref());
            add_key(&mut needs.secrets, source.secret_key_ref.as_ref());
        }
        needs
    }
}

fn requirement_mut<'n>(needs: &'n mut BTreeMap<String, Requirement>, name: &str) -> &'n mut Requirement {
    needs.entry(name.to_owned()).or_default()
}

fn add_declared(needs: &mut BTreeMap<String, Requirement>, source: Option<&Value>, field: &str) {
    let Some(name) = source.and_then(|it| it.get(field)?.as_str()) else {
        return;
    };
    let need = requirement_mut(needs, name);
    let source = source.unwrap_or(&Value::Null);
    if source.get("optional") == Some(&Value::Bool(true)) {
        return;
    }
    need.required = true;
    let items = source.get("items").and_then(Value::as_array);
    let keys = items.into_iter().flatten().filter_map(|it| it.get("key")?.as_str());
    need.keys.extend(keys.map(str::to_owned));
}

fn add_key(needs: &mut BTreeMap<String, Requirement>, reference: Option<&KeyReference>) {
    let Some(reference) = reference else {
        return;
    };
    let need = requirement_mut(needs, reference.name.as_str());
    if reference.optional != Some(true) {
        need.required = true;
        need.keys.insert(reference.key.clone());
    }
}
