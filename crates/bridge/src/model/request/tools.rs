//! Checks the tools that a request offers, and the choice among them.

use std::collections::BTreeSet;

use serde_json::value::RawValue;
use sympozium_api::run_plan::WireFormat;
use sympozium_api::text::quote;

use super::object::{Fields, JsonKind, ObjectError, as_text, each_item};
use super::{MAX_FIELDS, MAX_TOOLS, list_names};

/// A field of a tool: its name, the allowed kinds of value, and whether it is required.
type Field = (&'static str, &'static [JsonKind], Presence);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Required,
    Optional,
}

/// The fields of `function` in OpenAI's format.
const FUNCTION_FIELDS: &[Field] = &[
    ("name", &[JsonKind::Text], Presence::Required),
    ("description", &[JsonKind::Text, JsonKind::Null], Presence::Optional),
    ("parameters", &[JsonKind::Object, JsonKind::Null], Presence::Optional),
    ("strict", &[JsonKind::Bool, JsonKind::Null], Presence::Optional),
];
/// The fields around it.
const OPEN_AI_FIELDS: &[Field] =
    &[("type", &[JsonKind::Text], Presence::Required), ("function", &[JsonKind::Object], Presence::Required)];
/// The fields of a tool in Anthropic's format.
const ANTHROPIC_FIELDS: &[Field] = &[
    ("name", &[JsonKind::Text], Presence::Required),
    ("description", &[JsonKind::Text], Presence::Optional),
    ("input_schema", &[JsonKind::Object], Presence::Required),
    ("cache_control", &[JsonKind::Object, JsonKind::Null], Presence::Optional),
    ("strict", &[JsonKind::Bool], Presence::Optional),
    ("type", &[JsonKind::Text, JsonKind::Null], Presence::Optional),
];

/// Checks that all tools are functions that the run has.
pub fn check_tools(wire: WireFormat, open: &BTreeSet<String>, tools: &RawValue, problems: &mut Vec<String>) {
    let mut list = Vec::new();
    let all = each_item(tools, &mut |tool| {
        list.push(tool);
        list.len() <= MAX_TOOLS
    });
    if !all {
        problems.push(if list.len() > MAX_TOOLS {
            format!("`tools` has more than {MAX_TOOLS} entries")
        } else {
            "`tools` must be a list".to_owned()
        });
        return;
    }
    let mut names = BTreeSet::new();
    for (index, tool) in list.into_iter().enumerate() {
        let place = format!("tools[{index}]");
        let name = match wire {
            WireFormat::OpenAi => check_open_ai(&place, tool),
            WireFormat::Anthropic => check_anthropic(&place, tool),
        };
        match name {
            Ok(name) if !names.insert(name.clone()) => {
                problems.push(format!("the tool {} is offered twice", quote(&name)));
            }
            Ok(_) => {}
            Err(problem) => problems.push(problem),
        }
    }
    let closed: Vec<&str> = names.iter().filter(|name| !open.contains(*name)).map(String::as_str).collect();
    if !closed.is_empty() {
        problems.push(format!("the run has no such tools: {}", list_names(&closed)));
    }
}

fn check_open_ai(place: &str, tool: &RawValue) -> Result<String, String> {
    let fields = parse_fields(place, tool)?;
    check_type(place, &fields, "function")?;
    check_fields(place, &fields, OPEN_AI_FIELDS)?;
    let Some(function) = fields.get("function") else {
        unreachable!("a field that must be there was found");
    };
    let place = format!("{place}.function");
    let fields = parse_fields(&place, function)?;
    check_fields(&place, &fields, FUNCTION_FIELDS)?;
    tool_name(&place, &fields)
}

fn check_anthropic(place: &str, tool: &RawValue) -> Result<String, String> {
    let fields = parse_fields(place, tool)?;
    check_type(place, &fields, "custom")?;
    check_fields(place, &fields, ANTHROPIC_FIELDS)?;
    tool_name(place, &fields)
}

