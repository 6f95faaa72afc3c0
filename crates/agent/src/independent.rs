//! Which calls of one answer may happen at the same time: those of which none can see what another does.
//!
//! Looking does not disturb looking. Skills have sidecars of their own, so calls of different packs go side by side; that
//! they share `/workspace` is theirs to know, as it is with calls in two terminals. Everything else keeps the model's order.

use serde_json::{Map, Value};
use sympozium_api::builtin_tool::{
    EDIT_FILE, EXECUTE_COMMAND, FETCH_URL, LIST_DIRECTORY, LOAD_SKILL, READ_FILE, WRITE_FILE,
};
use sympozium_api::run_plan::OfferedTool;

use crate::model::Arguments;

/// What a call touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touches {
    /// Nothing: it is refused without anybody being asked.
    Nothing,
    /// It looks at files.
    Files,
    /// It looks at something far away.
    Far,
    /// It changes files.
    Changes,
    /// Whatever is in one sidecar, and files.
    Skill(String),
    /// Anything, as far as we know.
    Anything,
}

impl Touches {
    /// What a call of a tool touches. `tool` is what is offered by that name.
    pub fn of(name: &str, tool: Option<&OfferedTool>, arguments: &Arguments) -> Self {
        let Arguments::Object(arguments) = arguments else {
            return Self::Nothing;
        };
        match (name, tool) {
            (_, None) => Self::Nothing,
            (READ_FILE | LIST_DIRECTORY | LOAD_SKILL, _) => Self::Files,
            (FETCH_URL, _) => Self::Far,
            (WRITE_FILE | EDIT_FILE, _) => Self::Changes,
            (EXECUTE_COMMAND, Some(_)) => target(arguments).map_or(Self::Anything, Self::Skill),
            (_, Some(tool)) => tool.pack.clone().map_or(Self::Anything, Self::Skill),
        }
    }

    /// Whether something may be another afterwards.
    pub const fn changes(&self) -> bool {
        matches!(self, Self::Changes | Self::Skill(_) | Self::Anything)
    }

    /// Whether two calls may happen at the same time.
    pub fn is_independent_of(&self, other: &Self) -> bool {
        use Touches::{Anything, Changes, Far, Files, Nothing, Skill};
        match (self, other) {
            (Nothing, _) | (_, Nothing) | (Files | Far, Files | Far) => true,
            (Anything, _) | (_, Anything) => false,
            (Skill(one), Skill(other)) => one != other,
            (Far, Changes | Skill(_)) | (Changes | Skill(_), Far) => true,
            (Changes, _) | (_, Changes) | (Files, Skill(_)) | (Skill(_), Files) => false,
        }
    }
}

/// The pack that a command is for, as the bridge reads it.
fn target(arguments: &Map<String, Value>) -> Option<String> {
    let target = arguments.get("target")?.as_str()?;
    let target: String = target.split_whitespace().collect();
    (!target.is_empty()).then(|| target.to_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sympozium_api::open::OpenObject;

    use super::*;

    fn touches(name: &str, pack: Option<&str>, arguments: Value) -> Touches {
        let tool = OfferedTool {
            name: name.to_owned(),
            description: String::new(),
            parameters: OpenObject::default(),
            native: pack.is_none(),
            pack: pack.map(str::to_owned),
        };
        let Value::Object(arguments) = arguments else { panic!("an object") };
        Touches::of(name, Some(&tool), &Arguments::Object(arguments))
    }

    #[test]
    fn only_what_cannot_be_seen_by_the_other_goes_side_by_side() {
        let command = |target: &str| touches("execute_command", None, json!({ "target": target }));
        let calls = [
            touches("read_file", None, json!({})),
            touches("fetch_url", None, json!({})),
            touches("write_file", None, json!({})),
            command("A"),
            command(" a "),
            touches("rows", Some("b"), json!({})),
            touches("execute_command", None, json!({})),
            touches("schedule_task", None, json!({})),
            Touches::of("nothing", None, &Arguments::Object(Map::new())),
        ];
        let table: Vec<String> = calls
            .iter()
            .map(|one| {
                let with = |other| {
                    if one.is_independent_of(other) { '+' } else { '-' }
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
