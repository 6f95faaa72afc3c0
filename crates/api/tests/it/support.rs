//! Helpers to read fixtures and compare values.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Value, json};
use sympozium_api::crds;
use sympozium_testkit::objects::merge;

/// The kinds, in the order of [`crds::all`].
pub const KINDS: [&str; 9] = [
    "Agent",
    "SympoziumInstance",
    "AgentRun",
    "SkillPack",
    "SympoziumPolicy",
    "SympoziumSchedule",
    "Model",
    "ToolApproval",
    "RunRecord",
];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents of a directory, by file name, in order.
pub fn documents(directory: &str, ending: &str) -> Vec<(String, Value)> {
    let mut paths: Vec<_> = fs::read_dir(root().join(directory))
        .expect("the directory is there")
        .map(|entry| entry.expect("it can be listed").path())
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path.file_name().expect("a file").to_string_lossy().into();
            (name, read(&path))
        })
        .collect()
}

pub fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("the file can be read");
    serde_saphyr::from_str(&text).expect("it is YAML")
}

/// Reads an object as the type of its kind and serialises it again; an error if it cannot be read.
pub fn through_types(object: &Value) -> Result<Value, String> {
    fn through<T: serde::de::DeserializeOwned + serde::Serialize + PartialEq + std::fmt::Debug>(
        object: &Value,
    ) -> Result<Value, String> {
        let typed: T = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
        let written = serde_json::to_value(&typed).map_err(|error| error.to_string())?;
        let again: T = serde_json::from_value(written.clone()).map_err(|error| error.to_string())?;
        assert_eq!(typed, again, "reading what was written gives something else");
        Ok(written)
    }
    match object["kind"].as_str() {
        Some("Agent") => through::<sympozium_api::Agent>(object),
        Some("SympoziumInstance") => through::<sympozium_api::SympoziumInstance>(object),
        Some("AgentRun") => through::<sympozium_api::AgentRun>(object),
        Some("SkillPack") => through::<sympozium_api::SkillPack>(object),
        Some("SympoziumPolicy") => through::<sympozium_api::SympoziumPolicy>(object),
        Some("SympoziumSchedule") => through::<sympozium_api::SympoziumSchedule>(object),
        Some("Model") => through::<sympozium_api::Model>(object),
        Some("ToolApproval") => through::<sympozium_api::ToolApproval>(object),
        Some("RunRecord") => through::<sympozium_api::RunRecord>(object),
        other => Err(format!("no kind of ours: {other:?}")),
    }
}

/// The schema of a kind, as it is installed.
pub fn schema(kind: &str) -> Value {
    // Generating them takes a while, and they are used often.
    static SCHEMAS: LazyLock<HashMap<String, Value>> = LazyLock::new(|| {
        crds::all()
            .into_iter()
            .map(|definition| {
                let value = serde_json::to_value(&definition).expect("it can be written");
                let schema = &value["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
                (definition.spec.names.kind, schema.clone())
            })
            .collect()
    });
    SCHEMAS.get(kind).expect("a kind of ours").clone()
}

/// An object of a kind with only a name and `rest`.
pub fn object(kind: &str, rest: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "sympozium.ai/v1alpha1",
        "kind": kind,
        "metadata": { "name": "n" },
    });
    merge(&mut object, rest);
    object
}