/// Checks the type first, because it is what identifies tools that the provider executes: the clearest error.
fn check_type(place: &str, fields: &Fields<'_>, expected: &str) -> Result<(), String> {
    match fields.get("type").filter(|value| JsonKind::of(value) != JsonKind::Null) {
        None => Ok(()),
        Some(is) => match as_text(is) {
            Some(is) if is == expected => Ok(()),
            Some(is) => Err(format!(
                "`{place}` is of type {}: only functions that the run has can be offered, nothing that the provider acts on",
                quote(&is)
            )),
            None => Err(format!("`{place}.type` must be a text")),
        },
    }
}

fn check_fields(place: &str, fields: &Fields<'_>, known: &[Field]) -> Result<(), String> {
    for (name, value) in fields.iter() {
        let Some((_, kinds, _)) = known.iter().find(|(known, ..)| *known == name) else {
            return Err(format!("`{place}` cannot have {}", quote(name)));
        };
        if !kinds.contains(&JsonKind::of(value)) {
            return Err(format!("`{place}.{name}` is not what it must be"));
        }
    }
    let missing = known.iter().find(|(name, _, need)| *need == Presence::Required && fields.get(name).is_none());
    match missing {
        Some((name, ..)) => Err(format!("`{place}` has no `{name}`")),
        None => Ok(()),
    }
}

fn tool_name(place: &str, fields: &Fields<'_>) -> Result<String, String> {
    let name = fields.get("name").and_then(as_text);
    name.ok_or_else(|| format!("`{place}.name` must be a text"))
}

fn parse_fields<'a>(place: &str, value: &'a RawValue) -> Result<Fields<'a>, String> {
    Fields::read(value.get().as_bytes()).map_err(|error| match error {
        ObjectError::Duplicate(name) => format!("`{place}` has {} twice", quote(&name)),
        ObjectError::TooMany => format!("`{place}` has more than {MAX_FIELDS} fields"),
        ObjectError::Json(_) => format!("`{place}` must be an object"),
    })
}

/// Checks that the choice is one of the run's tools.
pub fn check_choice(wire: WireFormat, open: &BTreeSet<String>, choice: &RawValue, problems: &mut Vec<String>) {
    let chosen = match wire {
        WireFormat::OpenAi => check_open_ai_choice(choice),
        WireFormat::Anthropic => check_anthropic_choice(choice),
    };
    match chosen {
        Ok(Some(name)) if !open.contains(&name) => {
            problems.push(format!("the run has no tool {} to choose", quote(&name)));
        }
        Ok(_) => {}
        Err(problem) => problems.push(problem),
    }
}

fn check_open_ai_choice(choice: &RawValue) -> Result<Option<String>, String> {
    if let Some(word) = as_text(choice) {
        return match word.as_str() {
            "none" | "auto" | "required" => Ok(None),
            _ => Err(format!("`tool_choice` cannot be {}", quote(&word))),
        };
    }
    let place = "tool_choice";
    let fields = parse_fields(place, choice)?;
    check_type(place, &fields, "function")?;
    check_fields(place, &fields, OPEN_AI_FIELDS)?;
    let place = "tool_choice.function";
    let function = fields.get("function").map(|function| parse_fields(place, function));
    let Some(function) = function.transpose()? else {
        unreachable!("a field that must be there was found");
    };
    check_fields(place, &function, &FUNCTION_FIELDS[..1])?;
    tool_name(place, &function).map(Some)
}

fn check_anthropic_choice(choice: &RawValue) -> Result<Option<String>, String> {
    const CHOICE: &[Field] = &[
        ("type", &[JsonKind::Text], Presence::Required),
        ("name", &[JsonKind::Text], Presence::Optional),
        ("disable_parallel_tool_use", &[JsonKind::Bool], Presence::Optional),
    ];
    let place = "tool_choice";
    let fields = parse_fields(place, choice)?;
    check_fields(place, &fields, CHOICE)?;
    let word = fields.get("type").and_then(as_text).unwrap_or_default();
    match (word.as_str(), fields.get("name")) {
        ("auto" | "any" | "none", None) => Ok(None),
        ("tool", Some(_)) => tool_name(place, &fields).map(Some),
        _ => Err(format!("`tool_choice` cannot be of type {}", quote(&word))),
    }
}
