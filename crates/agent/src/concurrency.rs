//! Decides which calls of one response may run concurrently: those that cannot observe each other's effects.
//!
//! Reads are independent of reads. Packs have sidecars of their own, so calls of different packs are concurrent; that
//! they share `/workspace` is theirs to handle, as with two terminals. Everything else keeps the model's order.

use serde_json::{Map, Value};
use sympozium_api::builtin_tool::{
    EDIT_FILE, EXECUTE_COMMAND, FETCH_URL, LIST_DIRECTORY, LOAD_SKILL, READ_FILE, WRITE_FILE,
};
use sympozium_api::run_plan::OfferedTool;

use crate::model::CallArguments;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effects {
    /// The call is rejected before it reaches anything.
    NoEffect,
    ReadsFiles,
    ReadsRemote,
    WritesFiles,
    /// Runs in the sidecar of this pack, and may change files.
    Sidecar(String),
    Unknown,
}

impl Effects {
    pub fn of_call(name: &str, tool: Option<&OfferedTool>, arguments: &CallArguments) -> Self {
        let CallArguments::Object(arguments) = arguments else {
            return Self::NoEffect;
        };
        match (name, tool) {
            (_, None) => Self::NoEffect,
            (READ_FILE | LIST_DIRECTORY | LOAD_SKILL, _) => Self::ReadsFiles,
            (FETCH_URL, _) => Self::ReadsRemote,
            (WRITE_FILE | EDIT_FILE, _) => Self::WritesFiles,
            (EXECUTE_COMMAND, Some(_)) => target_pack(arguments).map_or(Self::Unknown, Self::Sidecar),
            (_, Some(tool)) => tool.pack.clone().map_or(Self::Unknown, Self::Sidecar),
        }
    }

    pub const fn changes_state(&self) -> bool {
        matches!(self, Self::WritesFiles | Self::Sidecar(_) | Self::Unknown)
    }

    pub fn is_independent_of(&self, other: &Self) -> bool {
        use Effects::{NoEffect, ReadsFiles, ReadsRemote, Sidecar, Unknown, WritesFiles};
        match (self, other) {
            (NoEffect, _) | (_, NoEffect) | (ReadsFiles | ReadsRemote, ReadsFiles | ReadsRemote) => true,
            (Unknown, _) | (_, Unknown) => false,
            (Sidecar(first), Sidecar(second)) => first != second,
            (ReadsRemote, WritesFiles | Sidecar(_)) | (WritesFiles | Sidecar(_), ReadsRemote) => true,
            (WritesFiles, _) | (_, WritesFiles) | (ReadsFiles, Sidecar(_)) | (Sidecar(_), ReadsFiles) => false,
        }
    }
}

fn target_pack(arguments: &Map<String, Value>) -> Option<String> {
    let target_pack = arguments.get("target")?.as_str()?;
    let target_pack: String = target_pack.split_whitespace().collect();
    (!target_pack.is_empty()).then(|| target_pack.to_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sympozium_api::open::OpenObject;

    use super::*;

    fn effects(name: &str, pack: Option<&str>, arguments: Value) -> Effects {
        let tool = OfferedTool {
            name: name.to_owned(),
            description: String::new(),
            parameters: OpenObject::default(),
            native: pack.is_none(),
            pack: pack.map(str::to_owned),
        };
        let Value::Object(arguments) = arguments else { panic!("an object") };
        Effects::of_call(name, Some(&tool), &CallArguments::Object(arguments))
    }

    #[test]
    fn calls_run_concurrently_if_they_cannot_observe_each_other() {
        let command = |target_pack: &str| effects("execute_command", None, json!({ "target": target_pack }));
        let calls = [
            effects("read_file", None, json!({})),
            effects("fetch_url", None, json!({})),
            effects("write_file", None, json!({})),
            command("A"),
            command(" a "),
            effects("rows", Some("b"), json!({})),
            effects("execute_command", None, json!({})),
            effects("schedule_task", None, json!({})),
            Effects::of_call("nothing", None, &CallArguments::Object(Map::new())),
        ];
        let table: Vec<String> = calls
            .iter()
            .map(|first| {
                let with = |second| {
                    if first.is_independent_of(second) { '+' } else { '-' }
                };
                calls.iter().map(with).collect()
            })
            .collect();
        assert_eq!(
            table,
            [
                "++------+",
                "++++++--+",
                "-+------+",
                "-+---+--+",
                "-+---+--+",
                "-+-++---+",
                "--------+",
                "--------+",
                "+++++++++",
            ]
        );
    }
}
